#include "torch/results/own_region.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <autopar/core/error.hpp>

#include "torch/deployment/world_sums.hpp"
#include "torch/results/result_node.hpp"

namespace autopar::results {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

bool is_leaf(const Node& node) { return dynamic_cast<const torch::autograd::AccumulateGrad*>(&node) != nullptr; }

at::Tensor zeros_of(const Edge& end) {
  const auto& form = end.function->input_metadata(end.input_nr);
  std::vector<std::int64_t> sizes;
  for (const auto& size : form.shape_as_dim_vector()) sizes.push_back(size.expect_int());
  return at::zeros(sizes, form.options());
}

std::vector<std::int64_t> forms_in(const Blob& blob) {
  std::vector<std::int64_t> forms(blob.size() / sizeof(std::int64_t));
  std::memcpy(forms.data(), blob.data(), forms.size() * sizeof(std::int64_t));
  return forms;
}

/// Backwards that reach results end there.
class Closed {
 public:
  explicit Closed(const std::vector<ResultNode*>& nodes) : nodes_(nodes) {
    for (auto* node : nodes_) node->set_closed(true);
  }
  ~Closed() {
    for (auto* node : nodes_) node->set_closed(false);
  }
  Closed(const Closed&) = delete;
  Closed& operator=(const Closed&) = delete;

 private:
  const std::vector<ResultNode*>& nodes_;
};

}  // namespace

OwnRegion::OwnRegion(edge_list roots) : roots_(std::move(roots)) {
  std::unordered_set<const Node*> seen;
  std::set<std::pair<const Node*, std::uint32_t>> ended;
  edge_list open(roots_.rbegin(), roots_.rend());
  while (!open.empty()) {
    const auto edge = std::move(open.back());
    open.pop_back();
    if (!edge.is_valid()) continue;
    auto* const result = dynamic_cast<ResultNode*>(edge.function.get());
    if (result != nullptr || is_leaf(*edge.function)) {
      if (result != nullptr && seen.insert(result).second) nodes_.push_back(result);
      if (ended.emplace(edge.function.get(), edge.input_nr).second) ends_.push_back(edge);
      continue;
    }
    if (!seen.insert(edge.function.get()).second) continue;
    const auto& next = edge.function->next_edges();
    open.insert(open.end(), next.rbegin(), next.rend());
  }
}

bool OwnRegion::is_common(const Edge& end) const {
  const auto* const result = dynamic_cast<const ResultNode*>(end.function.get());
  return result != nullptr && result->is_common(end.input_nr);
}

std::size_t OwnRegion::common_ends() const {
  return static_cast<std::size_t>(std::ranges::count_if(ends_, [this](const Edge& end) { return is_common(end); }));
}

std::int64_t OwnRegion::elements_of_model_parameter() const {
  for (const auto& end : ends_) {
    const auto has = [&](const ResultNode* node) { return node->has_parameter(end.function.get()); };
    if (std::any_of(nodes_.begin(), nodes_.end(), has)) return zeros_of(end).numel();
  }
  return 0;
}

variable_list OwnRegion::gradients(ranks::Ranks& ranks, const variable_list& of_roots,
                                   const std::vector<bool>& wanted) {
  auto gradients = gradients_here(of_roots, wanted);
  std::vector<std::size_t> common;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (wanted[i] && is_common(ends_[i])) common.push_back(i);
  }
  if (ranks.size() > 1 && common_ends() > 0) sum(ranks, common, gradients);
  return gradients;
}

// A backward of its own, as what leads to the ends may also be part of the user's graph elsewhere, where gradients are
// the same on all ranks and must not be added up.
variable_list OwnRegion::gradients_here(const variable_list& of_roots, const std::vector<bool>& wanted) {
  variable_list gradients(ends_.size());
  edge_list roots, ends;
  variable_list given;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    if (!roots_[i].is_valid() || !of_roots[i].defined()) continue;
    roots.push_back(roots_[i]);
    given.push_back(of_roots[i]);
  }
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (wanted[i]) ends.push_back(ends_[i]);
  }
  if (roots.empty() || ends.empty()) return gradients;
  const Closed closed(nodes_);
  constexpr bool kKeepGraph = true, kCreateGraph = false, kAccumulate = false;
  auto found =
      torch::autograd::Engine::get_default_engine().execute(roots, given, kKeepGraph, kCreateGraph, kAccumulate, ends);
  for (std::size_t i = 0, f = 0; i < ends_.size(); ++i) {
    if (wanted[i]) gradients[i] = std::move(found[f++]);
  }
  return gradients;
}

void OwnRegion::sum(ranks::Ranks& ranks, const std::vector<std::size_t>& common, variable_list& gradients) const {
  constexpr auto kAction = "summing gradients of results that all ranks have";
  std::vector<at::Tensor> addends;
  std::vector<std::int64_t> forms;  // sizes, and whether there is a gradient
  for (const auto i : common) {
    addends.push_back(gradients[i].defined() ? gradients[i] : zeros_of(ends_[i]));
    forms.push_back(addends.back().numel() * 2 + (gradients[i].defined() ? 1 : 0));
  }
  const auto all = ranks.all_gather(std::as_bytes(std::span(forms)), kAction);
  const auto first = forms_in(all[0]);
  std::vector<bool> defined(common.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto other = forms_in(all[r]);
    const auto same_size = [](std::int64_t a, std::int64_t b) { return a / 2 == b / 2; };
    if (!std::ranges::equal(first, other, same_size)) {
      throw InvalidArgument("the ranks' backwards reach different results that all ranks have: rank 0 reaches " +
                            std::to_string(first.size()) + ", rank " + std::to_string(r) + " reaches " +
                            std::to_string(other.size()) +
                            "; compute losses and their gradients by the same code on every rank");
    }
    for (std::size_t k = 0; k < other.size(); ++k) {
      if (other[k] % 2 == 1) defined[k] = true;
    }
  }
  if (common.empty()) return;
  std::vector<double> flat;
  for (const auto& addend : addends) {
    const auto host = deployment::real_parts(addend).to(at::kCPU, at::kDouble).contiguous();
    flat.insert(flat.end(), host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  }
  ranks.all_reduce_sum(std::span<double>(flat), kAction);
  std::size_t offset = 0;
  for (std::size_t k = 0; k < common.size(); ++k) {
    const auto real = deployment::real_parts(addends[k]);
    auto total = at::zeros(real.sizes(), at::TensorOptions().dtype(at::kDouble));
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(offset), real.numel(), total.mutable_data_ptr<double>());
    offset += static_cast<std::size_t>(real.numel());
    total = total.to(real.options());
    if (!defined[k]) continue;
    gradients[common[k]] = addends[k].is_complex() ? at::view_as_complex(total) : total;
  }
}

}  // namespace autopar::results
