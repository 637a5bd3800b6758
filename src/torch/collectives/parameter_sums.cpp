#include "torch/collectives/parameter_sums.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/parameter_handles.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "capture/trace/fake_tensor_impl.hpp"
#include "torch/gradients/gradient_factor.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::collectives {

namespace {

using What = SumOperand::What;

/// Of two tensors of one layout, in double precision. What is of a smaller type is widened a piece at a time.
at::Tensor dot_of(const at::Tensor& a, const at::Tensor& b, c10::ScalarType type, c10::Device device) {
  constexpr std::int64_t kPiece = 1 << 22;
  const auto flat_a = a.detach().reshape({-1}), flat_b = b.detach().to(a.device()).reshape({-1});
  auto sum = at::zeros({}, a.options().dtype(type).requires_grad(false));
  for (std::int64_t begin = 0; begin < flat_a.numel(); begin += kPiece) {
    const auto size = std::min(kPiece, flat_a.numel() - begin);
    sum.add_(at::dot(flat_a.narrow(0, begin, size).to(type), flat_b.narrow(0, begin, size).to(type)));
  }
  return sum.to(device);
}

void require_order(const char* member, double p) {
  if (p > 0) return;
  throw InvalidArgument(std::string(member) + ": norm type " + std::to_string(p) +
                        " is not supported; use a positive number or infinity");
}

template <class Work>
std::exception_ptr error_of(const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const InvalidArgument&) {
    return std::current_exception();
  }
}

/// @param gradients  one that is given twice is scaled twice, as in libtorch
void scale(std::vector<at::Tensor> gradients, const at::Tensor& factor) {
  while (!gradients.empty()) {
    std::map<c10::DeviceType, std::vector<at::Tensor>> once;
    std::vector<at::Tensor> again;
    std::set<const void*> seen;
    for (const auto& gradient : gradients) {
      const bool is_first = seen.insert(gradient.unsafeGetTensorImpl()).second;
      (is_first ? once[gradient.device().type()] : again).push_back(gradient);
    }
    for (const auto& [type, list] : once) gradients::multiply_unless_one(list, factor.to(list.front().device()));
    gradients = std::move(again);
  }
}

/// A result where the operands of this rank are.
at::Tensor beside(const at::Tensor& result, const std::vector<at::Tensor>& operands) {
  const auto found = std::ranges::find_if(operands, [](const auto& each) { return each.defined(); });
  const bool is_elsewhere = found != operands.end() && !trace::is_fake(*found) && found->device() != result.device();
  return is_elsewhere ? result.to(found->device()) : result;
}

}  // namespace

/// Collective. @return the ranks' norms, the same on all ranks
at::Tensor ParameterSums::norms_of_ranks(const gradients::NormOverRanks& norm) {
  return deployment_.sums().sum({norm.by_rank()})[0];
}

/// What an operand that is no handle and no gradient belongs to: what its partner does, or its place in parameters().
void ParameterSums::complete_operands(std::vector<SumOperand>& a, std::vector<SumOperand>& b) const {
  const auto handles = module_.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (auto [own, other] : {std::pair(&a[i], &b[i]), std::pair(&b[i], &a[i])}) {
      if (own->what != What::kOwn || own->parameter.valid()) continue;
      own->parameter = other->parameter;
      if (!own->parameter.valid() && a.size() == handles.size()) own->parameter = parameters_.of(handles[i]).id;
    }
  }
}

at::Tensor ParameterSums::norm(const std::vector<at::Tensor>& tensors, double ord) {
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  const SumOperands operands(parameters_);
  std::vector<SumOperand> mine;
  for (const auto& tensor : tensors) mine.push_back(operands.find(tensor));
  const auto error = error_of([&] { require_order("norm", ord); });
  validator_.agree(calls::CallKind::kNorm, std::to_string(ord) + " of " + std::to_string(tensors.size()), error);
  const auto agreed = operands.agree(ranks_, mine, "norm");
  gradients::NormOverRanks norm(ord, ranks_.size(), ranks_.rank().value(), deployment_.device());
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i].what == What::kNothing) continue;
    if (!agreed[i].parameter.valid()) {
      throw InvalidArgument(
          "norm: a tensor is neither a parameter of the model nor a gradient of one, so it is not known which elements "
          "of which parameter it has; take the square root of model->dot(t, t) over lists as long as "
          "model->parameters(), in its order");
    }
    const auto& tensor = parameters_.at(agreed[i].parameter);
    if (tensors[i].defined() && parameters_.counts(tensor)) norm.add(tensors[i]);
  }
  return beside(norm.complete(norms_of_ranks(norm)), tensors);
}

at::Tensor ParameterSums::dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  const SumOperands operands(parameters_);
  std::vector<SumOperand> of_a, of_b;
  for (const auto& tensor : a) of_a.push_back(operands.find(tensor));
  for (const auto& tensor : b) of_b.push_back(operands.find(tensor));
  const auto error = error_of([&] {
    if (a.size() != b.size()) {
      throw InvalidArgument("dot: lists of " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                            " tensors; give as many of each");
    }
    complete_operands(of_a, of_b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      require_layout(of_a[i], a[i]);
      require_layout(of_b[i], b[i]);
    }
  });
  validator_.agree(calls::CallKind::kDot, std::to_string(a.size()), error);
  auto both = of_a;
  both.insert(both.end(), of_b.begin(), of_b.end());
  both = operands.agree(ranks_, both, "dot");
  auto total = at::zeros({}, at::dtype(at::kComplexDouble).device(deployment_.device()));
  bool is_complex = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto &first = both[i], &second = both[a.size() + i];
    if (first.what == What::kNothing || second.what == What::kNothing) continue;
    const auto known = std::max(first.parameter, second.parameter);
    const auto differs = [&](const SumOperand& each) { return each.parameter.valid() && each.parameter != known; };
    if (!known.valid() || differs(first) || differs(second)) {
      throw InvalidArgument(
          "dot of " + operands.describe(first) + " and " + operands.describe(second) +
          ": one of the two must be a parameter of the model or its gradient, the other of the same "
          "parameter; of tensors of your own give lists as long as model->parameters(), in its order");
    }
    const auto& tensor = parameters_.at(known);
    is_complex = is_complex || tensor.handle.is_complex();
    if (!a[i].defined() || !b[i].defined() || !parameters_.counts(tensor)) continue;
    total.add_(dot_of(a[i], b[i], tensor.handle.is_complex() ? at::kComplexDouble : at::kDouble, deployment_.device()));
  }
  const auto sum = deployment_.sums().sum({total})[0];
  auto beside_operands = a;
  beside_operands.insert(beside_operands.end(), b.begin(), b.end());
  return beside(is_complex ? sum : at::real(sum).clone(), beside_operands);
}

/// @param operand  what `tensor` is
void ParameterSums::require_layout(const SumOperand& operand, const at::Tensor& tensor) const {
  if (operand.what != What::kOwn || !operand.parameter.valid()) return;
  const auto& parameter = parameters_.at(operand.parameter);
  if (!parameters_.holds(parameter) || tensor.sizes() == parameter.handle.sizes()) return;
  std::ostringstream out;
  out << "dot: a tensor of sizes " << tensor.sizes() << " goes with parameter '" << parameter.name()
      << "', of which this rank has sizes " << parameter.handle.sizes()
      << "; make it like the handle, after model->prepare(arguments...)";
  throw InvalidArgument(out.str());
}

at::Tensor ParameterSums::clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                         bool error_if_nonfinite) {
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  std::vector<const parameters::ManagedTensor*> parameters;
  std::ostringstream details;
  const auto error = error_of([&] {
    require_order("clip_grad_norm_", norm_type);
    for (const auto& handle : handles) parameters.push_back(&parameters_.of(handle));
  });
  details << max_norm << ' ' << norm_type << ' ' << error_if_nonfinite << " of";
  for (const auto* parameter : parameters) details << ' ' << parameter->name();
  validator_.agree(calls::CallKind::kClip, details.str(), error);

  gradients::NormOverRanks parts(norm_type, ranks_.size(), ranks_.rank().value(), deployment_.device());
  std::vector<at::Tensor> gradients;  // as often as they are given
  auto type = handles.empty() ? at::kDouble : c10::toRealValueType(handles.front().scalar_type());
  for (const auto* parameter : parameters) {
    type = c10::promoteTypes(type, c10::toRealValueType(parameter->handle.scalar_type()));
    if (!parameters_.holds(*parameter) || !parameter->handle.grad().defined()) continue;
    gradients.push_back(parameter->handle.grad());
    if (parameters_.counts(*parameter)) parts.add(gradients.back());
  }
  const auto clipped = parts.clip(norms_of_ranks(parts), max_norm, type);
  if (error_if_nonfinite && !std::isfinite(clipped.norm.item<double>())) {
    throw InvalidArgument("clip_grad_norm_: the norm of the gradients is " +
                          std::to_string(clipped.norm.item<double>()) +
                          "; they are as they were. Leave this step out, or scale them with "
                          "error_if_nonfinite = false");
  }
  scale(gradients, clipped.factor);
  return clipped.given;
}

}  // namespace autopar::collectives

namespace autopar::detail {

void require_clippable(const std::vector<at::Tensor>& handles) {
  for (const auto& handle : handles) {
    if (!handle.defined() || !handle.requires_grad() || !trace::is_fake(handle)) continue;
    throw InvalidArgument("torch::nn::utils::clip_grad_norm_ of a plain vector would leave out a gradient: " +
                          trace::fake_tag(handle)->description +
                          ". ap::clip_grad_norm_(model, handles, max), called by all ranks, clips by the norm over all "
                          "ranks");
  }
}

}  // namespace autopar::detail
