#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/nn/functional.h>
#include <torch/utils.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <nets.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/trace/capture.hpp"
#include "capture/trace/fake_tensor.hpp"

// What autocast on CUDA devices does, as captures record it, which need none.
namespace autopar::test {
namespace autocast_test {

namespace F = torch::nn::functional;
using at::Tensor;

OpGraph captured(TestModel& model, c10::DeviceType device, const Tensors& arguments, bool everywhere = false) {
  trace::CaptureOptions options;
  options.autocast = autopar::trace::Autocast{at::kBFloat16, device, everywhere};
  return trace::capture(
      model, specs(arguments), [&](const Tensors& in) { return model.run(in); }, options);
}

/// The element type of what a function of 16-bit and 32-bit tensors gives inside autocast, before a capture casts
/// results back.
c10::ScalarType type_given(const std::function<Tensor(const Tensor&, const Tensor&)>& function,
                           bool everywhere = false) {
  const auto model = model_of(function);
  const auto graph = captured(*model, c10::DeviceType::CUDA, model->arguments(5), everywhere);
  const auto output = graph.outputs.at(0);
  const auto definer = graph.value(output).definer;
  const auto& info = graph.value(output);
  if (!definer.valid() || !graph.is(definer, "aten::to")) return info.dtype;
  return graph.value(graph.input(definer, 0)).dtype;
}

struct Case {
  const char* name;
  std::function<Tensor(const Tensor& low, const Tensor& full)> function;
};

/// [n, 8] as [n, 2, 4] and so on.
Tensor shaped(const Tensor& x, std::vector<std::int64_t> sizes) {
  sizes.insert(sizes.begin(), x.size(0));
  return x.view(sizes);
}

// https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float16
const std::vector<Case> kLower{
    {"matmul", [](auto&, auto& x) { return torch::matmul(x, x.t()); }},
    {"mm", [](auto&, auto& x) { return torch::mm(x, x.t()); }},
    {"mv", [](auto&, auto& x) { return torch::mv(x, x.slice(0, 0, 1).view({8})); }},
    {"addmm",
     [](auto&, auto& x) {
       return torch::addmm(x, x, torch::ones({8, 8}));
     }},
    {"addmv", [](auto&, auto& x) { return torch::addmv(x.sum(1), x, torch::ones({8})); }},
    {"addr", [](auto&, auto& x) { return torch::addr(x, x.sum(1), torch::ones({8})); }},
    {"bmm",
     [](auto&, auto& x) {
       return torch::bmm(shaped(x, {2, 4}), shaped(x, {4, 2}));
     }},
    {"baddbmm",
     [](auto&, auto& x) {
       return torch::baddbmm(shaped(x, {8, 1}), shaped(x, {8, 1}), torch::ones({x.size(0), 1, 1}));
     }},
    {"addbmm",
     [](auto&, auto& x) {
       return torch::addbmm(torch::ones({2, 2}), shaped(x, {2, 4}), shaped(x, {4, 2}));
     }},
    {"chain_matmul",
     [](auto&, auto& x) {
       return torch::chain_matmul({x, torch::ones({8, 3}), torch::ones({3, 2})});
     }},
    {"multi_dot",
     [](auto&, auto& x) {
       return torch::linalg_multi_dot({x, torch::ones({8, 3}), torch::ones({3, 2})});
     }},
    {"linear",
     [](auto&, auto& x) {
       return torch::linear(x, torch::ones({4, 8}));
     }},
    {"einsum",
     [](auto&, auto& x) {
       return torch::einsum("ni,ij->nj", {x, torch::ones({8, 4})});
     }},
    {"conv1d",
     [](auto&, auto& x) {
       return torch::conv1d(shaped(x, {2, 4}), torch::ones({3, 2, 2}));
     }},
    {"conv2d",
     [](auto&, auto& x) {
       return torch::conv2d(shaped(x, {2, 2, 2}), torch::ones({3, 2, 2, 2}));
     }},
    {"conv3d",
     [](auto&, auto& x) {
       return torch::conv3d(shaped(x, {1, 2, 2, 2}), torch::ones({3, 1, 2, 2, 2}));
     }},
    {"conv_transpose1d",
     [](auto&, auto& x) {
       return torch::conv_transpose1d(shaped(x, {2, 4}), torch::ones({2, 3, 2}));
     }},
    {"conv_transpose2d",
     [](auto&, auto& x) {
       return torch::conv_transpose2d(shaped(x, {2, 2, 2}), torch::ones({2, 3, 2, 2}));
     }},
    {"prelu", [](auto&, auto& x) { return torch::prelu(x, torch::ones({1})); }},
    {"scaled_dot_product_attention",
     [](auto&, auto& x) {
       return at::scaled_dot_product_attention(shaped(x, {1, 2, 4}), shaped(x, {1, 2, 4}), shaped(x, {1, 2, 4}));
     }},
};

// https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
const std::vector<Case> kFull{
    {"acos", [](auto& x, auto&) { return x.acos(); }},
    {"asin", [](auto& x, auto&) { return x.asin(); }},
    {"cosh", [](auto& x, auto&) { return x.cosh(); }},
    {"erfinv", [](auto& x, auto&) { return x.erfinv(); }},
    {"exp", [](auto& x, auto&) { return x.exp(); }},
    {"expm1", [](auto& x, auto&) { return x.expm1(); }},
    {"log", [](auto& x, auto&) { return x.log(); }},
    {"log10", [](auto& x, auto&) { return x.log10(); }},
    {"log2", [](auto& x, auto&) { return x.log2(); }},
    {"log1p", [](auto& x, auto&) { return x.log1p(); }},
    {"reciprocal", [](auto& x, auto&) { return x.reciprocal(); }},
    {"rsqrt", [](auto& x, auto&) { return x.rsqrt(); }},
    {"sinh", [](auto& x, auto&) { return x.sinh(); }},
    {"tan", [](auto& x, auto&) { return x.tan(); }},
    {"pow", [](auto& x, auto&) { return x.pow(2.5); }},
    {"softplus", [](auto& x, auto&) { return torch::softplus(x); }},
    {"softmax", [](auto& x, auto&) { return torch::softmax(x, 1); }},
    {"log_softmax", [](auto& x, auto&) { return torch::log_softmax(x, 1); }},
    {"softmin", [](auto& x, auto&) { return F::softmin(x, F::SoftminFuncOptions(1)); }},
    {"layer_norm", [](auto& x, auto&) { return torch::layer_norm(x, {8}); }},
    {"group_norm", [](auto& x, auto&) { return torch::group_norm(x, 2); }},
    {"cosine_similarity", [](auto& x, auto&) { return torch::cosine_similarity(x, x); }},
    {"cumprod", [](auto& x, auto&) { return x.cumprod(1); }},
    {"cumsum", [](auto& x, auto&) { return x.cumsum(1); }},
    {"prod", [](auto& x, auto&) { return x.prod(1); }},
    {"sum", [](auto& x, auto&) { return x.sum(1); }},
    {"norm", [](auto& x, auto&) { return x.norm(2, {1}); }},
    {"mse_loss", [](auto& x, auto&) { return torch::mse_loss(x, x); }},
    {"l1_loss", [](auto& x, auto&) { return torch::l1_loss(x, x); }},
    {"smooth_l1_loss", [](auto& x, auto&) { return torch::smooth_l1_loss(x, x); }},
    {"huber_loss", [](auto& x, auto&) { return torch::huber_loss(x, x); }},
    {"kl_div", [](auto& x, auto&) { return torch::kl_div(x, x); }},
    {"poisson_nll_loss", [](auto& x, auto&) { return torch::poisson_nll_loss(x, x, true, false, 1e-8, 1); }},
    {"soft_margin_loss",
     [](auto& x, auto&) {
       return torch::soft_margin_loss(x, torch::ones({x.size(0), 8}));
     }},
    {"binary_cross_entropy_with_logits", [](auto& x, auto&) { return torch::binary_cross_entropy_with_logits(x, x); }},
    {"cross_entropy", [](auto& x, auto&) { return F::cross_entropy(x, torch::zeros({x.size(0)}, torch::kLong)); }},
    {"nll_loss", [](auto& x, auto&) { return torch::nll_loss(x, torch::zeros({x.size(0)}, torch::kLong)); }},
    {"cdist", [](auto& x, auto&) { return torch::cdist(x, x.slice(0, 0, 3)); }},
    {"dist", [](auto& x, auto&) { return torch::dist(x, x); }},
};

// https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-promote-to-the-widest-input-type
const std::vector<Case> kPromoting{
    {"addcdiv", [](auto& x, auto& y) { return torch::addcdiv(x, y, x); }},
    {"addcmul", [](auto& x, auto& y) { return torch::addcmul(x, y, x); }},
    {"atan2", [](auto& x, auto& y) { return torch::atan2(x, y); }},
    {"cat",
     [](auto& x, auto& y) {
       return torch::cat({x, y}, 1);
     }},
    {"stack",
     [](auto& x, auto& y) {
       return torch::stack({x, y}, 1);
     }},
};

TEST_CASE("capture: casts as documented for autocast on CUDA", "[autocast]") {
  for (const auto& [name, function] : kLower) {
    INFO(name);
    CHECK(type_given(function) == at::kBFloat16);
  }
  for (const auto& [name, function] : kFull) {
    INFO(name);
    CHECK(type_given(function) == at::kFloat);
  }
  for (const auto& [name, function] : kPromoting) {
    INFO(name);
    CHECK(type_given(function) == at::kFloat);
    const auto same = [&f = function](const Tensor& low, const Tensor&) { return f(low, low); };
    CHECK(type_given(same) == at::kBFloat16);
  }
  SECTION("what is in no list keeps what it is given") {
    CHECK(type_given([](auto& x, auto&) { return x.relu(); }) == at::kBFloat16);
    CHECK(type_given([](auto& x, auto&) { return x.tanh(); }) == at::kBFloat16);
    CHECK(type_given([](auto&, auto& y) { return y.relu(); }) == at::kFloat);
  }
  SECTION("what overflows is refused") {
    CHECK_THROWS_AS(type_given([](auto& x, auto&) { return torch::binary_cross_entropy(x.sigmoid(), x); }),
                    CaptureError);
  }
}

// ---------------------------------------------------------------- 16 bits throughout

const std::vector<Case> kLosses{
    {"sum", [](auto& x, auto&) { return x.sum(); }},
    {"mean", [](auto& x, auto&) { return x.mean(); }},
    {"mse_loss", [](auto& x, auto& y) { return torch::mse_loss(x, y); }},
    {"l1_loss", [](auto& x, auto& y) { return torch::l1_loss(x, y); }},
    {"binary_cross_entropy", [](auto& x, auto&) { return torch::binary_cross_entropy(x.sigmoid(), x.sigmoid()); }},
    {"cross_entropy", [](auto& x, auto&) { return F::cross_entropy(x, torch::zeros({x.size(0)}, torch::kLong)); }},
    {"log_softmax", [](auto& x, auto&) { return torch::log_softmax(x, 1); }},
};

const std::vector<Case> kPointwise{
    {"exp", [](auto& x, auto&) { return x.exp(); }},
    {"softmax", [](auto& x, auto&) { return torch::softmax(x, 1); }},
    {"layer_norm", [](auto& x, auto&) { return torch::layer_norm(x, {x.size(1)}); }},
    {"sum of rows", [](auto& x, auto&) { return x.sum(1); }},
    {"an argument of float32", [](auto&, auto& y) { return y.relu(); }},
    {"a view of one", [](auto&, auto& y) { return y.t().relu().t(); }},
    {"a product with a mask of float32",
     [](auto& x, auto&) {
       return torch::mm(x, torch::ones({8, 4}));
     }},
};

TEST_CASE("capture: a 16-bit program computes losses alone in float32", "[autocast]") {
  for (const auto& cases : {kLower, kPointwise}) {
    for (const auto& [name, function] : cases) {
      INFO(name);
      CHECK(type_given(function, true) == at::kBFloat16);
    }
  }
  for (const auto& [name, function] : kLosses) {
    INFO(name);
    CHECK(type_given(function, true) == at::kFloat);
  }
}

/// A table read twice and without gradients, norms of both kinds, an average kept through a view, a float64 layer.
struct Mixed : TestModel {
  Mixed() {
    nets::register_all(*this, "norm", norm, "batch", batch, "exact", exact);
    weight = register_parameter("weight", torch::ones({6, 8}));
    average = register_buffer("average", torch::zeros({2, 6}));
    exact->to(torch::kDouble);
  }
  Tensors run(const Tensors& in) override {
    const auto keys = [&] {
      const torch::NoGradGuard none;
      return torch::linear(in[0], weight);
    }();
    const auto h = batch(norm(torch::linear(in[0], weight))) + keys;
    average[0].mul_(0.5).add_(h.detach().mean(0), 0.5);
    return {(h + average[0]).pow(2).mean() + exact(h.to(torch::kDouble)).mean()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::ones({n, 8})}; }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({6})};
  torch::nn::BatchNorm1d batch{6};
  torch::nn::Linear exact{6, 2};
  Tensor weight, average;
};

TEST_CASE("capture: leaves are cast once where read, written ones not", "[autocast]") {
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    Mixed model;
    model.batch->eval();
    const auto graph = captured(model, device, model.arguments(5), true);
    std::map<std::string, int> casts;
    std::vector<c10::ScalarType> norms, written;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const auto op = OpId::of(i);
      const auto& name = graph.name(op);
      if (name == "aten::to" && graph.value(graph.output(op)).dtype == at::kBFloat16)
        ++casts[graph.value(graph.input(op, 0)).name];
      if (name == "aten::layer_norm") norms.push_back(graph.value(graph.input(op, 2)).dtype);
      if (name == "aten::batch_norm") norms.push_back(graph.value(graph.input(op, 1)).dtype);
      if (name == "aten::mul_" || name == "aten::add_") written.push_back(graph.value(graph.output(op)).dtype);
    }
    CHECK(casts["weight"] == 2);  // with a gradient and without
    CHECK(casts["norm.weight"] == 1);
    CHECK(casts.count("batch.weight") == 0);
    CHECK(casts.count("exact.weight") == 0);
    CHECK(norms == std::vector{at::kBFloat16, at::kFloat});
    CHECK(written == std::vector{at::kFloat, at::kFloat});
    CHECK(graph.value(graph.outputs.at(0)).dtype == at::kDouble);
  }
}

// ---------------------------------------------------------------- tensors on devices

/// A CUDA tensor to all that only look at it, without memory.
Tensor on_cuda(const Tensor& like) {
  auto storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), like.nbytes(),
                                                                    at::DataPtr(nullptr, c10::Device(at::kCUDA, 0)),
                                                                    nullptr, false));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

/// A linear layer, a normalisation and a running mean; and a table that is a member and no buffer.
struct Placed : TestModel {
  explicit Placed(bool elsewhere) {
    const auto place = [&](const Tensor& tensor) { return elsewhere ? on_cuda(tensor) : tensor; };
    weight = register_parameter("weight", place(torch::ones({6, 8})));
    bias = register_parameter("bias", place(torch::ones({6})));
    tied = register_parameter("tied", weight);
    mean = register_buffer("mean", place(torch::ones({6})));
    table = place(torch::ones({6, 3}));
  }
  Tensors run(const Tensors& in) override {
    const auto h = torch::linear(in[0], weight, bias) - mean;
    const auto noise = torch::zeros({h.size(0), 6}, weight.options().requires_grad(false));
    return {torch::mm(torch::softmax(h + noise, 1), table).sum() + tied.sum()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::ones({n, 8})}; }
  Tensor weight, bias, tied, mean, table;
};

/// Operators and element types, one a line.
std::string program_of(const OpGraph& graph) {
  std::string out;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    out += graph.name(OpId::of(i));
    for_each_input(graph.ops[i], [&](ValueId value) {
      out += std::string(" ") + c10::toString(graph.value(value).dtype) + std::to_string(value.value());
    });
    for (const auto& argument : graph.ops[i].args) out += argument.isDevice() ? " on " + argument.toDevice().str() : "";
    out += " ->";
    for_each_output(graph.ops[i],
                    [&](ValueId value) { out += std::string(" ") + c10::toString(graph.value(value).dtype); });
    out += "\n";
  }
  return out;
}

TEST_CASE("capture: a module on CUDA equals one on the CPU, with casts", "[autocast]") {
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    INFO("lists of " << c10::DeviceTypeName(device));
    Placed here(false), there(true);
    const auto gradient = on_cuda(torch::ones({6, 8}));
    there.weight.mutable_grad() = gradient;
    const auto* memory = there.weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const auto want = captured(here, device, here.arguments(5)), got = captured(there, device, there.arguments(5));
    CHECK(program_of(got) == program_of(want));
    CHECK(got.parameters.size() == want.parameters.size());
    CHECK(got.value(got.parameters.back().value).name == "weight");  // tied

    for (const auto& tensor : {there.weight, there.bias, there.mean}) {
      CHECK(tensor.device().is_cuda());
      CHECK_FALSE(trace::is_fake(tensor));
    }
    CHECK(there.weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == memory);
    CHECK(there.weight.grad().is_same(gradient));
    CHECK(there.weight.requires_grad());
    CHECK_FALSE(there.mean.requires_grad());
  }
}

}  // namespace autocast_test
}  // namespace autopar::test
