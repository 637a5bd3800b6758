#include "torch/calls/call_validator.hpp"

#include <algorithm>
#include <tuple>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>

#include "ops/registry.hpp"
#include "torch/calls/parameter_hooks.hpp"
#include "torch/calls/replica_check.hpp"

namespace autopar::calls {

namespace {

std::vector<std::uint64_t> words_in(const std::vector<CallHeader>& headers) {
  std::vector<std::uint64_t> words;
  for (const auto& header : headers) words.push_back(header.word);
  return words;
}

}  // namespace

CallValidator::CallValidator(ranks::Ranks& ranks, torch::nn::Module& module, std::int32_t number,
                             const Options& options, const parameters::ParameterStore& parameters, StepWatches& watches,
                             const PendingGradients& gradients, const Progress& progress, LateFailure& late_failure)
    : ranks_(ranks),
      module_(module),
      number_(number),
      options_(options),
      parameters_(parameters),
      watches_(watches),
      gradients_(gradients),
      progress_(progress),
      late_failure_(late_failure) {
  for (const auto& part : module.modules()) modules_.push_back(part.get());
}

// ---------------------------------------------------------------- arguments

std::exception_ptr CallValidator::inspect(const Flattened& flattened, CallArguments& arguments) const {
  try {
    arguments = inspect_arguments(flattened, options_);
    require_local_indices(arguments, options_);
    require_no_hooks(parameters_);
    return nullptr;
  } catch (const Error&) {
    return std::current_exception();
  }
}

std::string CallValidator::key_of(const CallArguments& arguments) const {
  std::uint64_t flags = 0;
  const auto note = [&flags](char flag) { flags = hash_bytes(&flag, 1, flags); };
  for (const auto* part : modules_) note(part->is_training() ? 't' : 'e');
  for (const auto& tensor : parameters_.tensors()) note(tensor.handle.requires_grad() ? 'g' : '-');
  std::string key = arguments.signature + ops::registered_by_users() +
                    (at::GradMode::is_enabled() ? "; gradients" : "; no gradients");
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) key += std::string("; autocast ") + c10::DeviceTypeName(type);
  }
  return key + (module_.is_training() ? "; train " : "; eval ") + std::to_string(flags);
}

std::vector<CallWord> CallValidator::words_of(const CallArguments& arguments) const {
  std::string autocast;
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) autocast += " " + c10::DeviceTypeName(type);
  }
  return words_of_call(arguments, module_, parameters_.tensors(), at::GradMode::is_enabled(), autocast);
}

// ---------------------------------------------------------------- handshake

CallHeader CallValidator::header(CallKind kind) const {
  if (alone_) {
    throw InvalidArgument(
        std::string(name_of(kind)) +
        ": it was called within a function of for_whole_parameters, which runs on one rank, and needs "
        "all; call it before or after");
  }
  CallHeader header;
  header.kind = kind;
  header.model = number_;
  module_.name().copy(header.model_name.data(), header.model_name.size() - 1);
  header.serial = static_cast<std::uint64_t>(progress_.calls);
  header.accumulates = gradients_.accumulating() && (kind == CallKind::kForward || kind == CallKind::kBackward);
  header.has_pending = gradients_.has_accumulated();
  header.loss_scale = gradients_.loss_scale();
  header.has_late_failure = !late_failure_.look().empty();
  return header;
}

std::vector<CallHeader> CallValidator::agree(const CallHeader& header, const std::string& details,
                                             const std::exception_ptr& error) {
  auto mine = header;
  add_watched(mine);
  return exchanged(mine, details, error);
}

std::vector<CallHeader> CallValidator::exchanged(const CallHeader& mine, const std::string& details,
                                                 const std::exception_ptr& error,
                                                 const std::function<std::vector<CallWord>()>& words) {
  auto headers = exchange(ranks_, mine, details, error, words);
  if (std::ranges::any_of(headers, &CallHeader::has_late_failure)) require_no_late_failure(ranks_, late_failure_);
  return headers;
}

CallHeader CallValidator::header_of(CallKind kind, const CallArguments& arguments) const {
  auto mine = header(kind);
  mine.word = formats_of(arguments);
  mine.shared = arguments.shared;
  mine.samples = arguments.has_batch ? arguments.samples : (ranks_.is_first() ? 1 : 0);
  return mine;
}

void CallValidator::add_watched(CallHeader& header) {
  std::tie(header.loss_backwards, header.loss_factors) = std::exchange(loss_gradients_, {});
  if (header.kind != CallKind::kForward) return;
  header.optimizers = watches_.steps().look();
  const auto changed = watches_.unattached().look();
  if (changed.defined() && parameters_.has(changed)) header.unattached = parameters_.of(changed).id;
}

AgreedCall CallValidator::agree_on_call(CallArguments& arguments, const std::string& key, const KnownProgram& known,
                                        const std::exception_ptr& error, bool deployed) {
  auto mine = header_of(CallKind::kForward, arguments);
  add_watched(mine);
  if (known.is_new) mine.local_indices = local_indices_.look(arguments, options_);
  mine.needs_capture = known.is_stale;
  mine.members_changed = known.members_changed;
  const auto outside = watches_.outside().look();
  mine.outside_gradients = static_cast<std::int64_t>(outside.size());
  if (known.obstacles) mine.obstacles = known.obstacles();
  const auto common = std::to_string(known.common_ends);
  const auto behind = known.common_ends == 0 ? "" : "; from " + common + " results that all ranks have";
  auto headers = exchanged(mine, key + behind, error, [&] {
    auto words = words_of(arguments);
    words.push_back({"", "takes", common, common + " tensors that follow from results that all ranks have"});
    return words;
  });
  require_same_optimizers(ranks_, headers, [this](std::size_t k) { return watches_.steps().describe(k); });
  if (std::ranges::any_of(headers, [](const CallHeader& each) { return each.outside_gradients != 0; }))
    require_same_outside_gradients(ranks_, parameters_, outside);
  warn_of_unattached(headers);
  const auto interval = options_.verify_replicas;
  if (deployed && interval != 0 && progress_.calls % interval == 0)
    require_equal_replicas(ranks_, parameters_, progress_.calls + 1);
  auto agreed = opened(std::move(headers));
  count_in_global_batch(arguments, options_, first_sample(agreed.layout, ranks_.rank()));
  agree_on_formats(arguments, words_in(agreed.headers));
  return agreed;
}

AgreedCall CallValidator::agree_on_preparation(CallArguments& arguments, const std::string& key, bool is_stale,
                                               const std::exception_ptr& error) {
  auto mine = header_of(CallKind::kPrepare, arguments);
  add_watched(mine);
  mine.needs_capture = is_stale;
  auto agreed = opened(exchanged(mine, key, error, [&] { return words_of(arguments); }));
  agree_on_formats(arguments, words_in(agreed.headers));
  return agreed;
}

AgreedCall CallValidator::opened(std::vector<CallHeader> headers) const {
  AgreedCall agreed;
  agreed.headers = std::move(headers);
  for (const auto& header : agreed.headers) {
    agreed.layout.local.push_back(header.samples);
    agreed.batch += header.samples;
    agreed.is_stale = agreed.is_stale || header.needs_capture;
    agreed.members_changed = agreed.members_changed || header.members_changed;
    agreed.has_pending = agreed.has_pending || header.has_pending;
    agreed.obstacles |= header.obstacles;
  }
  if (agreed.batch == 0) {
    throw InvalidArgument("the batches of all " + std::to_string(agreed.headers.size()) +
                          " ranks are empty; at least one rank must bring a sample");
  }
  return agreed;
}

// ---------------------------------------------------------------- what ranks compare at the next call

void CallValidator::note_loss_gradient(const at::Tensor& factor) {
  ++loss_gradients_.first;
  if (factor.is_cpu()) loss_gradients_.second += factor.item<double>();
}

void CallValidator::warn_of_local_indices(const AgreedCall& agreed, const CallArguments& arguments,
                                          const planning::ModelProgram& program) {
  const auto log = ranks_.is_first() ? ranks_.logger(LogModule::kSession) : Logger();
  local_indices_.warn(agreed.headers, arguments, program, log);
}

// Rank 0 speaks for all.
void CallValidator::warn_of_unattached(const std::vector<CallHeader>& headers) {
  const auto seen = std::ranges::find_if(headers, [](const CallHeader& header) { return header.unattached.valid(); });
  if (seen == headers.end() || std::exchange(warned_of_unattached_, true) || !ranks_.is_first()) return;
  const auto& tensor = parameters_.at(seen->unattached);
  ranks_.logger(LogModule::kSession)
      .warn("parameter '" + tensor.name() +
            "' was changed after it got a gradient, and no attached optimizer has it; if an optimizer steps it, call "
            "model->attach(optimizer) when it is made: plans then count its state, may shard it (ZeRO, tensor slices, "
            "offload), and a rank that steps otherwise than the others is noticed. Until then plans assume "
            "optimizer_state_factor = " +
            detail::formatted("%g", options_.optimizer_state_factor));
}

}  // namespace autopar::calls
