#include "torch/parameters/part_guard.hpp"

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <double_precision.hpp>

#include "capture/ir/ivalues.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/part_rules.hpp"

// What may be done with a part of a parameter, and that all of it is right.
namespace part_guard_test {

using namespace autopar;
using Catch::Matchers::Contains;
using torch::Tensor;

constexpr std::int64_t kBegin = 5, kEnd = 17, kWhole = 24;

parameters::PartMarkPtr shard_mark(const std::string& name = "fc.weight", std::int64_t begin = kBegin,
                                   std::int64_t end = kEnd) {
  return c10::make_intrusive<parameters::PartMark>(parameters::PartLayout{parameters::PartLayout::Kind::kShard,
                                                                          name,
                                                                          {4, 6},
                                                                          parameters::ShardSlices(Interval{begin, end}),
                                                                          "is held in shards (ZeRO 1)"});
}

parameters::PartMarkPtr copy_mark() {
  return c10::make_intrusive<parameters::PartMark>(parameters::PartLayout{parameters::PartLayout::Kind::kCopy,
                                                                          "fc.bias",
                                                                          {kWhole},
                                                                          parameters::ShardSlices(Interval{0, kWhole}),
                                                                          "has copies on ranks 0, 1"});
}

Tensor part_of_whole(const Tensor& whole) { return whole.reshape({kWhole}).slice(0, kBegin, kEnd).clone(); }

Tensor shard(const Tensor& whole, const parameters::PartMarkPtr& mark = shard_mark()) {
  const auto part = part_of_whole(whole);
  parameters::set_mark(part, mark);
  return part;
}

Tensor numbers() { return torch::linspace(-1, 2, kWhole, torch::kDouble).sin(); }

bool is_part(const Tensor& tensor) {
  return parameters::layout_of(tensor) != nullptr && parameters::layout_of(tensor)->is_part();
}

bool equal_numbers(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         torch::allclose(a, b, /*rtol=*/1e-13, /*atol=*/1e-13, /*equal_nan=*/true);
}

// ---------------------------------------------------------------- all operators

/// Tensors of a kind for an operator's arguments.
Tensor operand(c10::ScalarType type, int number) {
  const auto base = torch::linspace(0.1 + 0.05 * number, 0.9, kWhole, torch::kDouble);
  if (type == torch::kLong) return (base * 10).to(type);
  if (type == torch::kBool) return base > 0.5;
  if (type == torch::kComplexDouble) return torch::complex(base, base.flip(0));
  return base;
}

/// Arguments that fit the schema, with whole tensors; nothing if some cannot be made.
std::optional<torch::jit::Stack> arguments_for(const c10::FunctionSchema& schema, c10::ScalarType type) {
  torch::jit::Stack stack;
  int tensors = 0;
  for (const auto& argument : schema.arguments()) {
    const auto kind = argument.type()->kind();
    if (kind == c10::TypeKind::TensorType) {
      stack.emplace_back(operand(type, tensors++));
    } else if (argument.type()->str() == "Tensor[]") {
      stack.emplace_back(std::vector<Tensor>{operand(type, tensors), operand(type, tensors + 1)});
      tensors += 2;
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (kind == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else if (kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType) {
      stack.emplace_back(type == torch::kLong ? c10::IValue(2) : c10::IValue(0.5));
      if (kind == c10::TypeKind::FloatType) stack.back() = c10::IValue(0.5);
    } else if (kind == c10::TypeKind::IntType) {
      stack.emplace_back(1);
    } else if (kind == c10::TypeKind::BoolType) {
      stack.emplace_back(false);
    } else if (argument.type()->str() == "Scalar[]") {
      c10::List<at::Scalar> scalars({at::Scalar(0.5), at::Scalar(0.25)});
      stack.emplace_back(std::move(scalars));
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

/// The same arguments with parts in place of whole tensors: those of the first argument, or all, are marked.
torch::jit::Stack in_parts(const torch::jit::Stack& whole, bool all, const parameters::PartMarkPtr& mark) {
  bool first = true;
  const auto made = [&](const Tensor& tensor) {
    const auto part = part_of_whole(tensor);
    if (all || first) parameters::set_mark(part, mark);
    return part;
  };
  torch::jit::Stack stack;
  for (const auto& value : whole) {
    if (value.isTensor()) {
      stack.emplace_back(made(value.toTensor()));
      first = false;
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(made(tensor));
      first = false;
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  return stack;
}

torch::jit::Stack copy_of(const torch::jit::Stack& stack) {
  torch::jit::Stack copy;
  for (const auto& value : stack) {
    if (value.isTensor()) {
      copy.emplace_back(value.toTensor().clone());
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(tensor.clone());
      copy.emplace_back(std::move(list));
    } else {
      copy.push_back(value);
    }
  }
  return copy;
}

std::vector<Tensor> tensors_in(const torch::jit::Stack& stack) {
  std::vector<Tensor> tensors;
  autopar::ir::for_each_tensor(stack, 0, [&](const Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  });
  return tensors;
}

struct Outcome {
  enum class Kind { kDoesNotRun, kRefused, kRight, kWrong } kind = Kind::kDoesNotRun;
  std::string what{};
};

/// Runs an operator on whole tensors and on parts.
Outcome compare(const c10::OperatorHandle& op, c10::ScalarType type, bool all) {
  const auto arguments = arguments_for(op.schema(), type);
  if (!arguments || tensors_in(*arguments).empty()) return {};
  auto whole = copy_of(*arguments);
  const auto whole_operands = whole;
  const bool is_refused =
      parameters::part_rule(op).use == parameters::PartUse::kWhole;  // kernels may be for sizes that these tensors lack
  try {
    if (!is_refused) op.callBoxed(&whole);
    for (const auto& made : tensors_in(whole)) static_cast<void>(made.clone());  // some views cannot be read
  } catch (const std::exception&) {
    return {};
  }
  auto parts = in_parts(*arguments, all, shard_mark());
  const auto part_operands = parts;
  try {
    op.callBoxed(&parts);
  } catch (const InvalidArgument& refusal) {
    return {Outcome::Kind::kRefused, refusal.what()};
  }
  if (is_refused) return {Outcome::Kind::kWrong, "it is not refused"};
  auto expected = tensors_in(whole), found = tensors_in(parts);
  for (const auto& written : tensors_in(whole_operands)) expected.push_back(written);
  for (const auto& written : tensors_in(part_operands)) found.push_back(written);
  if (expected.size() != found.size()) return {Outcome::Kind::kWrong, "another number of results"};
  const auto results = found.size() - tensors_in(part_operands).size();
  if (results == 0 && op.schema().returns().size() > 0) return {Outcome::Kind::kWrong, "it tells of elements"};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const parameters::PartAccess access;
    if (expected[i].numel() != kWhole) return {Outcome::Kind::kWrong, "its result has other sizes"};
    if (!equal_numbers(part_of_whole(expected[i]), found[i])) return {Outcome::Kind::kWrong, "other numbers"};
    if (i < results && !is_part(found[i])) return {Outcome::Kind::kWrong, "its result is no part"};
  }
  return {Outcome::Kind::kRight, {}};
}

/// What they make has no numbers to compare, or they are asked for no element.
bool tells_nothing(const c10::OperatorHandle& op) {
  static const std::set<std::string> kOfSizes{"aten::size",
                                              "aten::stride",
                                              "aten::sym_size",
                                              "aten::sym_stride",
                                              "aten::sym_numel",
                                              "aten::sym_storage_offset",
                                              "aten::sym_is_contiguous",
                                              "aten::is_complex",
                                              "aten::is_floating_point",
                                              "aten::is_signed",
                                              "aten::is_inference",
                                              "aten::is_leaf",
                                              "aten::is_conj",
                                              "aten::is_neg",
                                              "aten::output_nr",
                                              "aten::_version",
                                              "aten::retains_grad",
                                              "aten::is_distributed",
                                              "aten::_is_zerotensor",
                                              "aten::_debug_has_internal_overlap",
                                              "aten::numel",
                                              "aten::dim",
                                              "aten::cudnn_is_acceptable",
                                              "aten::get_device",
                                              "aten::is_contiguous",
                                              "aten::element_size",
                                              "aten::len",
                                              "aten::retain_grad",
                                              "aten::set_data",
                                              "aten::_shape_as_tensor",
                                              "aten::can_cast",
                                              "aten::promote_types",
                                              "aten::result_type",
                                              "aten::_propagate_xla_data",
                                              "aten::requires_grad_",
                                              "aten::_use_cudnn_rnn_flatten_weight",
                                              "aten::infinitely_differentiable_gelu_backward",
                                              "aten::_dim_arange",
                                              "aten::_nnpack_available"};
  const auto use = parameters::part_rule(op).use;
  return use == parameters::PartUse::kNothing || use == parameters::PartUse::kLike ||
         kOfSizes.count(op.schema().name()) != 0;
}

bool is_looked_at(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  if (!name.starts_with("aten::") || tells_nothing(op)) return false;
  const auto use = parameters::part_rule(op).use;
  const bool is_internal =
      name.starts_with("aten::_") && use != parameters::PartUse::kElementWise && use != parameters::PartUse::kLists;
  const auto is_out = [](const c10::Argument& argument) { return argument.is_out(); };
  const auto& arguments = op.schema().arguments();
  return !is_internal && std::none_of(arguments.begin(), arguments.end(), is_out);
}

TEST_CASE("part_guard: every operator is right on a shard or throws") {
  const DoublePrecision guard;
  const torch::NoGradGuard no_grad;
  int right = 0, refused = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !is_looked_at(*op)) continue;
    for (const bool all : {true, false}) {
      for (const auto type : {torch::kDouble, torch::kLong, torch::kBool, torch::kComplexDouble}) {
        const auto outcome = compare(*op, type, all);
        if (outcome.kind == Outcome::Kind::kDoesNotRun) continue;
        INFO(toString(op->schema()) << ": " << outcome.what);
        if (outcome.kind == Outcome::Kind::kRefused) {
          CHECK_THAT(outcome.what, Contains("'fc.weight' is held in shards (ZeRO 1)"));
          ++refused;
        } else {
          CHECK(outcome.kind == Outcome::Kind::kRight);
          ++right;
        }
      }
    }
  }
  CAPTURE(right, refused);
  CHECK(right > 900);
  CHECK(refused > 200);
}

TEST_CASE("part_guard: operators of optimizers and averages are allowed") {
  using Use = parameters::PartUse;
  const std::vector<std::pair<Use, std::vector<const char*>>> uses{
      {Use::kElementWise, {"add_.Tensor",  "mul_.Scalar",  "mul_.Tensor", "addcmul_", "addcdiv_",
                           "lerp_.Scalar", "sqrt",         "div.Tensor",  "copy_",    "clone",
                           "detach",       "fill_.Scalar", "zero_",       "maximum",  "sign",
                           "clamp_",       "where.self",   "alias",       "_to_copy", "masked_fill_.Scalar",
                           "lt_.Scalar"}},
      {Use::kLists, {"_foreach_add_.List", "_foreach_copy_", "_foreach_zero_", "_fused_adamw_", "_fused_sgd_"}},
      {Use::kLike, {"empty_like", "ones_like", "full_like", "zeros_like", "new_zeros"}},
      {Use::kView, {"view", "reshape", "expand"}},
      {Use::kWhole,
       {"norm.Scalar",
        "linalg_vector_norm",
        "sum",
        "mean",
        "max",
        "mm",
        "addmm",
        "cat",
        "stack",
        "select.int",
        "slice.Tensor",
        "topk",
        "sort",
        "_local_scalar_dense",
        "t",
        "transpose.int",
        "permute",
        "cumsum",
        "equal",
        "_foreach_norm.Scalar",
        "_foreach_max",
        "index.Tensor",
        "dot",
        "any",
        "all",
        "set_.source_Tensor",
        "resize_"}}};
  for (const auto& [use, names] : uses) {
    for (const std::string name : names) {
      const auto dot = name.find('.');
      const auto base = "aten::" + name.substr(0, dot);
      const auto op = c10::Dispatcher::singleton().findSchema(
          {base, dot == std::string::npos ? std::string() : name.substr(dot + 1)});
      INFO(name);
      REQUIRE(op);
      CHECK(parameters::part_rule(*op).use == use);
    }
  }
}

// ---------------------------------------------------------------- tensors

TEST_CASE("part_guard: reductions throw with parameter and ways out") {
  const auto w = shard(numbers());
  const auto refused = [](const auto& work) {
    CHECK_THROWS_WITH(work(), Contains("'fc.weight' is held in shards") && Contains("model->norm(p)") &&
                                  Contains("model->dot(a, b)") && Contains("model->gather(p)") &&
                                  Contains("ap::for_whole_parameters(model, fn)") &&
                                  Contains("ap::clip_grad_norm_(model, handles, max)"));
    CHECK_THROWS_AS(work(), InvalidArgument);
  };
  refused([&] { return w.norm(); });
  refused([&] { return torch::linalg_norm(w); });
  refused([&] { return torch::nn::functional::normalize(w, torch::nn::functional::NormalizeFuncOptions().dim(0)); });
  refused([&] { return torch::cat({w, w}); });
  refused([&] { return torch::stack({torch::zeros(kEnd - kBegin, torch::kDouble), w}); });
  refused([&] { return w.view({2, 6}); });
  refused([&] { return w.reshape({4, 6}); });
  refused([&] { return w.select(0, 1); });
  refused([&] { return w[0].item<double>(); });
  refused([&] { return w.abs().max(); });
  refused([&] { return (w * w).sum(); });
  refused([&] { return torch::zeros_like(w).add_(w).mean(); });
  refused([&] { return w.to(torch::kFloat).dot(w.to(torch::kFloat)); });
  refused([&] { return w.detach().clone().isfinite().all(); });
  refused([&] { return torch::equal(w, w); });
  refused([&] { return torch::_foreach_norm({w})[0]; });
  CHECK_NOTHROW(w.view({-1}).mul_(2));
  CHECK_NOTHROW(w.flatten());
}

TEST_CASE("part_guard: results of operators on shards are shards") {
  const auto w = shard(numbers());
  auto plain = torch::zeros(kEnd - kBegin, torch::kDouble);
  for (const auto& made : {w + 1, w.detach(), w.clone(), w.to(torch::kFloat), torch::zeros_like(w), w > 0, w.data(),
                           torch::where(w > 0, w, torch::zeros_like(w)), w.contiguous(), w.view({-1}), 2 * plain + w})
    CHECK(is_part(made));
  CHECK_FALSE(is_part(plain));
  plain.add_(w, 0.5);
  CHECK(is_part(plain));
  std::vector<Tensor> states{torch::zeros(kEnd - kBegin, torch::kDouble)};
  torch::_foreach_add_(states, std::vector<Tensor>{w}, 0.5);
  CHECK(is_part(states[0]));
  CHECK(is_part(torch::_foreach_mul(states, 2.0)[0]));
  auto slice = torch::ones({2, 6}, torch::kDouble);
  parameters::set_mark(
      slice, c10::make_intrusive<parameters::PartMark>(parameters::PartLayout{parameters::PartLayout::Kind::kSlice,
                                                                              "fc.weight",
                                                                              {4, 6},
                                                                              parameters::ShardSlices(Interval{0, 12}),
                                                                              "is held in slices"}));
  slice.set_data(torch::zeros({2, 6}, torch::kDouble));
  CHECK(is_part(slice));
  CHECK_THROWS_AS(slice.set_data(torch::zeros({4, 6}, torch::kDouble)), InvalidArgument);
  CHECK_THROWS_WITH(w.set_data(torch::ones(kEnd - kBegin, torch::kDouble)), Contains("p.copy_(values)"));
  const auto of_file = torch::ones(kEnd - kBegin, torch::kDouble);
  CHECK_FALSE(is_part(of_file));
  auto history = torch::zeros({3, kEnd - kBegin}, torch::kDouble);
  CHECK_THROWS_WITH(history[1].copy_(w), Contains("a view of a larger tensor"));
}

TEST_CASE("part_guard: autograd records as usual") {
  auto w = shard(numbers()).requires_grad_();
  const auto twice = w * w * 3;
  CHECK(twice.requires_grad());
  CHECK(is_part(twice));
  twice.backward(torch::ones_like(twice));
  const parameters::PartAccess access;
  CHECK(torch::allclose(w.grad(), 6 * part_of_whole(numbers())));
}

TEST_CASE("part_guard: shards combine only with the same elements") {
  const auto w = shard(numbers());
  const auto other = shard(numbers(), shard_mark("target.weight"));
  const auto elsewhere = shard(numbers(), shard_mark("other.weight", kBegin + 1, kEnd + 1));
  CHECK_NOTHROW(other.clone().lerp_(w, 0.1));
  CHECK_THROWS_WITH(w.clone().copy_(elsewhere),
                    Contains("'other.weight'") && Contains("their elements have other places in the whole"));
  CHECK_THROWS_WITH(w + numbers(), Contains("of sizes [12] and [24]") && Contains("model->prepare(arguments...)"));
  CHECK_THROWS_AS(w.clone().mul_(torch::ones({1}, torch::kDouble)), InvalidArgument);
  CHECK_NOTHROW(w.clone().mul_(torch::tensor(2.0, torch::kDouble)));
  auto copy = torch::ones(kEnd - kBegin, torch::kDouble);
  parameters::set_mark(copy, copy_mark());
  CHECK_THROWS_AS(w + copy, InvalidArgument);
}

TEST_CASE("part_guard: libtorch's optimizers step as on full parameters") {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;
  namespace optim = torch::optim;
  const std::vector<Make> makes{
      [](const auto& p) {
        return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1));
      },
      [](const auto& p) {
        return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
      },
      [](const auto& p) {
        return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.1).amsgrad(true).weight_decay(0.1));
      },
      [](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.1).amsgrad(true)); },
      [](const auto& p) {
        return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(0.1).centered(true).momentum(0.9));
      },
      [](const auto& p) { return std::make_unique<optim::Adagrad>(p, optim::AdagradOptions(0.1).weight_decay(0.1)); }};
  for (std::size_t m = 0; m < makes.size(); ++m) {
    CAPTURE(m);
    auto whole = numbers().requires_grad_(), part = shard(numbers()).requires_grad_();
    const auto of_whole = makes[m]({whole}), of_part = makes[m]({part});
    for (int k = 0; k < 3; ++k) {
      whole.mutable_grad() = numbers() * (k + 1);
      part.mutable_grad() = shard(numbers() * (k + 1));
      of_whole->step();
      REQUIRE_NOTHROW(of_part->step());
      of_part->zero_grad(k == 0);
    }
    const parameters::PartAccess access;
    CHECK(equal_numbers(part_of_whole(whole.detach()), part.detach()));
  }
}

TEST_CASE("part_guard: random operators throw on shards and copies") {
  torch::NoGradGuard no_grad;
  auto copy = numbers();
  parameters::set_mark(copy, copy_mark());
  const auto w = shard(numbers());
  for (const auto& handle : {copy, w}) {
    const auto refused = [](const auto& work) {
      CHECK_THROWS_WITH(work(),
                        Contains("draws random numbers for 'fc.") && Contains("ap::for_whole_parameters(model, fn)"));
    };
    refused([&] { return handle.normal_(); });
    refused([&] { return torch::randn_like(handle); });
    refused([&] { return torch::rand_like(handle.detach()); });
    refused([&] { return torch::zeros_like(handle).uniform_(); });
    refused([&] { return torch::empty_like(handle).exponential_(); });
    refused([&] { return torch::bernoulli(handle.abs().clamp_max(1)); });
    refused([&] { return torch::dropout(handle, 0.5, true); });
    refused([&] { return torch::native_dropout(handle * 2, 0.5, true); });
    refused([&] { return torch::nn::init::normal_(handle); });
    refused([&] { return at::normal(handle, 1.0, std::nullopt); });
    CHECK_NOTHROW(torch::dropout(handle, 0.5, false));
    CHECK_NOTHROW(torch::ones_like(handle).fill_(2));
  }
  CHECK_THROWS_WITH(copy.view({4, 6}).normal_(), Contains("draws random numbers"));
  CHECK_THROWS_WITH(copy.slice(0, 1, 3).uniform_(), Contains("draws random numbers"));
  // Everything else is right on a whole parameter.
  CHECK(copy.norm().item<double>() > 0);
  CHECK(torch::cat({copy, numbers()}).numel() == 2 * kWhole);
  const auto state = torch::cat({copy.view({4, 6}), torch::ones({1, 6}, torch::kDouble)});
  CHECK_NOTHROW(state.clone().normal_());
}

TEST_CASE("part_guard: clip_grad_norm_ and parameter vectors throw") {
  auto w = shard(numbers()).requires_grad_();
  w.mutable_grad() = shard(numbers());
  const std::vector<Tensor> handles{w};
  CHECK_THROWS_WITH(torch::nn::utils::clip_grad_norm_(handles, 0.5),
                    Contains("ap::clip_grad_norm_(model, handles, max)"));
  CHECK_THROWS_WITH(torch::nn::utils::clip_grad_norm_(handles, 0.5, std::numeric_limits<double>::infinity()),
                    Contains("ap::clip_grad_norm_(model, handles, max)"));
  CHECK_THROWS_AS(torch::nn::utils::parameters_to_vector(handles), InvalidArgument);
  CHECK_THROWS_AS(torch::nn::utils::vector_to_parameters(numbers(), handles), InvalidArgument);
  CHECK_NOTHROW(torch::nn::utils::clip_grad_value_(handles, 0.5));
}

TEST_CASE("PartAccess: shards are plain tensors, torch::save needs it") {
  const auto w = shard(numbers());
  {
    const parameters::PartAccess access;
    CHECK(w.norm().item<double>() > 0);
    CHECK(w.view({2, 6}).size(0) == 2);
  }
  CHECK_THROWS_AS(w.norm(), InvalidArgument);
  std::ostringstream file;
  CHECK_THROWS_WITH(torch::save(w, file), Contains("torch::save: 'fc.weight' is held in shards"));
  auto copy = numbers();
  parameters::set_mark(copy, copy_mark());
  CHECK_NOTHROW(torch::save(copy, file));
  parameters::unset_mark(copy);
  CHECK_NOTHROW(copy.normal_());
}

}  // namespace part_guard_test
