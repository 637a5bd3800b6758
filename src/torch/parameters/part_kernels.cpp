#include "torch/parameters/part_kernels.hpp"

#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/zero_ops.h>
#include <torch/library.h>

#include "torch/parameters/part_access.hpp"
#include "torch/parameters/part_checks.hpp"

namespace autopar::parameters {

namespace {

template <class Argument>
void add(PartOperands& operands, const Argument& argument, bool is_written) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) {
    if (argument.defined()) operands.push_back({&argument, mark_of(argument), is_written});
  }
}

/// The common case: tensors of one parameter, and numbers.
PartMark* common_mark(const PartOperands& operands) {
  auto* const mark = operands.front().mark;
  if (mark == nullptr) return nullptr;
  for (const auto& operand : operands) {
    if (operand.mark != mark || operand.tensor->sizes() != operands.front().tensor->sizes()) return nullptr;
  }
  return mark;
}

template <class Op, class Function>
struct ElementWise;

template <class Op, class Result, class... Arguments>
struct ElementWise<Op, Result(Arguments...)> {
  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    PartOperands operands;
    (add(operands, arguments, std::is_same_v<Arguments, at::Tensor&>), ...);
    auto* mark = common_mark(operands);
    if (mark == nullptr) mark = require_one_layout(operands, [] { return std::string(Op::name); });
    const PartAccess below;
    const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPartKey);
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      auto& written = Op::redispatch(rest, arguments...);
      for (const auto& operand : operands)
        if (operand.mark == mark) mark_made(written, mark, operand.tensor->sizes());
      return written;
    } else {
      auto made = Op::redispatch(rest, arguments...);
      for (const auto& operand : operands)
        if (operand.mark == mark) mark_made(made, mark, operand.tensor->sizes());
      return made;
    }
  }
};

template <class... Ops>
void install(torch::Library& library) {
  const auto name_of = [](const std::string& name, const std::string& overload) {
    return overload.empty() ? name : name + "." + overload;
  };
  (library.impl(name_of(Ops::name, Ops::overload_name).c_str(), &ElementWise<Ops, typename Ops::schema>::run), ...);
}

}  // namespace

void install_part_kernels() {
  namespace ops = at::_ops;
  static torch::Library library(torch::Library::IMPL, "aten", c10::make_optional(kPartKey), __FILE__, __LINE__);
  install<ops::add_Tensor, ops::add__Tensor, ops::add__Scalar, ops::sub__Tensor, ops::mul_Tensor, ops::mul_Scalar,
          ops::mul__Tensor, ops::mul__Scalar, ops::div_Tensor, ops::div_Scalar, ops::div__Tensor, ops::div__Scalar,
          ops::addcmul_, ops::addcdiv_, ops::lerp__Scalar, ops::sqrt, ops::copy_, ops::clone, ops::detach, ops::zero_>(
      library);
}

}  // namespace autopar::parameters
