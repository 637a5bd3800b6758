#include "torch/results/outside_terms.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "torch/results/result_node.hpp"

namespace autopar::results {

using torch::autograd::Edge;
using torch::autograd::Node;

namespace {

using NodeSizes = std::vector<std::int64_t>;

NodeSizes sizes_of(const Node& node, std::size_t input) {
  NodeSizes sizes;
  for (const auto& size : node.input_metadata(input).shape_as_dim_vector()) sizes.push_back(size.expect_int());
  return sizes;
}

NodeSizes sizes_of(const Edge& edge) { return sizes_of(*edge.function, edge.input_nr); }

/// Whether an operand of these sizes is repeated along the first dimension of the result, as a parameter is that meets
/// a batch.
bool has_more_rows(const NodeSizes& result, const NodeSizes& operand) {
  if (result.empty() || result.front() <= 1) return false;
  return operand.size() < result.size() || (operand.size() == result.size() && operand.front() == 1);
}

/// A kind of nodes, by the start of their names.
struct Kind {
  std::string_view name;
  std::size_t number;
};

/// Where their two factors begin among the operands.
constexpr Kind kProducts[] = {
    {"MmBackward", 0}, {"BmmBackward", 0}, {"AddmmBackward", 1}, {"BaddbmmBackward", 1}, {"AddbmmBackward", 1}};

/// How many of their first operands are activations.
constexpr Kind kLayers[] = {{"ConvolutionBackward", 1},
                            {"ConvolutionOverrideableBackward", 1},
                            {"MkldnnConvolutionBackward", 1},
                            {"CudnnConvolution", 1},
                            {"MiopenConvolution", 1},
                            {"LinearBackward", 1},
                            {"MkldnnLinearBackward", 1},
                            {"NativeLayerNormBackward", 1},
                            {"NativeGroupNormBackward", 1},
                            {"NativeBatchNormBackward", 1},
                            {"CudnnBatchNormBackward", 1},
                            {"MiopenBatchNormBackward", 1},
                            {"FusedRmsNormBackward", 1},
                            {"CudnnRnnBackward", 1},
                            {"MiopenRnnBackward", 1},
                            {"MkldnnRnnLayerBackward", 1},
                            {"GridSampler", 1},
                            {"CdistBackward", 2},
                            {"TrilinearBackward", 3},
                            {"ScaledDotProduct", 3},
                            {"EmbeddingBackward", 0},
                            {"EmbeddingBagBackward", 0}};

constexpr std::string_view kPointwise[] = {
    "AddBackward",     "SubBackward",   "RsubBackward",    "MulBackward",     "DivBackward",        "AddcmulBackward",
    "AddcdivBackward", "WhereBackward", "MaximumBackward", "MinimumBackward", "FmaxBackward",       "FminBackward",
    "LerpBackward",    "HypotBackward", "Atan2Backward",   "PowBackward1",    "PreluKernelBackward"};

template <std::size_t count>
const Kind* find(const Kind (&kinds)[count], std::string_view name) {
  const auto found = std::ranges::find_if(kinds, [&](const Kind& kind) { return name.starts_with(kind.name); });
  return found == std::end(kinds) ? nullptr : found;
}

// One factor without history is data, but for what terms of parameters have: a vector (power iterations), or a constant
// that leaves the other factor's sizes as they are.
bool multiplies_data(const Node& node, std::size_t first) {
  const auto& edges = node.next_edges();
  if (edges.size() < first + 2) return false;
  const bool has_a = edges[first].is_valid(), has_b = edges[first + 1].is_valid();
  if (has_a && has_b) return false;
  const auto result = sizes_of(node, 0);
  if (first == 1 && edges[0].is_valid() && has_more_rows(result, sizes_of(edges[0]))) return true;
  if (has_a == has_b) return false;
  const bool by_vector = result[result.size() - (has_a ? 1 : 2)] == 1;
  return !by_vector && result != sizes_of(edges[has_a ? first : first + 1]);
}

bool stretches_over_data(const Node& node, const std::unordered_map<const Node*, parameters::StateId>& leading) {
  const auto& edges = node.next_edges();
  if (std::ranges::all_of(edges, [](const Edge& edge) { return edge.is_valid(); })) return false;
  const auto result = sizes_of(node, 0);
  return std::ranges::any_of(edges, [&](const Edge& edge) {
    return edge.is_valid() && leading.contains(edge.function.get()) && has_more_rows(result, sizes_of(edge));
  });
}

bool takes_data(const Node& node, const std::unordered_map<const Node*, parameters::StateId>& leading) {
  if (node.num_inputs() == 0) return false;
  const auto name = node.name();
  if (const auto* product = find(kProducts, name)) return multiplies_data(node, product->number);
  if (const auto* layer = find(kLayers, name)) {
    const auto& edges = node.next_edges();
    const auto activations = std::min(layer->number, edges.size());
    const auto is_missing = [](const Edge& edge) { return !edge.is_valid(); };
    return activations == 0 ||
           std::any_of(edges.begin(), edges.begin() + static_cast<std::ptrdiff_t>(activations), is_missing);
  }
  const auto is_kind = [&](std::string_view kind) { return name.starts_with(kind); };
  return std::ranges::any_of(kPointwise, is_kind) && stretches_over_data(node, leading);
}

bool is_result(const Node* node) { return dynamic_cast<const ResultNode*>(node) != nullptr; }

}  // namespace

OutsideTerms::OutsideTerms(const std::unordered_set<Node*>& nodes,
                           const std::unordered_map<const void*, parameters::StateId>& leaves) {
  std::unordered_map<const Node*, std::vector<const Node*>> before;  // nodes that lead to it
  std::unordered_map<const Node*, parameters::StateId> leading;      // nodes that lead to a leaf, and to which
  std::vector<const Node*> open;
  for (const auto* node : nodes) {
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) before[edge.function.get()].push_back(node);
    }
    const auto* accumulator = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (accumulator == nullptr) continue;
    const auto leaf = leaves.find(accumulator->variable.unsafeGetTensorImpl());
    if (leaf == leaves.end()) continue;
    leading.emplace(node, leaf->second);
    open.push_back(node);
  }
  for (const auto* accumulator : open) {
    const auto& from = before[accumulator];
    if (!from.empty() && std::ranges::all_of(from, is_result)) from_results_only_.insert(leading.at(accumulator));
  }
  const Node* first = nullptr;
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    for (const auto* upper : before[node]) {
      if (!is_result(upper) && leading.emplace(upper, leading.at(node)).second) open.push_back(upper);
    }
  }
  for (const auto& [node, leaf] : leading) {
    const bool is_earlier = first == nullptr || node->sequence_nr() < first->sequence_nr();
    if (!is_earlier || !takes_data(*node, leading)) continue;
    first = node;
    on_data_ = OnData{node->name(), leaf};
  }
}

}  // namespace autopar::results
