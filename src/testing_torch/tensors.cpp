#include "testing_torch/tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

namespace autopar::testing::op_laws {

namespace {

at::Tensor comparable(const at::Tensor& tensor) {
  const auto values = tensor.detach();
  return (values.is_complex() ? at::view_as_real(values.resolve_conj()) : values).to(at::kDouble);
}

std::string place_of(std::int64_t position, at::IntArrayRef sizes) {
  std::vector<std::int64_t> place(sizes.size());
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    place[dim] = position % sizes[dim];
    position /= sizes[dim];
  }
  std::ostringstream text;
  text << at::IntArrayRef(place);
  return text.str();
}

}  // namespace

std::string form_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << tensor.sizes() << ' ' << c10::toString(tensor.scalar_type());
  return text.str();
}

std::string difference(const at::Tensor& given, const at::Tensor& wanted) {
  constexpr double kTolerance = 1e-12;
  if (!given.defined() || given.sizes() != wanted.sizes()) return form_of(given) + " instead of " + form_of(wanted);
  if (wanted.numel() == 0) return {};
  const auto a = comparable(given), b = comparable(wanted);
  const auto is_same = a.eq(b).logical_or_(a.isnan().logical_and_(b.isnan()));
  const auto apart = (a - b).abs_().masked_fill_(is_same, 0);
  const auto relative = (apart / (b.abs() + 1)).masked_fill_(is_same, 0);
  if (relative.max().item<double>() <= kTolerance) return {};  // NaN is more
  const auto worst = apart.argmax().item<std::int64_t>();
  const auto at_worst = [&](const at::Tensor& tensor) { return tensor.flatten()[worst].item<double>(); };
  std::ostringstream text;
  text.precision(9);
  text << "max abs difference " << at_worst(apart) << " at " << place_of(worst, a.sizes()) << ": " << at_worst(a)
       << " instead of " << at_worst(b);
  return text.str();
}

Tensors cotangents_of(const Tensors& results) {
  const at::NoGradGuard no_history;
  auto generator = at::detail::createCPUGenerator(/*seed_val=*/1);
  Tensors cotangents;
  for (const auto& result : results) {
    cotangents.emplace_back();
    if (result.requires_grad()) cotangents.back() = at::rand(result.sizes(), generator, result.options()) + 0.5;
  }
  return cotangents;
}

Tensors gradients_of(const Tensors& results, const Tensors& cotangents, const Tensors& arguments) {
  Tensors differentiable, factors, gradients(arguments.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad() || !cotangents[i].defined()) continue;
    differentiable.push_back(results[i]);
    factors.push_back(cotangents[i]);
  }
  if (!differentiable.empty() && !arguments.empty()) {
    gradients = torch::autograd::grad(differentiable, arguments, factors, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(arguments[i]);
  }
  return gradients;
}

}  // namespace autopar::testing::op_laws
