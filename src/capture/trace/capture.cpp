#include "capture/trace/capture.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/alias.h>
#include <torch/nn/module.h>

#include <autopar/core/error.hpp>

#include "capture/shapes/meta_kernels.hpp"
#include "capture/trace/capture_change.hpp"
#include "capture/trace/construction.hpp"
#include "capture/trace/cpu_handles.hpp"
#include "capture/trace/first_change.hpp"
#include "capture/trace/polymorphism.hpp"
#include "capture/trace/trace_scope.hpp"
#include "capture/trace/tracer.hpp"
#include "capture/trace/unregistered_leaves.hpp"
#include "ops/registry.hpp"

namespace autopar::trace {
namespace {

/// The dispatcher's way to a Tracer.
class CaptureSink : public OperatorSink {
 public:
  explicit CaptureSink(Tracer& tracer) : tracer_(tracer) {}
  void handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override { tracer_.handle(op, stack); }

 private:
  Tracer& tracer_;
};

/// autocast's cache of cast weights outlives a run and knows no fake tensors.
class NoAutocastCache {
 public:
  NoAutocastCache() : enabled_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(enabled_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool enabled_;
};

/// Autocast of fake tensors, which are CPU tensors; the caller's on leaving.
class AutocastScope {
 public:
  explicit AutocastScope(const std::optional<Autocast>& autocast)
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    if (!autocast) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, autocast->dtype);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool enabled_;
  c10::ScalarType dtype_;
};

using Types = std::vector<c10::ScalarType>;

/// What libtorch says of a gradient that it cannot take, here because fake tensors have no history.
bool asks_for_gradient(std::string_view error) {
  static constexpr std::string_view kPhrases[] = {"differentiated Tensors", "does not have a grad_fn",
                                                  "input tensors does not require grad"};
  return std::any_of(std::begin(kPhrases), std::end(kPhrases),
                     [&](std::string_view phrase) { return error.find(phrase) != std::string_view::npos; });
}

/// The error of a forward that libtorch has refused at some batch size.
[[noreturn]] void refuse_forward(const Tracer& tracer, const c10::Error& error, std::int64_t batch) {
  const auto op = tracer.last_op().empty() ? "forward" : "after " + tracer.last_op();
  const auto said = without_batch_size(error.what_without_backtrace(), batch);
  if (!asks_for_gradient(said))
    throw ForwardFailed(op, tracer.last_path(), "the forward failed while it was captured: " + said);
  throw CaptureError(op, tracer.last_path(),
                     "a gradient was taken inside the forward (torch::autograd::grad or backward), of which a captured "
                     "model has no history; write the derivative with operators. Gradient penalties, which need a "
                     "second backward, are not supported. libtorch says: " +
                         said);
}

/// The value of a tensor within a trace, which its look is no part of.
ValueId known_value(Tracer& tracer, const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  return tracer.value_of(tensor);
}

struct OneCapture {
  SizedGraph sized;
  bool keeps_values;    ///< the module keeps some of this forward's values, which the next one may read
  bool made_constants;  ///< some of them follow from constants alone, and have data from now on
};

/// Whatever becomes of a run, nobody is left with a static tensor without data.
class SettlesConstants {
 public:
  SettlesConstants(Tracer& tracer, bool& made_any) : tracer_(tracer), made_any_(made_any) {}
  SettlesConstants(const SettlesConstants&) = delete;
  SettlesConstants& operator=(const SettlesConstants&) = delete;
  ~SettlesConstants() {
    try {
      made_any_ = tracer_.settle_constants();
    } catch (const std::exception&) {  // they stay without data, which says so when it is read
    }
  }

 private:
  Tracer& tracer_;
  bool& made_any_;
};

/// @param result_types  what to cast results to; empty = leave them
/// @param solved        the program of other batch sizes, once it is known
// NOLINTNEXTLINE(readability-function-size): one run, from its leaves to its outputs.
OneCapture capture_at(std::int64_t batch, const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                      const FlatForward& forward, const CaptureOptions& options, const Types& result_types,
                      const OpGraph* solved = nullptr) {
  Tracer tracer({.description = "it is a value inside the model while the model is captured",
                 .owner = {},
                 .constructing = false,
                 .make_real = materialise_constant,
                 .exact_batch_norm = options.exact_batch_norm,
                 .device = options.device,
                 .autocast_device = options.autocast ? std::optional(options.autocast->device) : std::nullopt,
                 .compute_type = options.autocast && options.autocast->everywhere
                                     ? std::optional(options.autocast->dtype)
                                     : std::nullopt,
                 .solved = solved,
                 .batch = batch,
                 .on_constant = options.on_constant});
  for (const auto& parameter : module.named_parameters()) {
    tracer.add_state(ValueKind::kParameter, parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    tracer.add_state(ValueKind::kBuffer, buffer.key(), buffer.value());
  }
  std::vector<at::Tensor> arguments;
  for (const auto& input : inputs) {
    auto sizes = input.sizes;
    if (input.batch_dim) sizes[static_cast<std::size_t>(*input.batch_dim)] = batch;
    arguments.push_back(tracer.add_input(sizes, input.dtype, input.requires_grad, input.format));
  }
  bool made_constants = false;
  try {
    const SettlesConstants settles(tracer, made_constants);
    std::vector<at::Tensor> results;
    {
      const NoAutocastCache no_cache;
      CaptureSink sink(tracer);
      const TraceScope scope(sink);
      {
        const AutocastScope autocast(options.autocast);
        results = forward(arguments);
      }
      for (std::size_t i = 0; i < std::min(results.size(), result_types.size()); ++i) {
        if (results[i].defined() && results[i].scalar_type() != result_types[i])
          results[i] = results[i].to(result_types[i]);
      }
      // A value arrives once and has one gradient: one that is returned twice is two. No operator makes a buffer.
      std::set<ValueId> returned;
      for (auto& result : results) {
        if (!result.defined()) continue;
        const auto value = known_value(tracer, result);
        const bool is_buffer = tracer.graph().value(value).kind == ValueKind::kBuffer;
        if (!returned.insert(value).second || is_buffer) result = at::alias(result);
      }
    }
    for (const auto& result : results) {
      if (!result.defined()) {
        throw CaptureError("forward", "",
                           "one of its results is an undefined tensor; return those that are defined "
                           "only, or torch::zeros({}) in its place");
      }
      tracer.graph().outputs.push_back(tracer.value_of(result));
    }
    tracer.finish();
    refuse_unregistered_leaves(tracer.graph());
  } catch (const c10::Error& error) {
    refuse_forward(tracer, error, batch);
  }
  arguments.clear();
  const bool keeps_values = tracer.keeps_values();
  return {{batch, std::move(tracer.graph())}, keeps_values, made_constants};
}

/// What a forward makes once (a static window, a mask that is there from now on) is a constant of all the others.
template <class... Arguments>
OneCapture capture_settled(const Arguments&... arguments) {
  auto once = capture_at(arguments...);
  return once.made_constants ? capture_at(arguments...) : std::move(once);
}

Types result_types_of(const OpGraph& graph) {
  Types types;
  for (const auto output : graph.outputs) types.push_back(graph.value(output).dtype);
  return types;
}

/// What a forward computes otherwise than the one before it, of several with one batch size.
/// @param first  what it computed with that batch size at first, if it is known: some change once only
std::optional<CaptureChange> change_of_itself(const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                                              const FlatForward& forward, const CaptureOptions& options,
                                              const Types& types, const std::optional<SizedGraph>& first) {
  constexpr int kRuns = 4;  // a change in every second or third run shows
  const auto batch = options.batch_sizes[0];
  auto before = capture_settled(batch, module, inputs, forward, options, types).sized.graph;
  if (first) {
    if (auto change = first_change(first->graph, before, batch)) return change;
  }
  for (int run = 1; run < kRuns; ++run) {
    auto now = capture_settled(batch, module, inputs, forward, options, types).sized.graph;
    if (auto change = first_change(before, now, batch)) return change;
    before = std::move(now);
  }
  return std::nullopt;
}

/// Samples of the call that is captured; none if no argument has a batch dim.
std::optional<std::int64_t> samples_of_call(const std::vector<InputSpec>& inputs) {
  for (const auto& input : inputs) {
    if (input.batch_dim) return input.sizes[static_cast<std::size_t>(*input.batch_dim)];
  }
  return std::nullopt;
}

/// The failure with what was tried: whose forward works with the samples of the call has that number in it.
CaptureError with_sizes_tried(const ForwardFailed& failure, const torch::nn::Module& module,
                              const std::vector<InputSpec>& inputs, const FlatForward& forward,
                              const CaptureOptions& options, const Types& types) {
  const auto& sizes = options.batch_sizes;
  auto reason = failure.reason() + "; forward is captured with batches of several sizes (" + std::to_string(sizes[0]) +
                ", " + std::to_string(sizes[1]) + " and " + std::to_string(sizes[2]) + " samples)";
  const auto own = samples_of_call(inputs);
  if (!own || *own == 0) return {failure.op(), failure.path(), reason};
  try {
    static_cast<void>(capture_settled(*own, module, inputs, forward, options, types));
    reason += ", and it runs with the " + std::to_string(*own) +
              " samples of this call alone: let sizes follow the batch, with -1 in view or x.size(0) in place of " +
              std::to_string(*own);
  } catch (const CaptureError&) {  // it is wrong with any size
  }
  return {failure.op(), failure.path(), reason};
}

/// What looks like a program that depends on the batch size may be one that changes from call to call.
template <class Compare>
auto named_if_it_changes_itself(const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                                const FlatForward& forward, const CaptureOptions& options, const Types& types,
                                const std::optional<SizedGraph>& first, const Compare& compare) {
  try {
    return compare();
  } catch (const CaptureError&) {
    const auto change = change_of_itself(module, inputs, forward, options, types, first);
    if (!change) throw;
    throw CaptureError(
        change->op, change->path,
        change->what +
            " in the next call with the same arguments: forward changes what it computes with (a "
            "call counter, a schedule), which a replay does not. Way out: count in the training loop and pass "
            "what follows from it to forward as an argument, or set a member before the call");
  }
}

}  // namespace

InputSpec input_spec(const at::Tensor& tensor, std::optional<std::int64_t> batch_dim) {
  InputSpec spec{tensor.sizes().vec(), tensor.scalar_type(), batch_dim, tensor.requires_grad(),
                 tensor.suggest_memory_format()};
  if (!spec.batch_dim) return spec;
  if (*spec.batch_dim < 0) *spec.batch_dim += tensor.dim();
  if (*spec.batch_dim < 0 || *spec.batch_dim >= tensor.dim()) {
    throw InvalidArgument("batch dim " + std::to_string(*batch_dim) + " of a tensor argument with " +
                          std::to_string(tensor.dim()) +
                          " dimensions; set Options.batch_dims, with ap::kShared for an "
                          "argument that all samples share");
  }
  return spec;
}

OpGraph capture(const torch::nn::Module& module, const std::vector<InputSpec>& inputs, const FlatForward& forward,
                const CaptureOptions& options) {
  ops::close_registry();
  shapes::install_meta_kernels();
  install_tracer();
  const CpuHandles on_cpu(module);
  const auto& sizes = options.batch_sizes;
  Types types;
  const auto at = [&](std::int64_t batch) {
    return capture_settled(batch, module, inputs, forward, options, types).sized;
  };
  std::optional<SizedGraph> first;
  try {
    if (options.autocast) {
      auto plain = options;
      plain.autocast.reset();
      types = result_types_of(capture_settled(sizes[0], module, inputs, forward, plain, Types{}).sized.graph);
    }
    return named_if_it_changes_itself(module, inputs, forward, options, types, first, [&] {
      first = at(sizes[0]);
      return solve_batch({*first, at(sizes[1]), at(sizes[2])});
    });
  } catch (const ForwardFailed& failure) {
    throw with_sizes_tried(failure, module, inputs, forward, options, types);
  }
}

void verify_capture(const OpGraph& graph, const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                    const FlatForward& forward, std::span<const std::int64_t> batch_sizes,
                    const CaptureOptions& options) {
  shapes::install_meta_kernels();
  install_tracer();
  const CpuHandles on_cpu(module);
  const auto types = options.autocast ? result_types_of(graph) : Types{};
  for (const auto batch : batch_sizes) {
    const auto require_same = [&](const SizedGraph& again) {
      const bool copies_left_out = batch == 1 && again.graph.ops.size() < graph.ops.size();
      if (copies_left_out)
        require_same_for_one_sample(graph, again);
      else
        require_instance(graph, again);
    };
    named_if_it_changes_itself(module, inputs, forward, options, types, std::nullopt, [&] {
      const auto again = capture_settled(batch, module, inputs, forward, options, types, &graph);
      require_same(again.sized);
      // A state that is made anew for each batch size is read in a second forward of the same size only.
      if (again.keeps_values) require_same(capture_at(batch, module, inputs, forward, options, types, &graph).sized);
    });
  }
}

std::optional<CaptureChange> change_since_capture(const OpGraph& graph, const torch::nn::Module& module,
                                                  const std::vector<InputSpec>& inputs, const FlatForward& forward,
                                                  const CaptureOptions& options) {
  shapes::install_meta_kernels();
  install_tracer();
  const CpuHandles on_cpu(module);
  const auto batch = options.batch_sizes[0];
  const auto types = options.autocast ? result_types_of(graph) : Types{};
  const auto again = capture_settled(batch, module, inputs, forward, options, types);
  return first_change(graph, again.sized.graph, batch);
}

}  // namespace autopar::trace
