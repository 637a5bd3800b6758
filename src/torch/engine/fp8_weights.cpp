#include "torch/engine/fp8_weights.hpp"

#include <algorithm>
#include <iterator>

#include <c10/core/ScalarType.h>

namespace autopar::engine {

namespace {

/// Whether the layer reads the value as its weight alone, and always runs in 8 bits: its input is never empty.
bool is_weight_of(const OpGraph& graph, OpId layer, ValueId cast) {
  int read = 0;
  for_each_input(graph.op(layer), [&](ValueId value) { read += value == cast ? 1 : 0; });
  constexpr int kX = 0, kWeight = 1;
  const auto& x = graph.value(graph.input(layer, kX));
  const bool is_never_empty =
      std::ranges::none_of(x.sizes, [](SizeExpr size) { return size.fixed == 0 && size.per_sample == 0; });
  return read == 1 && graph.input(layer, kWeight) == cast && x.dtype == c10::kBFloat16 && is_never_empty;
}

}  // namespace

std::vector<ValueId> fp8_weights(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                 const std::vector<ValueId>& parameters, const std::vector<OpId>& layers) {
  if (layers.empty()) return {};
  const auto uses = graph.uses();
  const auto is_output = [&](ValueId value) { return std::ranges::find(graph.outputs, value) != graph.outputs.end(); };
  const auto is_read_by_layers = [&](OpId op) {
    if (!plan.handling(op).once) return false;  // it is no cast
    const auto cast = graph.output(op);
    if (graph.value(cast).dtype != c10::kBFloat16 || is_output(cast)) return false;
    return std::ranges::all_of(uses[cast.index()], [&](OpId reader) {
      return std::ranges::binary_search(layers, reader) && is_weight_of(graph, reader, cast);
    });
  };
  std::vector<ValueId> weights;
  std::ranges::copy_if(parameters, std::back_inserter(weights), [&](ValueId parameter) {
    const auto& readers = uses[parameter.index()];
    return !readers.empty() && !is_output(parameter) && std::ranges::all_of(readers, is_read_by_layers);
  });
  return weights;
}

}  // namespace autopar::engine
