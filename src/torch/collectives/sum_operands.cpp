#include "torch/collectives/sum_operands.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"

namespace autopar::collectives {

using What = SumOperand::What;

SumOperands::SumOperands(const parameters::ParameterStore& parameters) : parameters_(parameters) {
  const auto add = [this](const at::Tensor& tensor, const SumOperand& operand) {
    by_impl_.emplace(tensor.unsafeGetTensorImpl(), operand);
    if (const auto* memory = memory_of(tensor)) by_memory_.emplace(memory, operand);
  };
  for (const auto& tensor : parameters.tensors()) {
    const auto& handle = tensor.handle;
    add(handle, {What::kValue, tensor.id});
    if (handle.grad().defined()) add(handle.grad(), {What::kGradient, tensor.id});
  }
}

/// Null if it has no elements here.
const void* SumOperands::memory_of(const at::Tensor& tensor) {
  if (trace::is_fake(tensor) || tensor.numel() == 0 || !tensor.has_storage()) return nullptr;
  return tensor.const_data_ptr();
}

SumOperand SumOperands::find(const at::Tensor& tensor) const {
  if (!tensor.defined()) return {};
  const auto known = by_impl_.find(tensor.unsafeGetTensorImpl());
  if (known != by_impl_.end()) return known->second;
  // What `data()` and `detach()` give.
  const auto* memory = memory_of(tensor);
  const auto same = memory == nullptr ? by_memory_.end() : by_memory_.find(memory);
  if (same != by_memory_.end()) {
    const auto& handle = parameters_.at(same->second.parameter).handle;
    if (handle.sizes() == tensor.sizes()) return same->second;
  }
  return {What::kOwn};
}

std::string SumOperands::describe(const SumOperand& operand) const {
  const auto name = !operand.parameter.valid() ? std::string() : "'" + parameters_.at(operand.parameter).name() + "'";
  switch (operand.what) {
    case What::kNothing:
      return "an undefined tensor";
    case What::kValue:
      return name;
    case What::kGradient:
      return "the gradient of " + name;
    case What::kOwn:
      break;
  }
  return name.empty() ? "a tensor of its own" : "a tensor of its own for " + name;
}

void SumOperands::require_same(const std::vector<SumOperand>& by_rank, const std::string& member) const {
  std::size_t first = 0;
  while (first + 1 < by_rank.size() && !by_rank[first].parameter.valid()) ++first;
  const auto& meant = by_rank[first];
  if (!meant.parameter.valid()) return;
  const auto& tensor = parameters_.at(meant.parameter);
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const auto& other = by_rank[r];
    const bool tells = other.what != What::kNothing && other.parameter.valid();
    if (tells && other != meant) {
      throw InvalidArgument(member + ": rank " + std::to_string(first) + " names " + describe(meant) + ", rank " +
                            std::to_string(r) + " names " + describe(other) +
                            "; every rank must name the same, in the same order");
    }
    const bool has_elements = !parameters_.elements_on(tensor, Rank::of(r)).empty();
    if (has_elements && other.what == What::kNothing) {
      throw InvalidArgument(member + ": rank " + std::to_string(first) + " names " + describe(meant) + ", rank " +
                            std::to_string(r) +
                            ", which holds elements of it, names an undefined tensor; every rank must have the same "
                            "gradients");
    }
  }
}

std::vector<SumOperand> SumOperands::agree(ranks::Ranks& ranks, const std::vector<SumOperand>& mine,
                                           const std::string& member) const {
  const auto blobs = ranks.all_gather(std::as_bytes(std::span(mine)), "what " + member + " is of");
  std::vector<SumOperand> agreed = mine;
  std::vector<SumOperand> by_rank(blobs.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    for (std::size_t r = 0; r < blobs.size(); ++r)
      std::memcpy(&by_rank[r], blobs[r].data() + i * sizeof(SumOperand), sizeof(SumOperand));
    require_same(by_rank, member);
    for (const auto& other : by_rank) {
      if (!agreed[i].parameter.valid() && (other.parameter.valid() || agreed[i].what == What::kNothing))
        agreed[i] = other;
    }
  }
  return agreed;
}

}  // namespace autopar::collectives
