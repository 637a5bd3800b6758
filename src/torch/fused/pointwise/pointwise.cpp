#include "torch/fused/pointwise/pointwise.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <autopar/core/assert.hpp>

#include "ops/op_list.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "shard/kept.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"
#include "torch/fused/pointwise/code.hpp"
#include "torch/fused/pointwise/lowering.hpp"
#include "torch/fused/pointwise/pattern.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::fused::pointwise {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Mask = std::vector<bool>;

/// An expression and its kernels' source.
struct Part {
  Expression expression;
  int pack;
  std::string text;

  explicit Part(Expression of) : expression(std::move(of)), pack(pack_of(expression)), text(code_of(expression)) {}
  [[nodiscard]] kernels::KernelSource source() const { return {"pointwise.cu", text.c_str()}; }
};

/// The part of an expression, cached by its text, so that equal parts are compiled once.
const Part& shared_part(Expression expression) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Part>> all;
  auto made = std::make_unique<const Part>(std::move(expression));
  const std::lock_guard<std::mutex> lock(mutex);
  return *all.try_emplace(made->text, std::move(made)).first->second;
}

/// A kernel for gradients, and the source of each wanted input's gradient. A gradient that a sum passes on unchanged
/// needs no kernel; equal gradients are computed once.
struct Backward {
  struct Source {
    bool is_given = false;
    std::size_t at = 0;  ///< index among the given gradients, or among the kernel's results
  };
  const Part* part = nullptr;  ///< null if all are given
  std::vector<Source> sources{};
};

Backward backward_of(Expression gradient, std::size_t given) {
  Backward made;
  std::vector<Stored> distinct;
  for (const auto& result : gradient.results) {
    const auto& [code, operands, number] = gradient.instructions[static_cast<std::size_t>(result.node)];
    const auto input = code == Code::kInput ? static_cast<std::size_t>(number) : given;
    if (input < given && gradient.inputs[input] == result.type) {
      made.sources.push_back({true, input});
      continue;
    }
    const auto same = std::ranges::find_if(
        distinct, [&](const Stored& known) { return known.node == result.node && known.type == result.type; });
    made.sources.push_back({false, static_cast<std::size_t>(same - distinct.begin())});
    if (same == distinct.end()) distinct.push_back(result);
  }
  gradient.results = distinct;
  if (!distinct.empty()) made.part = &shared_part(std::move(gradient));
  return made;
}

/// A forward that keeps the values for backward, and the backwards.
struct Differentiated {
  std::vector<Kept> kept;
  const Part* forward = nullptr;        ///< results, then kept values that are neither input nor result
  std::map<Mask, Backward> backward{};  ///< keyed by the results that have gradients
};

/// A program, and everything that is derived from it.
class Joined {
 public:
  explicit Joined(const std::string& text) : program_(program_of(text)), expression_(expression_of(program_)) {
    for (const auto& input : program_.inputs) full_.push_back(input.is_full);
    if (expression_) plain_ = &shared_part(*expression_);
  }

  [[nodiscard]] const Program& program() const { return program_; }
  /// The forward that keeps nothing; null if there is no expression.
  [[nodiscard]] const Part* plain() const { return plain_; }

  [[nodiscard]] const Differentiated& differentiated(const Mask& wanted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return at(wanted);
  }
  [[nodiscard]] const Backward& backward(const Mask& wanted, const Mask& given) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& of = at(wanted);
    const auto [found, is_new] = of.backward.try_emplace(given);
    if (is_new) {
      const auto count = static_cast<std::size_t>(std::ranges::count(given, true));
      found->second = backward_of(gradient_of(*expression_, of.kept, wanted, given), count);
    }
    return found->second;
  }

 private:
  Differentiated& at(const Mask& wanted) {
    AUTOPAR_ASSERT(expression_.has_value(), "a point-wise program without an expression has no gradient");
    const auto [found, is_new] = differentiated_.try_emplace(wanted);
    auto& made = found->second;
    if (!is_new) return made;
    made.kept = values_to_keep(*expression_, wanted, full_);
    auto forward = *expression_;
    for (const auto& kept : made.kept)
      if (kept.input < 0 && kept.result < 0) forward.results.push_back(kept.value);
    made.forward = &shared_part(std::move(forward));
    return made;
  }

  Program program_;
  std::optional<Expression> expression_;
  Mask full_;
  const Part* plain_ = nullptr;
  std::mutex mutex_;
  std::map<Mask, Differentiated> differentiated_;
};

Joined& joined_of(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Joined>, std::less<>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto known = all.find(text); known != all.end()) return *known->second;
  std::string own(text);
  auto made = std::make_unique<Joined>(own);
  return *all.try_emplace(std::move(own), std::move(made)).first->second;
}

enum class By { kKernels, kExpressions };

std::vector<std::int64_t> sizes_of(at::TensorList inputs) {
  std::vector<std::int64_t> sizes;
  for (const auto& input : inputs) sizes = at::infer_size(sizes, input.sizes());
  return sizes;
}

/// Strides of the results, as libtorch's operators choose them: from the first operand that has all sizes.
std::vector<std::int64_t> strides_of(at::TensorList inputs, const std::vector<std::int64_t>& sizes) {
  for (const auto& input : inputs) {
    if (input.sizes() != at::IntArrayRef(sizes)) continue;
    if (input.is_non_overlapping_and_dense()) return input.strides().vec();
    return at::infer_dense_strides(sizes, input.strides());
  }
  const auto strides = c10::contiguous_strides(sizes);
  return {strides.begin(), strides.end()};
}

bool launch(const Part& part, std::vector<Tensor> tensors, const std::vector<std::int64_t>& sizes) {
  Cover made;
  if (!cover(tensors, sizes, part.pack, made)) return false;
  constexpr unsigned kThreads = 256;
  const auto blocks = (made.places.packs + kThreads - 1) / kThreads;
  detail::launch(tensors.front(), part.source(), made.in_packs ? "pointwise_packs" : "pointwise_elements",
                 {blocks, 1, kThreads, 1}, made.addresses, made.places);
  return true;
}

bool has_kernels(const Part& part, const Tensor& on) {
  return on.is_cuda() && devices::context_of(on.device().type()).has_kernels(part.source(), on.device().index());
}

/// Results of `sizes`, by a kernel if there is one, otherwise by libtorch's operators.
variable_list computed(const Part& part, const variable_list& inputs, const std::vector<std::int64_t>& sizes, By by) {
  if (by == By::kKernels && has_kernels(part, inputs.front())) {
    const auto strides = strides_of(inputs, sizes);
    auto tensors = inputs;
    variable_list results;
    for (const auto& result : part.expression.results) {
      results.push_back(at::empty_strided(sizes, strides, inputs.front().options().dtype(result.type)));
      tensors.push_back(results.back());
    }
    if (launch(part, tensors, sizes)) return results;
  }
  return evaluate(part.expression, inputs);
}

/// Data of a forward that its backward needs, besides tensors.
struct Call : torch::CustomClassHolder {
  Joined* joined;
  Mask wanted;  ///< by input
  By by;
  std::vector<std::int64_t> sizes{};                   ///< sizes of the results
  std::vector<std::vector<std::int64_t>> of_inputs{};  ///< sizes of the inputs

  Call(Joined* of, Mask inputs, By how) : joined(of), wanted(std::move(inputs)), by(how) {}
};

struct PointwiseFunction : torch::autograd::Function<PointwiseFunction> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, const c10::intrusive_ptr<Call>& call) {
    const auto& derived = call->joined->differentiated(call->wanted);
    call->sizes = sizes_of(inputs);
    for (const auto& input : inputs) call->of_inputs.push_back(input.sizes().vec());
    auto results = computed(*derived.forward, inputs.vec(), call->sizes, call->by);
    const auto count = call->joined->program().results.size();
    auto between = count;
    variable_list saved;
    for (const auto& kept : derived.kept) {
      if (kept.input >= 0)
        saved.push_back(inputs[static_cast<std::size_t>(kept.input)]);
      else
        saved.push_back(results[kept.result >= 0 ? static_cast<std::size_t>(kept.result) : between++]);
    }
    results.resize(count);
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    autopar::detail::refuse_double_backward("joined point-wise operators");
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    variable_list made(call.wanted.size() + 1), inputs;
    Mask given;
    for (const auto& gradient : gradients) {
      given.push_back(gradient.defined());
      if (gradient.defined()) inputs.push_back(gradient);
    }
    if (inputs.empty()) return made;
    const auto saved = context->get_saved_variables();
    inputs.insert(inputs.end(), saved.begin(), saved.end());
    const auto& [part, sources] = call.joined->backward(call.wanted, given);
    const auto all = part == nullptr ? variable_list() : computed(*part, inputs, call.sizes, call.by);
    auto source = sources.begin();
    for (std::size_t i = 0; i < call.wanted.size(); ++i) {
      if (!call.wanted[i]) continue;
      made[i] = at::sum_to(source->is_given ? inputs[source->at] : all[source->at], call.of_inputs[i]);
      ++source;
    }
    return made;
  }
};

variable_list differentiable(Joined& joined, at::TensorList inputs, By by) {
  Mask wanted;
  for (const auto& input : inputs) wanted.push_back(at::GradMode::is_enabled() && input.requires_grad());
  if (std::ranges::none_of(wanted, [](bool is) { return is; }))
    return computed(*joined.plain(), inputs.vec(), sizes_of(inputs), by);
  return PointwiseFunction::apply(inputs, c10::make_intrusive<Call>(&joined, std::move(wanted), by));
}

/// Whether all inputs are on one device that has the kernels, and have the types that the kernels read.
bool takes_kernels(const Joined& joined, at::TensorList inputs) {
  if (joined.plain() == nullptr || inputs.empty() || inputs.size() != joined.program().inputs.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = inputs[i];
    if (input.device() != inputs.front().device() || input.numel() == 0 ||
        input.scalar_type() != joined.program().inputs[i].type)
      return false;
  }
  return has_kernels(*joined.plain(), inputs.front());
}

std::optional<std::vector<Tensor>> joined_in_kernels(at::TensorList inputs, std::string_view text) {
  auto& joined = joined_of(text);
  if (!takes_kernels(joined, inputs)) return std::nullopt;
  return differentiable(joined, inputs, By::kKernels);
}

std::vector<Tensor> joined_of_libtorch(at::TensorList inputs, std::string_view text) {
  return run(joined_of(text).program(), inputs);
}

/// Where no kernels run the operators, each of them may keep its result.
SavedBytes saved_by_joined(const OpCall& op) {
  SavedBytes saved;
  const auto inputs = op.tensors();
  const auto elements_of_all = ops::elements(op.sizes(op.results().front()));
  const auto& text = op.node().args[PointwiseArgument::kProgram].toStringRef();
  if (op.on_cuda()) {
    std::vector<bool> wanted;
    for (const auto input : inputs) wanted.push_back(op.graph().value(input).has_gradient());
    for (const auto& kept : kept_by(text, wanted)) {
      if (kept.input >= 0)
        saved.values.push_back(inputs[static_cast<std::size_t>(kept.input)]);
      else if (kept.result >= 0)
        saved.values.push_back(op.results()[static_cast<std::size_t>(kept.result)]);
      else
        saved.internal += elements_of_all * static_cast<double>(c10::elementSize(kept.value.type));
    }
    return saved;
  }
  saved.values = inputs;
  saved.values.insert(saved.values.end(), op.results().begin(), op.results().end());
  double between = 0;
  for (const auto& step : program_of(text).steps) between += double(c10::elementSize(step.type));
  for (const auto value : op.results()) between -= double(c10::elementSize(op.graph().value(value).dtype));
  saved.internal = elements_of_all * between;
  return saved;
}

OpDef cost_of_joined() {
  auto def = ops::definition_of_pointwise();
  def.name = kJoinedPointwise;
  def.saved = SavedTensors::kInput;
  def.saved_by = saved_by_joined;
  return def;
}

}  // namespace

const std::vector<Kept>& kept_by(const std::string& text, const std::vector<bool>& wanted) {
  return joined_of(text).differentiated(wanted).kept;
}

std::vector<kernels::KernelSource> kernels_of(const OpGraph& graph) {
  std::vector<kernels::KernelSource> sources;
  const auto add = [&](const Part* part) {
    const auto is_same = [&](const kernels::KernelSource& source) { return source.text == part->source().text; };
    if (std::ranges::none_of(sources, is_same)) sources.push_back(part->source());
  };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& node = graph.ops[i];
    if (!graph.is(OpId::of(i), kJoinedPointwise)) continue;
    auto& joined = joined_of(node.args[PointwiseArgument::kProgram].toStringRef());
    if (joined.plain() == nullptr) continue;
    add(joined.plain());
    Mask wanted;
    for_each_input(node,
                   [&](ValueId value) { wanted.push_back(node.grad_enabled && graph.value(value).has_gradient()); });
    if (std::ranges::none_of(wanted, [](bool is) { return is; })) continue;
    add(joined.differentiated(wanted).forward);
    const auto* backward = joined.backward(wanted, Mask(joined.program().results.size(), true)).part;
    if (backward != nullptr) add(backward);
  }
  return sources;
}

std::vector<Tensor> call_by_expressions(at::TensorList inputs, const std::string& text) {
  return differentiable(joined_of(text), inputs, By::kExpressions);
}

}  // namespace autopar::fused::pointwise

namespace autopar::fused {

FusedOp joined_pointwise() {
  return {.name = kJoinedPointwise,
          .schema = "pointwise(Tensor[] inputs, str program) -> Tensor[]",
          .pattern = pointwise::fold_pointwise,
          .cost = pointwise::cost_of_joined,
          .forward = or_reference<pointwise::joined_in_kernels, pointwise::joined_of_libtorch>,
          .reference = boxed<pointwise::joined_of_libtorch>};
}

}  // namespace autopar::fused
