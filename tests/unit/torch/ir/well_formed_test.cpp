#include "capture/ir/well_formed.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unit/torch/capture/models.hpp"

namespace autopar::test {
namespace well_formed {

OpId last(const OpGraph& graph) { return OpId::of(graph.ops.size() - 1); }

/// A value that an operator makes, and another one reads.
ValueId between(const OpGraph& graph) {
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    for (const auto& slot : graph.ops[i].inputs) {
      for (const auto value : slot.values)
        if (value.valid() && graph.value(value).definer.valid()) return value;
    }
  }
  return ValueId::none();
}

TEST_CASE("fault_of: captured programs are well-formed") {
  Mlp mlp;
  ResNet network;
  Transformer transformer;
  Lstm lstm;
  Mixed mixed;
  Embedded embedded;
  Autocast autocast;
  for (TestModel* model : std::vector<TestModel*>{&mlp, &network, &transformer, &lstm, &mixed, &embedded, &autocast}) {
    CHECK(ir::fault_of(capture_model(*model)) == "");
  }
}

TEST_CASE("fault_of: contradictions are described") {
  Mixed model;
  const auto whole = capture_model(model);
  const auto middle = between(whole);
  REQUIRE(middle.valid());
  const std::vector<std::pair<std::string, std::function<void(OpGraph&)>>> faults{
      {"which is none", [](OpGraph& graph) { graph.ops.back().inputs.front().values.front() = ValueId(1 << 20); }},
      {"before it is made", [&](OpGraph& graph) { std::swap(graph.ops.front(), graph.ops.back()); }},
      {"names another", [&](OpGraph& graph) { graph.value(middle).definer = last(graph); }},
      {"a leaf that an operator makes", [&](OpGraph& graph) { graph.value(middle).kind = ValueKind::kInput; }},
      {"not one result", [](OpGraph& graph) { graph.ops.back().outputs.clear(); }},
      {"a storage that is none", [](OpGraph& graph) { graph.ops.back().writes = {StorageId(graph.storage_count)}; }},
      {"do not ascend",
       [](OpGraph& graph) {
         graph.ops.back().reads = {StorageId(1), StorageId(0)};
       }},
      {"as many strides", [&](OpGraph& graph) { graph.value(middle).strides.resize(9); }},
      {"an output is no value", [](OpGraph& graph) { graph.outputs.front() = ValueId::none(); }},
      {"no leaf of its kind", [&](OpGraph& graph) { graph.parameters.front().value = middle; }},
      {"no leaf of its kind", [&](OpGraph& graph) { graph.inputs.front() = graph.parameters.front().value; }},
      {"follows a version", [&](OpGraph& graph) { graph.value(middle).previous = ValueId(1 << 20); }}};
  for (const auto& [told, damage] : faults) {
    INFO(told);
    auto graph = whole;
    damage(graph);
    CHECK_THAT(ir::fault_of(graph), Catch::Matchers::Contains(told));
  }
}

}  // namespace well_formed
}  // namespace autopar::test
