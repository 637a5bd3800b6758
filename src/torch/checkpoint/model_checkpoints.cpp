#include "torch/checkpoint/model_checkpoints.hpp"

#include <exception>
#include <iomanip>
#include <sstream>

#include <autopar/core/error.hpp>

#include "torch/checkpoint/export_weights.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/ranks/error_message.hpp"

namespace autopar::checkpoint {

namespace {

/// That one of them is of a class whose state is not known.
std::exception_ptr unknown_among(const std::vector<torch::optim::Optimizer*>& optimizers) {
  try {
    for (const auto* optimizer : optimizers) static_cast<void>(parameters::descriptor_of(*optimizer));
    return nullptr;
  } catch (const InvalidArgument&) {
    return std::current_exception();
  }
}

/// As `ranks::or_fail`, for work whose CheckpointErrors all ranks throw together, and go on after.
template <class Work>
auto in_step(ranks::Ranks& ranks, const char* action, Work&& work) {
  try {
    return work();
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception&) {
    ranks::fail_without_frames(ranks, ranks.logger(LogModule::kSession), action);
  }
}

/// What ranks compare of a load.
std::string text_of(const std::string& folder, const LoadOptions& options) {
  std::ostringstream out;
  out << folder;
  if (options.optimizer == Missing::kAllowed) out << ", without an optimizer that it lacks";
  if (options.missing == Missing::kAllowed) out << ", .missing allowed";
  if (options.unexpected == Missing::kAllowed) out << ", .unexpected allowed";
  for (const auto& [from, to] : options.rename) out << ", .rename " << std::quoted(from) << " to " << std::quoted(to);
  for (const auto& prefix : options.skip) out << ", .skip " << std::quoted(prefix);
  return out.str();
}

}  // namespace

std::vector<ShardedTensorMetadata> ModelCheckpoints::placed() const {
  std::vector<ShardedTensorMetadata> tensors;
  for (const auto& tensor : parts_.parameters.tensors()) tensors.push_back(placed(tensor));
  return tensors;
}

ShardedTensorMetadata ModelCheckpoints::placed(const parameters::ManagedTensor& tensor) const {
  return {tensor.name(),
          tensor.handle,
          tensor.holders,
          tensor.sizes,
          parts_.parameters.elements_of_holders(tensor),
          {tensor.names.begin() + 1, tensor.names.end()}};
}

at::Tensor ModelCheckpoints::gather(const at::Tensor& handle) {
  const auto& tensor = parts_.parameters.of(handle);
  parts_.validator.agree(calls::CallKind::kGather, tensor.name());
  return ranks::or_fail(parts_.ranks, "gather", [&] { return gather_tensor(parts_.ranks.world(), placed(tensor)); });
}

std::vector<std::pair<std::string, at::Tensor>> ModelCheckpoints::gather_state() {
  parts_.validator.agree(calls::CallKind::kGather, "state");
  const auto values =
      ranks::or_fail(parts_.ranks, "gather_state", [&] { return gather_tensors(parts_.ranks.world(), placed()); });
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const auto& name : parts_.parameters.tensors()[i].names) state.emplace_back(name, values[i]);
  }
  return state;
}

std::unique_ptr<torch::optim::Optimizer> ModelCheckpoints::gather_optimizer(torch::optim::Optimizer& optimizer) {
  static_cast<void>(parameters::descriptor_of(optimizer));
  parts_.validator.agree(calls::CallKind::kGather, "optimizer");
  return ranks::or_fail(parts_.ranks, "gather_optimizer",
                        [&] { return checkpoint::gather_optimizer(parts_.ranks.world(), placed(), optimizer); });
}

void ModelCheckpoints::save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                            const SaveOptions& options) {
  const auto format = !options.format                                    ? "the default format"
                      : *options.format == CheckpointFormat::kSingleFile ? "a single file"
                                                                         : "sharded";
  const auto details = folder + " as " + format + (options.wait ? "" : ", in the background");
  parts_.validator.agree(calls::CallKind::kSave, details, unknown_among(optimizers));
  in_step(parts_.ranks, "save", [&] {
    const auto kept = kept_.collect(parts_.ranks.world(), "cannot save " + folder);
    saver_.save(folder, options, placed(), optimizers, info(), kept);
  });
}

SavedParts ModelCheckpoints::save_parts(const std::string& folder,
                                        const std::vector<torch::optim::Optimizer*>& optimizers,
                                        const AcceptParts& accept) {
  parts_.validator.agree(calls::CallKind::kSave, "in parts", unknown_among(optimizers));
  return in_step(parts_.ranks, "save", [&] {
    const auto kept = kept_.collect(parts_.ranks.world(), "cannot save " + folder);
    return saver_.save_parts(folder, accept, placed(), optimizers, info(), kept);
  });
}

void ModelCheckpoints::wait() {
  parts_.validator.agree(calls::CallKind::kWait, "");
  in_step(parts_.ranks, "wait", [&] { saver_.wait(); });
}

void ModelCheckpoints::export_weights(const std::string& file, std::optional<c10::ScalarType> dtype) {
  const auto details = file + (dtype ? std::string(" as ") + c10::toString(*dtype) : "");
  parts_.validator.agree(calls::CallKind::kExport, details, no_type_of_weights(dtype));
  in_step(parts_.ranks, "export_weights", [&] { write_weights(parts_.ranks.world(), file, placed(), dtype); });
}

LoadReport ModelCheckpoints::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                                  const LoadOptions& options, bool deployed, bool plan_only) {
  parts_.validator.agree(calls::CallKind::kLoad, text_of(folder, options), unknown_among(optimizers));
  if (plan_only) return {};  // nobody asks for values
  auto report = in_step(parts_.ranks, "load", [&] {
    saver_.wait();
    if (!deployed) return early_.add(parts_.ranks.world(), folder, placed(), optimizers, options, parts_.init, kept_);
    auto loaded = load_checkpoint(parts_.ranks.world(), folder, placed(), optimizers, options, kept_);
    take_info(loaded.info);
    return loaded.report;
  });
  parts_.watches.steps().forget();
  return report;
}

CheckpointInfo ModelCheckpoints::info() {
  if (const auto count = parts_.fp8.not_finite();
      count > std::exchange(not_finite_, count) && parts_.ranks.is_first()) {
    parts_.ranks.logger(LogModule::kSession)
        .warn("fp8: in " + std::to_string(count) +
              " cases so far, an operand of a product was infinite or NaN; scales leave these calls out");
  }
  return {parts_.progress.seed, parts_.progress.calls, parts_.gradients.scaler_state(), parts_.fp8.histories()};
}

void ModelCheckpoints::take_info(const std::optional<CheckpointInfo>& info) {
  if (!info) return;
  parts_.progress.seed = info->seed;
  parts_.progress.calls = info->calls;
  if (parts_.gradients.scaler_state() && info->scaler) parts_.gradients.start_scaling(*info->scaler);
  parts_.fp8.set_histories(info->fp8);
}

bool ModelCheckpoints::bring() {
  if (early_.empty()) return false;
  in_step(parts_.ranks, "load", [&] { early_.bring(parts_.ranks.world(), placed(), parts_.init); });
  return true;
}

void ModelCheckpoints::take_over() {
  in_step(parts_.ranks, "load", [&] { take_info(early_.take_over(parts_.init)); });
}

}  // namespace autopar::checkpoint
