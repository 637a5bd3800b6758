#include "torch/engine/fp8_weights.hpp"

#include <algorithm>
#include <iterator>

#include <c10/core/ScalarType.h>

#include "torch/engine/rank_runtime.hpp"
#include "torch/parameters/compute_copy.hpp"

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

Fp8Weights::Fp8Weights(const RankRuntime& runtime, fp8::Layers& layers) : runtime_(runtime) {
  const auto& graph = runtime.graph();
  std::vector<ValueId> weights;
  for (const auto& stage : runtime.stages())
    std::ranges::copy(fp8_weights(graph, *runtime.program().plan, stage->parameters(), stage->runner().in_fp8()),
                      std::back_inserter(weights));
  for (const auto weight : weights) weights_.emplace_back(weight, layers.find(graph.value(weight).name));
  for (int g = 0; g < static_cast<int>(runtime.pipeline().groups.size()); ++g) find_gathered(g, weights, layers);
}

void Fp8Weights::find_gathered(int group, const std::vector<ValueId>& weights, fp8::Layers& layers) {
  const auto memory = runtime_.shared_shards_of(group);
  if (memory == nullptr || runtime_.zero_of(group) < 3 || memory->unit().gathered != c10::kBFloat16) return;
  Group made;
  std::vector<fp8::Layer*> of_places(memory->unit().places.size(), nullptr);
  for (const auto weight : weights) {
    const auto& name = runtime_.graph().value(weight).name;
    const auto* const place = memory->unit().find(name);
    if (place == nullptr) continue;
    of_places[static_cast<std::size_t>(place - memory->unit().places.data())] = layers.find(name);
    made.weights.push_back(weight);
  }
  if (made.weights.empty()) return;
  made.shards = std::make_unique<parameters::Fp8Shards>(memory, std::move(of_places));
  if (made.shards->gains()) gathered_[group] = std::move(made);
}

std::vector<int> Fp8Weights::groups() const {
  std::vector<int> groups;
  for (const auto& [g, group] : gathered_) {
    const bool are_trained =
        std::ranges::all_of(group.weights, [&](ValueId weight) { return runtime_.handle(weight).requires_grad(); });
    if (are_trained && group.shards->is_ready()) groups.push_back(g);
  }
  return groups;
}

void Fp8Weights::add_gathered(int group, std::map<ValueId, at::Tensor>& copies) const {
  const auto& unit = runtime_.shards_of(group)->unit();
  for (const auto& place : runtime_.bucket_layouts()[static_cast<std::size_t>(group)].places()) {
    const auto parameter = ValueId::of(place.form.key);
    const auto* const in_unit = unit.find(runtime_.graph().value(parameter).name);
    copies[parameter] = shards_of(group).parameter(static_cast<std::size_t>(in_unit - unit.places.data()));
  }
}

// Parameters of units have no copies of their own.
void Fp8Weights::add_kept(std::map<ValueId, at::Tensor>& copies) const {
  for (const auto& [weight, layer] : weights_) {
    const auto& handle = runtime_.handle(weight);
    auto* const copy = parameters::ComputeCopy::of(handle);
    if (copy == nullptr || copy->type() != c10::kBFloat16 || !layer->is_ready || !handle.requires_grad()) continue;
    if (auto rows = copy->current_in_8_bits(handle, layer->next_of_weight()); rows.defined()) copies[weight] = rows;
  }
}

}  // namespace autopar::engine
