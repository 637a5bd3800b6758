#include <autopar/testing_torch/op_laws.hpp>

#include <torch/library.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/torch/op_def.hpp>

namespace autopar::test {
namespace op_laws_test {

using testing::check_op_laws;
using testing::LawBroken;
using testing::OpExample;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

// ---------------------------------------------------------------- kernels, and what autograd keeps for them

/// y = softmax of the last dim; keeps y.
struct Rows : torch::autograd::Function<Rows> {
  static Tensor kernel(const Tensor& x) { return x.softmax(-1); }
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    auto y = kernel(x);
    context->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradient) {
    const auto y = context->get_saved_variables()[0], g = gradient[0] * y;
    return {g - y * g.sum(-1, true)};
  }
};

/// y = x^3; keeps x.
struct Cube : torch::autograd::Function<Cube> {
  static Tensor kernel(const Tensor& x) { return x * x * x; }
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return kernel(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradient) {
    const auto x = context->get_saved_variables()[0];
    return {gradient[0] * 3 * x * x};
  }
};

/// y = x / (1 + |x|); keeps x and 1 + |x|, which is neither operand nor result.
struct Soft : torch::autograd::Function<Soft> {
  static Tensor kernel(const Tensor& x) { return x / (x.abs() + 1); }
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const auto below = x.abs() + 1;
    context->save_for_backward({x, below});
    return x / below;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradient) {
    const auto below = context->get_saved_variables()[1];
    return {gradient[0] / (below * below)};
  }
};

/// y = x less the mean of all samples.
struct Centred : torch::autograd::Function<Centred> {
  static Tensor kernel(const Tensor& x) { return x - x.mean(0, true); }
  static Tensor forward(AutogradContext*, const Tensor& x) { return kernel(x); }
  static variable_list backward(AutogradContext*, const variable_list& gradient) { return {kernel(gradient[0])}; }
};

/// y = x, whose gradient is less the mean of all samples.
struct CentredGradient : torch::autograd::Function<CentredGradient> {
  static Tensor kernel(const Tensor& x) { return x.clone(); }
  static Tensor forward(AutogradContext*, const Tensor& x) { return kernel(x); }
  static variable_list backward(AutogradContext*, const variable_list& gradient) {
    return {Centred::kernel(gradient[0])};
  }
};

/// y = a + b.
struct Sum : torch::autograd::Function<Sum> {
  static Tensor kernel(const Tensor& a, const Tensor& b) { return a + b; }
  static Tensor forward(AutogradContext*, const Tensor& a, const Tensor& b) { return kernel(a, b); }
  static variable_list backward(AutogradContext*, const variable_list& gradient) { return {gradient[0], gradient[0]}; }
};

/// y = x times the transposed weight, plus bias; keeps x and weight.
struct Layer : torch::autograd::Function<Layer> {
  static Tensor kernel(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const auto product = x.matmul(weight.t());
    return bias ? product + *bias : product;
  }
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return kernel(x, weight, bias);
  }
  static Tensor rows(const Tensor& x) { return x.flatten(0, -2); }
  static Tensor of_x(const Tensor& gradient, const Tensor& weight) { return gradient.matmul(weight); }
  static Tensor of_weight(const Tensor& gradient, const Tensor& x) { return rows(gradient).t().mm(rows(x)); }
  static Tensor of_bias(const Tensor& gradient) { return rows(gradient).sum(0); }
  static variable_list backward(AutogradContext* context, const variable_list& gradient) {
    const auto saved = context->get_saved_variables();
    const auto bias = context->saved_data["has_bias"].toBool() ? of_bias(gradient[0]) : Tensor();
    return {of_x(gradient[0], saved[1]), of_weight(gradient[0], saved[0]), bias};
  }
};

template <class Function>
Tensor with_history(const Tensor& x) {
  return Function::apply(x);
}
Tensor sum_with_history(const Tensor& a, const Tensor& b) { return Sum::apply(a, b); }
Tensor layer_with_history(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return Layer::apply(x, weight, bias);
}
Tensor form_of_layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>&) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options());
}

TORCH_LIBRARY(op_laws_test, library) {
  const auto def = [&](const std::string& name, const std::string& arguments, auto kernel, auto history) {
    library.def((name + "(" + arguments + ") -> Tensor").c_str());
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, history));
  };
  for (const auto* name : {"rows", "rows_shards"}) def(name, "Tensor x", Rows::kernel, with_history<Rows>);
  for (const auto* name : {"cube", "cube_sizes", "cube_type", "cube_nothing", "cube_flops", "cube_workspace",
                           "cube_falling", "cube_unknown", "cube_results", "cube_units"})
    def(name, "Tensor x", Cube::kernel, with_history<Cube>);
  for (const auto* name : {"soft", "soft_kept"}) def(name, "Tensor x", Soft::kernel, with_history<Soft>);
  for (const auto* name : {"centred", "centred_mixed"}) def(name, "Tensor x", Centred::kernel, with_history<Centred>);
  def("centred_gradient", "Tensor x", CentredGradient::kernel, with_history<CentredGradient>);
  for (const auto* name : {"offset", "offset_unweighed"})
    def(name, "Tensor a, Tensor b", Sum::kernel, sum_with_history);
  const std::string of_layer = "Tensor x, Tensor weight, Tensor? bias";
  for (const auto* name :
       {"layer_biases", "layer_input", "layer_weights", "layer_sums", "layer_unsummed", "layer_dropped"})
    def(name, of_layer, Layer::kernel, layer_with_history);
  // As a user's library has them: a kernel of each kind.
  library.def(("layer(" + of_layer + ") -> Tensor").c_str());
  library.impl("layer", torch::dispatch(c10::DispatchKey::CPU, Layer::kernel));
  library.impl("layer", torch::dispatch(c10::DispatchKey::Meta, form_of_layer));
  library.impl("layer", torch::dispatch(c10::DispatchKey::Autograd, layer_with_history));
  // Of which there is nothing below autograd.
  library.def(("layer_above(" + of_layer + ") -> Tensor").c_str());
  library.impl("layer_above", torch::dispatch(c10::DispatchKey::Autograd, layer_with_history));
}

// ---------------------------------------------------------------- definitions

std::string name_of(const std::string& op) { return "op_laws_test::" + op; }

OpDef pointwise_def(const std::string& op) {
  OpDef def;
  def.name = name_of(op);
  def.over_samples = ops::pointwise;
  def.saved = SavedTensors::kInput;
  def.sharding = ops::shard_pointwise;
  return def;
}

/// A shape rule that gives other sizes and element types than the kernel.
std::function<void(torch::jit::Stack&)> shapes_of(std::int64_t wider, at::ScalarType type) {
  return [=](torch::jit::Stack& stack) {
    const auto x = stack.back().toTensor();
    auto sizes = x.sizes().vec();
    sizes.back() += wider;
    stack.back() = at::empty(sizes, x.options().dtype(type));
  };
}

ShardedOp shard_layer(ShardCall& call) {
  const auto& op = call.op();
  const auto x = op.tensor("x"), weight = op.tensor("weight"), bias = op.tensor("bias");
  const auto last = op.rank(x) - 1;
  if (call.is_sharded(weight) && call.slices(weight).dim == 0) {
    const bool fits = !bias.valid() || call.require(bias, 0, call.slices(weight));
    return fits ? call.of_one(call.slices(weight).at_dim(last)) : ShardedOp::whole();
  }
  const bool by_inputs = call.is_sharded(weight) || (call.is_sharded(x) && call.slices(x).dim == last);
  if (!by_inputs || call.is_sharded(bias)) return ShardedOp::whole();
  const auto units = call.is_sharded(weight) ? call.slices(weight) : call.slices(x);
  if (!call.require(x, last, units) || !call.require(weight, 1, units)) return ShardedOp::whole();
  return call.sum(bias.valid() ? ShardedOp::Kernel::kBiasOnce : ShardedOp::Kernel::kAsItIs);
}

BackwardParts parts_of_layer() {
  BackwardParts parts;
  parts.input = [](const Tensor& gradient, const Tensor&, const Tensor& weight) {
    return Layer::of_x(gradient, weight);
  };
  parts.weights = [](const Tensor& gradient, const Tensor& x, const Tensor&, bool with_bias) {
    Tensors gradients{Layer::of_weight(gradient, x)};
    if (with_bias) gradients.push_back(Layer::of_bias(gradient));
    return gradients;
  };
  parts.add_weights = [](const Tensor& gradient, const Tensor& x, const Tensor&, const Tensors& sums) {
    sums[0].add_(Layer::of_weight(gradient, x));
    if (sums.size() > 1) sums[1].add_(Layer::of_bias(gradient));
  };
  return parts;
}

OpDef layer_def(const std::string& op, const BackwardParts& parts = parts_of_layer()) {
  OpDef def;
  def.name = name_of(op);
  def.over_samples = ops::samples_first(1);
  def.op_class = OpClass::kMatmul;
  def.flops = [](const OpCall& call) {
    const auto& sizes = call.sizes(call.tensor("weight"));
    const auto& rows = call.sizes(call.tensor("x"));
    double a_sample = 2;
    for (const auto size : sizes) a_sample *= static_cast<double>(size.fixed);
    for (std::size_t dim = 1; dim + 1 < rows.size(); ++dim) a_sample *= static_cast<double>(rows[dim].fixed);
    return std::optional(Affine{a_sample, 0});
  };
  def.saved = SavedTensors::kInputs;
  def.sharding = shard_layer;
  def.layer = LayerForm{.weight = 1, .outputs = 0, .bias = 2, .always = true};
  def.split_backward = [parts](const OpNode&) { return std::optional(parts); };
  return def;
}

OpDef offset_def(const std::string& op, bool weighs) {
  auto def = pointwise_def(op);
  def.saved = SavedTensors::kNothing;
  def.over_sums = [weighs](const OpCall& call) {
    BatchTyping typing;
    typing.verdict = Verdict::kTyped;
    typing.outputs.assign(call.results().size(), BatchType::partial_sum());
    if (weighs) typing.handling.weighted_arguments = {1};
    return typing;
  };
  return def;
}

void register_right() {
  auto rows = pointwise_def("rows");
  rows.over_samples = ops::samples_first(1);
  rows.saved = SavedTensors::kResult;
  rows.sharding = nullptr;
  register_op(rows);
  register_op(pointwise_def("cube"));
  auto soft = pointwise_def("soft");
  soft.saved_by = [](const OpCall& op) {
    Affine bytes{sizeof(double), 0};
    for (const auto size : op.result_sizes())
      bytes = bytes * static_cast<double>(std::max(size.fixed, size.per_sample));
    return SavedBytes{{op.first_tensor()}, bytes};
  };
  register_op(soft);
  auto centred = pointwise_def("centred_mixed");
  centred.over_samples = [](const OpCall&) { return BatchTyping::mixes("it takes the mean over samples"); };
  register_op(centred);
  register_op(offset_def("offset", /*weighs=*/true));
  register_op(layer_def("layer"));
}

void register_wrong_costs() {
  auto nothing = pointwise_def("cube_nothing");
  nothing.saved = SavedTensors::kNothing;
  register_op(nothing);
  register_op(pointwise_def("soft_kept"));
  auto flops = pointwise_def("cube_flops");
  flops.flops = [](const OpCall&) { return std::optional(Affine{std::numeric_limits<double>::infinity(), 0}); };
  register_op(flops);
  auto falling = pointwise_def("cube_falling");
  falling.flops = [](const OpCall&) { return std::optional(Affine{-2, 100}); };
  register_op(falling);
  auto workspace = pointwise_def("cube_workspace");
  workspace.workspace = [](const OpCall&) { return OpWorkspace{{}, {8, -100}}; };
  register_op(workspace);
}

void register_wrong_shards() {
  auto rows = pointwise_def("rows_shards");  // a softmax needs its whole dim
  rows.over_samples = ops::samples_first(1);
  rows.saved = SavedTensors::kResult;
  register_op(rows);
  auto biases = layer_def("layer_biases");  // each shard adds the bias
  biases.sharding = [](ShardCall& call) {
    auto rule = shard_layer(call);
    if (rule.kernel == ShardedOp::Kernel::kBiasOnce) rule.kernel = ShardedOp::Kernel::kAsItIs;
    return rule;
  };
  register_op(biases);
  auto dropped = layer_def("layer_dropped");  // a bias that the call does not have
  dropped.sharding = [](ShardCall& call) {
    auto rule = shard_layer(call);
    if (rule.in_slices && rule.results.front().is_partial()) rule.kernel = ShardedOp::Kernel::kBiasOnce;
    return rule;
  };
  register_op(dropped);
  auto results = pointwise_def("cube_results");
  results.sharding = [](ShardCall& call) { return call.with({}); };
  register_op(results);
  auto units = pointwise_def("cube_units");
  units.sharding = [](ShardCall& call) { return call.of_one(call.slices(call.sharded().front()).times(2)); };
  register_op(units);
}

void register_wrong_parts() {
  auto input = parts_of_layer();
  input.input = [](const Tensor& gradient, const Tensor&, const Tensor& weight) {
    return Layer::of_x(gradient, weight) * 2;
  };
  register_op(layer_def("layer_input", input));
  auto weights = parts_of_layer();
  weights.weights = [make = weights.weights](const Tensor& gradient, const Tensor& x, const Tensor& weight, bool) {
    return make(gradient, x, weight, false);
  };
  register_op(layer_def("layer_weights", weights));
  auto sums = parts_of_layer();
  sums.add_weights = [](const Tensor& gradient, const Tensor& x, const Tensor&, const Tensors& of) {
    of[0].copy_(Layer::of_weight(gradient, x));
  };
  register_op(layer_def("layer_sums", sums));
  auto unsummed = parts_of_layer();
  unsummed.add_weights = nullptr;
  register_op(layer_def("layer_unsummed", unsummed));
  register_op(layer_def("layer_above"));
}

/// Before the first capture of the process.
const bool kRegistered = [] {
  register_right();
  register_wrong_costs();
  register_wrong_shards();
  register_wrong_parts();
  auto sizes = pointwise_def("cube_sizes");
  sizes.shapes = shapes_of(1, at::kDouble);
  register_op(sizes);
  auto type = pointwise_def("cube_type");
  type.shapes = shapes_of(0, at::kFloat);
  register_op(type);
  for (const auto* name : {"centred", "centred_gradient"}) {
    auto def = pointwise_def(name);
    def.sharding = nullptr;
    register_op(def);
  }
  register_op(offset_def("offset_unweighed", /*weighs=*/false));
  return true;
}();

// ---------------------------------------------------------------- examples

template <class... Arguments>
Tensor call_op(const std::string& op, const Arguments&... arguments) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name_of(op).c_str(), "");
  torch::jit::Stack stack;
  (stack.emplace_back(arguments), ...);
  handle.callBoxed(&stack);
  return stack[0].toTensor();
}

Tensor numbers(const std::vector<std::int64_t>& sizes) {
  torch::manual_seed(5);
  return torch::randn(sizes, torch::kDouble);
}

OpExample unary(const std::string& op) {
  return {.samples = {numbers({6, 4, 8})}, .shared = {}, .call = [op](const Tensors& in, const Tensors&) {
            return Tensors{call_op(op, in[0] * 1)};
          }};
}

OpExample of_sum(const std::string& op) {
  return {.samples = {numbers({6, 4})}, .shared = {numbers({4})}, .call = [op](const Tensors& in, const Tensors& own) {
            return Tensors{call_op(op, in[0].sum(0), own[0])};
          }};
}

OpExample of_layer(const std::string& op, bool with_bias = true) {
  OpExample example{.samples = {numbers({6, 3, 4})}, .shared = {numbers({5, 4})}, .call = {}};
  if (with_bias) example.shared.push_back(numbers({5}));
  example.call = [op](const Tensors& in, const Tensors& own) {
    const auto bias = own.size() > 1 ? std::optional(own[1]) : std::nullopt;
    return Tensors{call_op(op, in[0].tanh(), own[0], bias).relu()};
  };
  return example;
}

/// The law that is broken, and words of what was found.
void check_found(const std::string& op, const OpExample& example, const std::string& law,
                 const std::vector<std::string>& words) {
  INFO(op);
  try {
    check_op_laws(name_of(op), example);
    FAIL_CHECK("no law is broken");
  } catch (const LawBroken& broken) {
    INFO(broken.what());
    CHECK_THAT(broken.law(), Catch::Matchers::Contains(law));
    CHECK(broken.seed() == 0);
    CHECK_THAT(broken.what(), Catch::Matchers::Contains(name_of(op) + ", samples [6, "));
    for (const auto& each : words) CHECK_THAT(broken.what(), Catch::Matchers::Contains(each));
  }
}

void check_refused(const std::string& op, const OpExample& example, const std::string& words) {
  INFO(op);
  CHECK_THROWS_MATCHES(check_op_laws(name_of(op), example), InvalidArgument,
                       Catch::Matchers::Predicate<InvalidArgument>([&](const InvalidArgument& error) {
                         UNSCOPED_INFO(error.what());
                         return std::string(error.what()).find(words) != std::string::npos;
                       }));
}

// ---------------------------------------------------------------- the laws

TEST_CASE("check_op_laws: correct definitions pass", "[op_laws]") {
  REQUIRE(kRegistered);
  const auto rows = check_op_laws(name_of("rows"), unary("rows"));
  CHECK(rows.splits);
  CHECK_FALSE(rows.shards);
  CHECK_FALSE(rows.splits_backward);
  for (const auto* name : {"cube", "soft"}) {
    const auto pointwise = check_op_laws(name_of(name), unary(name));
    CHECK(pointwise.splits);
    CHECK(pointwise.shards);
  }
  CHECK_FALSE(check_op_laws(name_of("centred_mixed"), unary("centred_mixed")).splits);
  CHECK(check_op_laws(name_of("offset"), of_sum("offset")).splits);
  for (const bool with_bias : {false, true}) {
    const auto layer = check_op_laws(name_of("layer"), of_layer("layer", with_bias));
    CHECK(layer.splits);
    CHECK(layer.shards);
    CHECK(layer.splits_backward);
  }
  CHECK(check_op_laws(name_of("layer_unsummed"), of_layer("layer_unsummed")).splits_backward);
}

TEST_CASE("check_op_laws: operators of libtorch pass", "[op_laws]") {
  const auto linear =
      check_op_laws("aten::linear",
                    {{numbers({6, 3, 4})}, {numbers({5, 4}), numbers({5})}, [](const Tensors& in, const Tensors& own) {
                       return Tensors{torch::linear(in[0].sin(), own[0], own[1])};
                     }});
  CHECK(linear.splits);
  CHECK(linear.shards);
  CHECK(linear.splits_backward);
  const auto classes = torch::arange(6) % 3;
  const auto loss = check_op_laws("aten::cross_entropy_loss",
                                  {{numbers({6, 64}), classes}, {}, [](const Tensors& in, const Tensors&) {
                                     return Tensors{torch::nn::functional::cross_entropy(in[0] * 2, in[1])};
                                   }});
  CHECK(loss.splits);
  const auto weights = numbers({64}).abs();
  const auto weighed = check_op_laws("aten::cross_entropy_loss",
                                     {{numbers({6, 64}), classes}, {}, [weights](const Tensors& in, const Tensors&) {
                                        using Options = torch::nn::functional::CrossEntropyFuncOptions;
                                        const auto options = Options().weight(weights).ignore_index(1);
                                        return Tensors{torch::nn::functional::cross_entropy(in[0] * 2, in[1], options)};
                                      }});
  CHECK(weighed.splits);
  const auto norm_of_all = check_op_laws("aten::sqrt", {{numbers({6, 16})}, {}, [](const Tensors& in, const Tensors&) {
                                                          return Tensors{(in[0] * in[0]).sum().sqrt() * 3};
                                                        }});
  CHECK(norm_of_all.splits);
  const auto spread = check_op_laws("aten::sub", {{numbers({6, 16})}, {}, [](const Tensors& in, const Tensors&) {
                                                    return Tensors{in[0] - in[0].detach().mean(0)};
                                                  }});
  CHECK(spread.splits);  // the mean is known before
  const auto by_slice = check_op_laws(
      "aten::batch_norm", {{numbers({6, 16})}, {}, [](const Tensors& in, const Tensors&) {
                             return Tensors{torch::batch_norm(in[0] * 2, {}, {}, {}, {}, true, 0.1, 1e-5, false)};
                           }});
  CHECK_FALSE(by_slice.splits);
  const auto picked = check_op_laws(
      "aten::embedding",
      {{torch::arange(12).view({6, 2}) % 5}, {numbers({5, 4})}, [](const Tensors& in, const Tensors& own) {
         return Tensors{torch::embedding(own[0], in[0])};
       }});
  CHECK(picked.splits);
  CHECK(picked.splits_backward);
}

TEST_CASE("check_op_laws: finds a wrong shape rule", "[op_laws]") {
  const std::string law = "captured results have the sizes and the element types of real ones";
  check_found("cube_sizes", unary("cube_sizes"), law, {"result 0 of 4 samples is [4, 4, 8] Double", "Double[B, 4, 9]"});
  check_found("cube_type", unary("cube_type"), law, {"result 0 of 4 samples is [4, 4, 8] Double", "Float[B, 4, 8]"});
}

TEST_CASE("check_op_laws: finds a split rule that mixes samples", "[op_laws]") {
  const std::string law = "slices of the batch give what the whole batch gives";
  check_found("centred", unary("centred"), law, {"in slices of 1 + 5 samples, result 0: max abs difference", "at ["});
  check_found("centred_gradient", unary("centred_gradient"), law,
              {"in slices of 1 + 5 samples, the gradient of samples[0]: max abs difference"});
}

TEST_CASE("check_op_laws: finds a sum rule without weights", "[op_laws]") {
  check_found("offset_unweighed", of_sum("offset_unweighed"), "slices of the batch",
              {"in slices of 1 + 5 samples, result 0: max abs difference", "shared [4] Double"});
}

TEST_CASE("check_op_laws: finds a wrong shard rule", "[op_laws]") {
  const std::string law = "tensor shards give what the whole call gives";
  check_found("rows_shards", unary("rows_shards"), law,
              {"with dim 2 of x in 2 slices, result 0 of shard 0: max abs difference"});
  check_found("layer_biases", of_layer("layer_biases"), law, {"in 2 slices, result 0 of shard 0: max abs difference"});
  check_found("layer_dropped", of_layer("layer_dropped", /*with_bias=*/false), law, {"is of calls with a bias"});
  check_found("cube_results", unary("cube_results"), law, {"0 layouts for 1 results"});
  check_found("cube_units", unary("cube_units"), law, {"do not fit result 0, [6, 4, 8] Double"});
}

TEST_CASE("check_op_laws: finds wrong split backward formulas", "[op_laws]") {
  const std::string law = "the formulas of a split backward give autograd's gradients";
  check_found("layer_input", of_layer("layer_input"), law,
              {"the gradient of x that `input` gives: max abs difference"});
  check_found("layer_weights", of_layer("layer_weights"), law,
              {"the gradient of the bias that `weights` gives: there is none"});
  check_found("layer_sums", of_layer("layer_sums"), law, {"one and what `add_weights` adds for the weight: max abs"});
  check_found("layer_above", of_layer("layer_above"), law, {"below autograd, op_laws_test::layer_above"});
}

TEST_CASE("check_op_laws: finds impossible costs", "[op_laws]") {
  const std::string law = "costs are finite, not negative, and do not fall with the batch";
  check_found("cube_flops", unary("cube_flops"), law, {"the forward's flops are inf a sample"});
  check_found("cube_falling", unary("cube_falling"), law, {"the forward's flops are -2 a sample and 100"});
  check_found("cube_workspace", unary("cube_workspace"), law, {"the backward's bytes of workspace are 8 a sample"});
}

TEST_CASE("check_op_laws: finds undeclared saved tensors", "[op_laws]") {
  const std::string law = "saved bytes cover what the backward holds";
  check_found("cube_nothing", unary("cube_nothing"), law, {"states 0 bytes for 6 samples, and autograd holds 1"});
  check_found("soft_kept", unary("soft_kept"), law, {"states 1536 bytes for 6 samples, and autograd holds "});
}

TEST_CASE("check_op_laws: unsuitable examples are refused", "[op_laws]") {
  check_refused("cube", unary("rows"), "the example does not call it; captured were aten::mul, op_laws_test::rows");
  check_refused("cube_unknown", unary("cube_unknown"), "it has no definition; call ap::register_op");
  check_refused("cube", {}, "the example has no call");
  auto example = unary("cube");
  example.samples = {numbers({4, 8})};
  check_refused("cube", example, "samples of [4, 8] Double; give at least 5");
  example.samples = {numbers({6, 8}), numbers({7, 8})};
  check_refused("cube", example, "give as many in each tensor");
  example.samples = {numbers({6, 8}).to(torch::kFloat)};
  check_refused("cube", example, "one of its tensors is [6, 8] Float; give float64 or integers on the CPU");
  example = unary("cube");
  example.call = [](const Tensors& in, const Tensors&) {
    return Tensors{call_op("cube", torch::dropout(in[0], 0.5, true))};
  };
  check_refused("cube", example, "draws random numbers");
}

}  // namespace op_laws_test
}  // namespace autopar::test
