#include "torch/session/session_impl.hpp"

#include <exception>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>

#include "torch/checkpoint/format.hpp"

namespace autopar::session {

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

}  // namespace

void Impl::deploy(Plan plan) {
  if (deployment_.has_plan())
    throw InvalidArgument("deploy(plan): the model is deployed already; call it before the first call");
  given_plan_ = std::move(plan);
}

void Impl::recapture() {
  programs_.clear();
  recorded_.reset();
}

const Plan& Impl::plan() const {
  if (!deployment_.has_plan())
    throw InvalidArgument("plan(): there is no plan yet; call the model or prepare(args...) first");
  return deployment_.plan();
}

c10::Device Impl::device() const { return resolved_ ? deployment_.device() : c10::Device(c10::kCPU); }

void Impl::require_deployed(const char* member) const {
  if (!deployed_) {
    throw InvalidArgument(std::string(member) +
                          ": the model is not deployed yet; call the model or prepare(args...) first");
  }
}

std::vector<checkpoint::PlacedTensor> Impl::placed() const {
  std::vector<checkpoint::PlacedTensor> tensors;
  for (const auto& tensor : parameters_.tensors()) tensors.push_back(placed(tensor));
  return tensors;
}

checkpoint::PlacedTensor Impl::placed(const parameters::StateTensor& tensor) const {
  return {tensor.name(), tensor.handle, tensor.holders, tensor.sizes, parameters_.elements_of_holders(tensor)};
}

at::Tensor Impl::gather(const at::Tensor& handle) {
  require_deployed("gather");
  const auto& tensor = parameters_.of(handle);
  exchange(world_, next_header(CallKind::kGather), tensor.name());
  return guarded("gather", [&] { return checkpoint::gather_tensor(world_, placed(tensor)); });
}

std::vector<std::pair<std::string, at::Tensor>> Impl::gather_state() {
  require_deployed("gather_state");
  exchange(world_, next_header(CallKind::kGather), "state");
  const auto values = guarded("gather_state", [&] { return checkpoint::gather_tensors(world_, placed()); });
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const auto& name : parameters_.tensors()[i].names) state.emplace_back(name, values[i]);
  }
  return state;
}

std::unique_ptr<torch::optim::Optimizer> Impl::gather_optimizer(torch::optim::Optimizer& optimizer) {
  require_deployed("gather_optimizer");
  static_cast<void>(parameters::descriptor_of(optimizer));
  exchange(world_, next_header(CallKind::kGather), "optimizer");
  return guarded("gather_optimizer",
                 [&] { return autopar::checkpoint::gather_optimizer(world_, placed(), optimizer); });
}

void Impl::save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                const SaveOptions& options) {
  require_deployed("save");
  const auto details = folder + " as " + std::string(options.format.name());
  exchange(world_, next_header(CallKind::kSave), details, unknown_among(optimizers));
  const auto scaler = scaler_ ? std::optional(scaler_->state()) : std::nullopt;
  in_step("save", [&] {
    checkpoint::save_checkpoint(world_, options.format, folder, placed(), optimizers, {seed_, stats_.calls, scaler});
  });
}

void Impl::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                const LoadOptions& options) {
  if (!deployed_) resolve_once();
  const auto details = folder + (options.optimizer == Missing::kAllowed ? ", without an optimizer that it lacks" : "");
  exchange(world_, next_header(CallKind::kLoad), details, unknown_among(optimizers));
  if (options_.plan_only) return;  // nobody asks for values
  in_step("load", [&] {
    if (deployed_)
      take_info(checkpoint::load_checkpoint(world_, single_file(), folder, placed(), optimizers, options));
    else
      early_loads_.add(world_, single_file(), folder, placed(), optimizers, options, init_.get());
  });
  watch_.forget();
}

void Impl::take_info(const std::optional<checkpoint::CheckpointInfo>& info) {
  if (!info) return;
  seed_ = info->seed;
  stats_.calls = info->calls;
  if (!scaler_ || !info->scaler) return;
  scaler_.emplace(*info->scaler);
  note_scaler();
}

}  // namespace autopar::session
