#include "torch/staging/staged_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/testing/dice.hpp>

#include <catch_shim.hpp>

#include "torch/cost/profile.hpp"
#include "unit/torch/passes/models_of_passes.hpp"

namespace {
namespace staged_graph_test {

using namespace autopar;
using testing::Dice;

/// A captured model with its atoms, in the order of their first operators.
struct Program {
  explicit Program(test::TestModel& model) {
    graph = test::captured_for_passes(model, model.arguments(4), false);
    semantics = algebra::analyze_batch(graph);
    atoms = cost::partition_into_atoms(graph, semantics);
  }

  /// Consecutive atoms in `count` stages of one rank each, cut at random places.
  [[nodiscard]] staging::StageMap random_stages(int count, Dice& dice) const {
    std::vector<int> cuts;
    for (int s = 1; s < count; ++s) cuts.push_back(dice.below(static_cast<int>(atoms.atoms.size()) + 1));
    std::ranges::sort(cuts);
    staging::StageMap map;
    for (const NodeId atom : atoms.atom_of) {
      if (!atom.valid()) {
        map.stage_of.push_back(StageId::none());
        continue;
      }
      const auto before = std::ranges::count_if(cuts, [&](int cut) { return cut <= atom.value(); });
      map.stage_of.push_back(StageId(static_cast<int>(before)));
    }
    for (int s = 0; s < count; ++s) map.meshes.push_back({Rank(s)});
    return map;
  }

  OpGraph graph;
  algebra::BatchSemantics semantics;
  cost::AtomPartition atoms;
};

TEST_CASE("divide: each stage has its operators, in program order") {
  Dice dice(7);
  for (const auto& [name, model] : test::models_of_passes()) {
    const Program program(*model);
    for (int trial = 0; trial < 6; ++trial) {
      const auto map = program.random_stages(1 + trial % 4, dice);
      const auto divided = staging::divide(program.graph, program.semantics, map, 4);
      INFO(name << ", trial " << trial);
      std::set<OpId> seen;
      for (std::size_t s = 0; s < divided.stage_ops.size(); ++s) {
        CHECK(std::ranges::is_sorted(divided.stage_ops[s]));
        for (const OpId op : divided.stage_ops[s]) {
          CHECK(map.stage_of[op.index()] == StageId::of(s));
          CHECK(seen.insert(op).second);
        }
      }
      std::size_t in_stages = 0;
      for (const auto& handling : program.semantics.ops) in_stages += handling.in_stage ? 1 : 0;
      CHECK(seen.size() == in_stages);
    }
  }
}

TEST_CASE("divide: what a stage reads from another comes in a channel") {
  Dice dice(11);
  int crossings = 0;
  for (const auto& [name, model] : test::models_of_passes()) {
    const Program program(*model);
    for (int trial = 0; trial < 6; ++trial) {
      const auto map = program.random_stages(2 + trial % 3, dice);
      const auto divided = staging::divide(program.graph, program.semantics, map, 4);
      INFO(name << ", trial " << trial);
      std::map<std::pair<StageId, StageId>, std::set<ValueId>> sent;
      for (std::size_t c = 0; c < divided.channel_values.size(); ++c) {
        const auto& channel = divided.pipeline.channels[c];
        if (channel.from.valid() && channel.to.valid()) CHECK(channel.from < channel.to);
        for (const ValueId value : divided.channel_values[c]) sent[{channel.from, channel.to}].insert(value);
      }
      std::map<std::pair<StageId, StageId>, std::set<ValueId>> read;
      for (std::size_t i = 0; i < program.graph.ops.size(); ++i) {
        if (!program.semantics.ops[i].in_stage) continue;
        for_each_input(program.graph.ops[i], [&](ValueId value) {
          const auto& info = program.graph.value(value);
          const bool is_made = info.kind == ValueKind::kComputed && !program.semantics.is_prologue(value) &&
                               program.semantics.ops[info.definer.index()].in_stage;
          if (!is_made || map.stage_of[info.definer.index()] == map.stage_of[i]) return;
          read[{map.stage_of[info.definer.index()], map.stage_of[i]}].insert(value);
        });
      }
      for (const auto& [ends, values] : read) {
        const auto& [from, to] = ends;
        CHECK(std::ranges::includes(sent[{from, to}], values));
        crossings += static_cast<int>(values.size());
      }
      for (const auto& [ends, values] : sent) {
        if (!ends.first.valid() || !ends.second.valid()) continue;
        const bool is_read = values == read[ends];
        CHECK(is_read);
      }
    }
  }
  CHECK(crossings >= 50);
}

TEST_CASE("divide: a stage that would read a later one is refused") {
  test::Mlp model;
  const Program program(model);
  Dice dice(3);
  auto map = program.random_stages(1, dice);
  map.meshes.push_back({Rank(1)});
  for (auto& stage : map.stage_of) {
    if (stage.valid()) stage = StageId(1);
  }
  const auto last =
      std::ranges::find_if(map.stage_of.rbegin(), map.stage_of.rend(), [](StageId stage) { return stage.valid(); });
  *last = StageId(0);
  CHECK_THROWS_AS(staging::divide(program.graph, program.semantics, map, 2), InvalidArgument);
}

TEST_CASE("place_by_parameters: every parameter is read where it is") {
  Dice dice(5);
  for (const auto& [name, model] : test::models_of_passes()) {
    const Program program(*model);
    const auto map = program.random_stages(3, dice);
    std::vector<std::vector<StageId>> home(program.graph.values.size());
    for (std::size_t i = 0; i < program.graph.ops.size(); ++i) {
      if (!program.semantics.ops[i].in_stage) continue;
      for_each_input(program.graph.ops[i], [&](ValueId value) {
        if (program.graph.value(value).kind != ValueKind::kParameter) return;
        auto& stages = home[value.index()];
        if (std::ranges::find(stages, map.stage_of[i]) == stages.end()) stages.push_back(map.stage_of[i]);
        std::ranges::sort(stages);
      });
    }
    const auto placed = staging::place_by_parameters(program.graph, program.semantics, program.atoms, home, 3);
    INFO(name);
    for (std::size_t i = 0; i < program.graph.ops.size(); ++i) {
      if (!program.semantics.ops[i].in_stage) continue;
      for_each_input(program.graph.ops[i], [&](ValueId value) {
        if (program.graph.value(value).kind != ValueKind::kParameter) return;
        CHECK(std::ranges::find(home[value.index()], placed[i]) != home[value.index()].end());
      });
    }
  }
}

}  // namespace staged_graph_test
}  // namespace
