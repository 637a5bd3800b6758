#include "own_operators.hpp"

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <autopar/torch/op_def.hpp>

namespace own_operators {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

Tensor dense_kernel(const Tensor& x, const Tensor& weight, const Tensor& bias) { return x.matmul(weight.t()) + bias; }
Tensor gated_kernel(const Tensor& x, const Tensor& gate) { return x * gate.sigmoid(); }
Tensor centred_kernel(const Tensor& x) { return x - x.mean(-1, /*keepdim=*/true); }
Tensor square_sum_kernel(const Tensor& x) { return x.square().sum(); }
Tensor mixed_kernel(const Tensor& x) { return x - x.mean(0, /*keepdim=*/true); }

/// Runs the operator's kernel below autograd.
template <class Op, class... Args>
Tensor below(const Op& op, const Args&... args) {
  const at::AutoDispatchBelowADInplaceOrView no_history;
  return op(args...);
}

struct Dense : torch::autograd::Function<Dense> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    context->save_for_backward({x, weight});
    return below(dense, x, weight, bias);
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto rows = gradients[0].reshape({-1, gradients[0].size(-1)});
    const auto inputs = saved[0].reshape({-1, saved[0].size(-1)});
    return {gradients[0].matmul(saved[1]), rows.t().mm(inputs), rows.sum(0)};
  }
};

struct Gated : torch::autograd::Function<Gated> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& gate) {
    context->save_for_backward({x, gate});
    return below(gated, x, gate);
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto open = saved[1].sigmoid();
    const auto of_gate = gradients[0] * saved[0] * open * (1 - open);
    return {gradients[0] * open, at::sum_to(of_gate, saved[1].sizes())};
  }
};

struct Centred : torch::autograd::Function<Centred> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return below(centred, x); }
  static tensor_list backward(AutogradContext*, tensor_list gradients) {
    return {gradients[0] - gradients[0].mean(-1, /*keepdim=*/true)};
  }
};

struct SquareSum : torch::autograd::Function<SquareSum> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return below(square_sum, x);
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return {2 * gradients[0] * context->get_saved_variables()[0]};
  }
};

struct Mixed : torch::autograd::Function<Mixed> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return below(mixed, x); }
  static tensor_list backward(AutogradContext*, tensor_list gradients) {
    return {gradients[0] - gradients[0].mean(0, /*keepdim=*/true)};
  }
};

template <class Function, class... Args>
Tensor differentiated(const Args&... args) {
  return Function::apply(args...);
}

Tensor form_of_dense(const Tensor& x, const Tensor& weight, const Tensor&) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options());
}
Tensor form_of_gated(const Tensor& x, const Tensor&) { return at::empty_like(x); }
Tensor form_of_rows(const Tensor& x) { return at::empty_like(x); }

}  // namespace

TORCH_LIBRARY(own_operators, library) {
  library.def("dense(Tensor x, Tensor weight, Tensor bias) -> Tensor");
  library.def("gated(Tensor x, Tensor gate) -> Tensor");
  library.def("centred(Tensor x) -> Tensor");
  library.def("square_sum(Tensor x) -> Tensor");
  library.def("mixed(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(own_operators, CPU, library) {
  library.impl("dense", dense_kernel);
  library.impl("gated", gated_kernel);
  library.impl("centred", centred_kernel);
  library.impl("square_sum", square_sum_kernel);
  library.impl("mixed", mixed_kernel);
}

TORCH_LIBRARY_IMPL(own_operators, Autograd, library) {
  library.impl("dense", differentiated<Dense, Tensor, Tensor, Tensor>);
  library.impl("gated", differentiated<Gated, Tensor, Tensor>);
  library.impl("centred", differentiated<Centred, Tensor>);
  library.impl("square_sum", differentiated<SquareSum, Tensor>);
  library.impl("mixed", differentiated<Mixed, Tensor>);
}

// `square_sum` has none: its definition gives the form.
TORCH_LIBRARY_IMPL(own_operators, Meta, library) {
  library.impl("dense", form_of_dense);
  library.impl("gated", form_of_gated);
  library.impl("centred", form_of_rows);
  library.impl("mixed", form_of_rows);
}

namespace {

template <class... Args>
Tensor call(const char* name, const Args&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Tensor(const Args&...)>().call(args...);
}

}  // namespace

Tensor dense(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return call("own_operators::dense", x, weight, bias);
}
Tensor gated(const Tensor& x, const Tensor& gate) { return call("own_operators::gated", x, gate); }
Tensor centred(const Tensor& x) { return call("own_operators::centred", x); }
Tensor square_sum(const Tensor& x) { return call("own_operators::square_sum", x); }
Tensor mixed(const Tensor& x) { return call("own_operators::mixed", x); }

namespace {

using autopar::BatchType;
using autopar::BatchTyping;
using autopar::OpCall;
using autopar::ShardCall;
using autopar::ShardedOp;

/// The last dim of x becomes the outputs: samples are in any other.
BatchTyping samples_of_dense(const OpCall& op) {
  const auto x = op.tensor("x");
  const auto& type = op.type(x);
  for (const auto* shared : {"weight", "bias"}) {
    if (op.type(op.tensor(shared)).has_samples()) return BatchTyping::mixes("its weight has samples");
  }
  if (!type.is_batched() || type.dim == op.rank(x) - 1) return BatchTyping::mixes("it multiplies along the batch");
  return autopar::ops::typed(op, type);
}

BatchTyping samples_of_square_sum(const OpCall& op) { return autopar::ops::typed(op, BatchType::partial_sum()); }

std::optional<autopar::Affine> flops_of_dense(const OpCall& op) {
  const auto inputs = static_cast<double>(op.sizes(op.tensor("weight")).back().fixed);
  return autopar::ops::elements(op.result_sizes()) * (2 * inputs);
}

/// By outputs, by inputs, or along the other dims of x.
ShardedOp shards_of_dense(ShardCall& call) {
  const auto& op = call.op();
  const auto x = op.tensor("x"), weight = op.tensor("weight"), bias = op.tensor("bias");
  const auto last = op.rank(x) - 1;
  if (call.is_sharded(weight) && call.slices(weight).dim == 0) {
    const auto& outputs = call.slices(weight);
    const bool fits = !call.is_sharded(x) && call.require(bias, 0, outputs);
    return fits ? call.of_one(outputs.at_dim(last)) : ShardedOp::whole();
  }
  const bool by_inputs = call.is_sharded(weight) || (call.is_sharded(x) && call.slices(x).dim == last);
  if (!by_inputs)
    return call.is_sharded(x) && !call.is_sharded(bias) ? call.of_one(call.slices(x)) : ShardedOp::whole();
  const auto& inputs = call.is_sharded(weight) ? call.slices(weight) : call.slices(x);
  if (call.is_sharded(bias) || !call.require(x, last, inputs) || !call.require(weight, 1, inputs))
    return ShardedOp::whole();
  return call.sum(ShardedOp::Kernel::kBiasOnce);
}

autopar::BackwardParts parts_of_dense() {
  autopar::BackwardParts parts;
  parts.input = [](const Tensor& gradient, const Tensor&, const Tensor& weight) { return gradient.matmul(weight); };
  parts.weights = [](const Tensor& gradient, const Tensor& x, const Tensor& weight, bool with_bias) {
    const auto rows = gradient.reshape({-1, gradient.size(-1)});
    std::vector<Tensor> gradients{rows.t().mm(x.reshape({-1, x.size(-1)})).view(weight.sizes())};  // a view of it
    if (with_bias) gradients.push_back(rows.sum(0));
    return gradients;
  };
  return parts;
}

}  // namespace

void register_all() {
  static std::once_flag once;
  std::call_once(once, [] {
    using autopar::OpDef;
    autopar::register_op({.name = "own_operators::dense",
                          .over_samples = samples_of_dense,
                          .op_class = autopar::OpClass::kMatmul,
                          .flops = flops_of_dense,
                          .saved = autopar::SavedTensors::kInputs,
                          .sharding = shards_of_dense,
                          .layer = autopar::LayerForm{.weight = 1, .bias = 2, .always = true},
                          .split_backward = [](const autopar::OpNode&) { return std::optional(parts_of_dense()); },
                          .autocast = autopar::AutocastRule::kLow});
    autopar::register_op({.name = "own_operators::gated",
                          .version = 2,
                          .kind = autopar::OpKind::kPointwise,
                          .over_samples = autopar::ops::pointwise,
                          .saved = autopar::SavedTensors::kInputs,
                          .sharding = autopar::ops::shard_pointwise,
                          .formula =
                              [](autopar::PointwiseFormula& f) {
                                const auto open = f.make(autopar::PointwiseCode::kSigmoid, f.operand(1));
                                return std::optional(f.product(f.operand(0), open));
                              },
                          .autocast = autopar::AutocastRule::kPromote});
    autopar::register_op({.name = "own_operators::centred",
                          .over_samples = autopar::ops::last_dims(1),
                          .over_sums = autopar::ops::linear_in_one_sum,
                          .saved = autopar::SavedTensors::kNothing,
                          .sharding = autopar::ops::shard_by_dims});
    autopar::register_op({.name = "own_operators::square_sum",
                          .over_samples = samples_of_square_sum,
                          .shapes =
                              [](torch::jit::Stack& stack) {
                                const auto x = stack.back().toTensor();
                                stack.back() = at::empty({}, x.options());
                              },
                          .saved = autopar::SavedTensors::kInput,
                          .autocast = autopar::AutocastRule::kFloat32});
  });
}

Net::Net() {
  register_all();
  const auto made = [&](const char* name, at::IntArrayRef sizes) {
    return register_parameter(name, torch::randn(sizes) / 2);
  };
  up = made("up", {kHidden, kWidth});
  up_bias = made("up_bias", {kHidden});
  gate = made("gate", {kHidden});
  down = made("down", {kWidth, kHidden});
  down_bias = made("down_bias", {kWidth});
  again = made("again", {kWidth, kWidth});
  again_bias = made("again_bias", {kWidth});
}

Tensor Net::forward(const Tensor& x, const Tensor& y) {
  const auto hidden = gated(dense(centred(x), up, up_bias), gate);
  const auto out = dense(torch::tanh(hidden), down, down_bias);
  return square_sum(dense(centred(out), again, again_bias) - y) / 8;
}

}  // namespace own_operators
