#include <catch_shim.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/plan/memory/microbatch_memory.hpp>
#include <autopar/testing/random_models.hpp>

namespace microbatch_memory_test {

using namespace autopar;
using testing::Dice;

/// A workload of nodes without edges, each of so many nodes of a captured graph, and what they cost.
struct Nodes {
  Workload work;
  std::vector<NodeId> ids;
  std::vector<NodeCost> costs;
  std::vector<Bytes> made;    ///< gradients of parameters; none if it is empty
  std::vector<Bytes> copies;  ///< of parameters, that the call makes; none if it is empty
  std::vector<Bytes> to_sum;  ///< gradients that replicas sum; none if it is empty

  void add(std::vector<NodeId> members, const NodeCost& cost) {
    WorkNode node;
    node.members = std::move(members);
    ids.push_back(work.graph.add_node(std::move(node)));
    costs.push_back(cost);
  }
  [[nodiscard]] std::vector<MicrobatchMemory> apart(ScheduleKind schedule) const {
    std::vector<MicrobatchMemory> out;
    for (const NodeId id : ids) {
      out.push_back(MicrobatchMemory::of(work.graph[id], costs[id.index()], schedule));
      if (!made.empty()) out.back().made = made[id.index()];
      if (!copies.empty()) out.back().copies = copies[id.index()];
      if (!to_sum.empty()) out.back().add_to_sum(to_sum[id.index()], work.graph[id].members.size() > 1);
    }
    return out;
  }
  [[nodiscard]] MicrobatchMemory compute(ScheduleKind schedule) const {
    MicrobatchMemory sum;
    for (const MicrobatchMemory& node : apart(schedule)) sum = sum.with(node, schedule);
    return sum;
  }
};

NodeCost drawn(Dice& dice) {
  NodeCost cost;
  cost.saved = Bytes(dice.chance(20) ? 0 : dice(1, 100));
  cost.workspace = Bytes(dice.chance(20) ? 0 : dice(1, 150));
  cost.deferred_weight = Bytes(dice.chance(50) ? 0 : dice(1, 150));
  cost.forward_workspace = Bytes(dice(0, static_cast<int>(cost.workspace.value())));
  return cost;
}

Nodes drawn_nodes(Dice& dice) {
  Nodes nodes;
  const int count = dice(1, 9);
  for (int i = 0; i < count; ++i) nodes.add({NodeId(3 * i + dice(0, 2))}, drawn(dice));
  return nodes;
}

/// Runs of nodes, some of which run again.
std::vector<detail::SegmentPiece> drawn_pieces(Dice& dice, const Nodes& nodes) {
  std::vector<detail::SegmentPiece> pieces;
  for (std::size_t begin = 0; begin < nodes.ids.size();) {
    const std::size_t end = std::min(nodes.ids.size(), begin + static_cast<std::size_t>(dice(1, 4)));
    if (dice.chance(60)) {
      detail::SegmentPiece& piece = pieces.emplace_back();
      for (std::size_t i = begin; i < end; ++i) piece.nodes.push_back(nodes.ids[i]);
      piece.entering = Bytes(dice(0, 40));
      for (const NodeId node : piece.nodes) piece.saved += nodes.costs[node.index()].saved;
      piece.leaving = Bytes(dice(0, static_cast<int>(piece.saved.value())));
      piece.let_go = Bytes(dice(0, static_cast<int>(piece.leaving.value())));
      piece.gradients = Bytes(dice.chance(50) ? 0 : dice(1, 150));
      const NodeId last = piece.nodes.back();
      const auto most = nodes.costs[last.index()].workspace - nodes.costs[last.index()].forward_workspace;
      if (dice.chance(30))
        piece.for_others[piece.nodes.front()] =
            Bytes(dice(0, static_cast<int>(nodes.costs[piece.nodes.front().index()].saved.value())));
      if (dice.chance(30)) piece.summed[last] = Bytes(dice(0, static_cast<int>(most.value())));
    }
    begin = end;
  }
  return pieces;
}

/// Plays a forward and a backward, byte by byte.
struct Played {
  std::int64_t held = 0, peak = 0, kept = 0;
  std::int64_t gradients = 0;  ///< of parameters, which stay
  std::int64_t summed = 0;     ///< likewise, after the node that makes them has worked

  Played(const Nodes& nodes, const std::vector<detail::SegmentPiece>& again) {
    std::vector<const detail::SegmentPiece*> piece_of(nodes.ids.size(), nullptr);
    for (const auto& piece : again) {
      for (const NodeId id : piece.nodes) piece_of[id.index()] = &piece;
    }
    const auto at_work = [&](std::size_t i) {
      Bytes works = nodes.costs[i].workspace;
      if (piece_of[i] != nullptr && piece_of[i]->summed.contains(nodes.ids[i]))
        works = works - piece_of[i]->summed.at(nodes.ids[i]);
      peak = std::max(peak, held + works.value() + gradients + summed);
    };
    // While a segment runs again its gradients of parameters count as if they were there.
    const auto made_from = [&](const detail::SegmentPiece& piece, NodeId first) {
      Bytes sum{};
      for (const NodeId id : piece.nodes) {
        if (!nodes.made.empty() && id >= first) sum += nodes.made[id.index()];
        if (!nodes.to_sum.empty() && id > first) sum += nodes.to_sum[id.index()];
      }
      return sum.value();
    };
    const auto runs = [&](std::size_t i, std::int64_t beside) {
      peak = std::max(peak, held + nodes.costs[i].forward_workspace.value() + beside + gradients + summed);
    };
    const auto copies_of = [&](std::size_t i) { return nodes.copies.empty() ? 0 : nodes.copies[i].value(); };
    for (std::size_t i = 0; i < nodes.ids.size(); ++i) held += copies_of(i);
    const std::int64_t all_copies = held;
    for (std::size_t i = 0; i < nodes.ids.size(); ++i) {
      const detail::SegmentPiece* const piece = piece_of[i];
      if (piece != nullptr && piece->nodes.front().index() == i) held += piece->entering.value();
      held += nodes.costs[i].saved.value();
      if (piece == nullptr)
        at_work(i);
      else
        runs(i, 0);
      if (piece != nullptr && piece->nodes.back().index() == i) held += (piece->leaving - piece->saved).value();
    }
    kept = held - all_copies;
    for (std::size_t i = nodes.ids.size(); i-- > 0;) {
      if (piece_of[i] != nullptr && piece_of[i]->nodes.back().index() == i) {
        held -= piece_of[i]->let_go.value();
        for (const NodeId id : piece_of[i]->nodes) {
          held += nodes.costs[id.index()].saved.value();
          runs(id.index(), piece_of[i]->gradients.value() + made_from(*piece_of[i], id));
        }
        for (const auto& [id, bytes] : piece_of[i]->for_others) held -= bytes.value();
      }
      if (!nodes.made.empty()) gradients += nodes.made[i].value();
      at_work(i);
      if (!nodes.to_sum.empty()) summed += nodes.to_sum[i].value();
      held -= nodes.costs[i].saved.value();
      if (piece_of[i] == nullptr) held -= copies_of(i);
      if (piece_of[i] != nullptr && piece_of[i]->for_others.contains(nodes.ids[i]))
        held += piece_of[i]->for_others.at(nodes.ids[i]).value();
      if (piece_of[i] == nullptr || piece_of[i]->nodes.front().index() != i) continue;
      held -= (piece_of[i]->entering + piece_of[i]->leaving - piece_of[i]->let_go).value();
      for (const NodeId id : piece_of[i]->nodes) held -= copies_of(id.index());
    }
  }
};

TEST_CASE("microbatch_memory: equals a byte-by-byte simulation", "[laws]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed);
    Nodes nodes = drawn_nodes(dice);
    if (seed % 2 == 1) {
      for (std::size_t i = 0; i < nodes.ids.size(); ++i) nodes.made.emplace_back(dice.chance(30) ? 0 : dice(1, 200));
    }
    if (seed % 4 == 3) {  // no larger than gradients
      Dice other(seed + 5000);
      for (const Bytes made : nodes.made)
        nodes.copies.emplace_back(other.chance(30) ? 0 : other(0, static_cast<int>(made.value())));
    }
    const Played plain(nodes, {});
    const MicrobatchMemory compute = nodes.compute(ScheduleKind::kOneFOneB);
    REQUIRE(plain.held == 0);
    REQUIRE(compute.kept == Bytes(plain.kept));
    REQUIRE(compute.made == Bytes(plain.gradients));
    REQUIRE(compute.made + compute.copies + compute.kept + compute.work == Bytes(plain.peak));
    REQUIRE(compute.deferred_weight == Bytes(0));
    detail::StageMicrobatch stage(nodes.ids, nodes.costs, ScheduleKind::kOneFOneB,
                                  nodes.apart(ScheduleKind::kOneFOneB));
    REQUIRE(stage.memory().work == compute.work);
    std::vector<detail::SegmentPiece> again;
    for (const auto& piece : drawn_pieces(dice, nodes)) {
      again.push_back(piece);
      stage.recompute(piece);
      const Played played(nodes, again);
      REQUIRE(played.held == 0);
      REQUIRE(stage.memory().kept == Bytes(played.kept));
      REQUIRE(stage.memory().copies == compute.copies);
      REQUIRE(stage.memory().made + compute.copies + stage.memory().kept + stage.memory().work == Bytes(played.peak));
    }
  }
}

TEST_CASE("microbatch_memory: beside what replicas sum, it equals a simulation", "[laws]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 9000);
    Nodes nodes = drawn_nodes(dice), alone = nodes;
    for (std::size_t i = 0; i < nodes.ids.size(); ++i) nodes.to_sum.emplace_back(dice.chance(30) ? 0 : dice(1, 200));
    detail::StageMicrobatch stage(nodes.ids, nodes.costs, ScheduleKind::kOneFOneB,
                                  nodes.apart(ScheduleKind::kOneFOneB));
    std::vector<detail::SegmentPiece> again;
    const auto check = [&] {
      const Played beside(nodes, again), without(alone, again);
      REQUIRE(stage.memory().to_sum == Bytes(beside.summed));
      REQUIRE(stage.memory().kept + stage.memory().summing == Bytes(beside.peak));
      REQUIRE(stage.memory().kept + stage.memory().work == Bytes(without.peak));
    };
    check();
    for (const auto& piece : drawn_pieces(dice, nodes)) {
      again.push_back(piece);
      stage.recompute(piece);
      check();
    }
  }
}

TEST_CASE("microbatch_memory: a block takes no less than its nodes", "[laws]") {
  int equal = 0, more = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 1000), other(seed + 2000);
    Nodes nodes = drawn_nodes(dice);
    if (seed % 2 == 1) {
      for (std::size_t i = 0; i < nodes.ids.size(); ++i) nodes.copies.emplace_back(other(0, 80));
    }
    for (std::size_t i = 0; i < nodes.ids.size(); ++i) nodes.to_sum.emplace_back(other(0, 120));
    for (const ScheduleKind schedule : {ScheduleKind::kGPipe, ScheduleKind::kZbH1}) {
      std::vector<std::vector<std::size_t>> members(static_cast<std::size_t>(dice(1, 4)));
      for (std::size_t i = 0; i < nodes.ids.size(); ++i)
        members[static_cast<std::size_t>(dice(0, static_cast<int>(members.size()) - 1))].push_back(i);
      Nodes blocks;
      for (const auto& block : members) {
        if (block.empty()) continue;
        NodeCost sum;
        Bytes copies{}, to_sum{};
        std::vector<NodeId> originals;
        for (const std::size_t i : block) {
          originals.push_back(nodes.work.graph[nodes.ids[i]].members.front());
          sum.saved += nodes.costs[i].saved;
          sum.deferred_weight += nodes.costs[i].deferred_weight;
          sum.workspace = std::max(sum.workspace, nodes.costs[i].workspace);
          if (!nodes.copies.empty()) copies += nodes.copies[i];
          to_sum += nodes.to_sum[i];
        }
        blocks.add(originals, sum);
        blocks.copies.push_back(copies);
        blocks.to_sum.push_back(to_sum);
      }
      const MicrobatchMemory fine = nodes.compute(schedule), coarse = blocks.compute(schedule);
      REQUIRE(coarse.kept == fine.kept);
      REQUIRE(coarse.copies == fine.copies);
      REQUIRE(coarse.deferred_weight == fine.deferred_weight);
      REQUIRE(coarse.work >= fine.work);
      REQUIRE(coarse.to_sum == fine.to_sum);
      REQUIRE(coarse.summing >= fine.summing);
      ++(coarse.work == fine.work ? equal : more);
    }
  }
  CHECK(equal > 100);
  CHECK(more > 50);
}

TEST_CASE("microbatch_memory: split backwards keep all saved values") {
  Nodes nodes;
  nodes.add({NodeId(0)}, {.saved = Bytes(10), .workspace = Bytes(100), .deferred_weight = Bytes(7)});
  nodes.add({NodeId(1)}, {.saved = Bytes(30), .workspace = Bytes(20), .deferred_weight = Bytes(5)});
  CHECK(nodes.compute(ScheduleKind::kOneFOneB).work == Bytes(70));
  const MicrobatchMemory parted = nodes.compute(ScheduleKind::kZbH1);
  CHECK(parted.work == Bytes(100));
  CHECK(parted.deferred_weight == Bytes(12));
  detail::StageMicrobatch stage(nodes.ids, nodes.costs, ScheduleKind::kZbH1, nodes.apart(ScheduleKind::kZbH1));
  detail::SegmentPiece piece;
  piece.nodes = {nodes.ids[1]};
  piece.entering = Bytes(3);
  piece.leaving = piece.let_go = Bytes(2);  // which those whose second half is to come may hold
  stage.recompute(piece);
  CHECK(stage.memory().deferred_weight == Bytes(7));
  CHECK(stage.memory().kept == Bytes(15));
  CHECK(stage.memory().work == Bytes(100));
}

}  // namespace microbatch_memory_test
