#pragma once

#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "symbolic_model.hpp"

namespace autopar::testing {

/// Runs a program literally: every rank does one action after the other, a send waits for its receive, a reduction for
/// all members, a forward or an input backward for the tensor shards of its replica; what is gathered or summed for a
/// compute action must stand right around it. The least capable runtime there can be; what it runs to the right result,
/// any runtime can.
/// @return why it cannot go on or what is wrong at its end; empty if all is well
inline std::string run_blocking(const Pipeline& pipeline, const BatchLayout& layout, Phase phase,
                                const Program& program, std::vector<SymbolicRank>& ranks) {
  std::vector<std::size_t> at(program.ranks.size(), 0);
  std::vector<std::deque<std::pair<Action, Words>>> own(program.ranks.size());
  std::vector<std::pair<int, int>> last_reduction(program.ranks.size(), {-1, -1});
  const auto head = [&](Rank r) -> const Action* {
    return at[r.index()] < program.ranks[r.index()].size() ? &program.ranks[r.index()][at[r.index()]] : nullptr;
  };
  const auto same = [](const Action& a, const Action& b) {
    return a.channel == b.channel && a.microbatch == b.microbatch && a.flow == b.flow && a.samples == b.samples;
  };
  const BatchSplit split(pipeline, layout);
  const auto computes = [&](Rank r, const Action& collective) {
    for (const MicrobatchSlice& slice : split.slices(collective.stage, collective.microbatch)) {
      if (slice.rank == r) return true;
    }
    return false;
  };
  const auto require_neighbour = [&](Rank r, const Action& action) {
    if (action.microbatch < 0 || !computes(r, action)) return;
    const auto& all = program.ranks[r.index()];
    const bool gathers = action.kind == ActionKind::kAllGather;
    const auto i = at[r.index()];
    const Action* other = gathers ? (i + 1 < all.size() ? &all[i + 1] : nullptr) : (i > 0 ? &all[i - 1] : nullptr);
    const bool near = other != nullptr && other->stage == action.stage && other->microbatch == action.microbatch &&
                      other->flow == action.flow;
    const bool right = near && (other->kind == action.kind ||
                                (gathers ? is_compute(other->kind) : gives_weight_gradients(other->kind)));
    if (!right) throw std::logic_error(describe(action) + ": not right at its compute action");
  };
  const auto run_together = [&](Rank r, const Action& compute) -> std::vector<Rank> {
    const Mesh& mesh = pipeline.stages.at(compute.stage.index());
    const auto replica = mesh.replica_of(r);
    if (mesh.tensor() == 1 || !replica) return {r};
    const auto group = mesh.tensor_group(*replica);
    return {group.begin(), group.end()};
  };
  const auto step = [&](Rank r) {
    const Action& action = *head(r);
    SymbolicRank& mine = ranks[r.index()];
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        const auto members = run_together(r, action);
        for (const Rank member : members) {
          if (head(member) == nullptr || !(*head(member) == action)) return false;
        }
        for (const Rank member : members) {
          if (action.kind == ActionKind::kForward)
            ranks[member.index()].forward(action);
          else
            ranks[member.index()].backward(action, phase == Phase::kBackward);
          if (member != r) ++at[member.index()];
        }
        break;
      }
      case ActionKind::kBackwardWeight:
        mine.backward_weight(action);
        break;
      case ActionKind::kSend: {
        if (action.peer == r) {
          own[r.index()].emplace_back(action, mine.pack(action));
          break;
        }
        const Action* other = head(action.peer);
        if (other == nullptr || other->kind != ActionKind::kReceive || other->peer != r) return false;
        if (!same(action, *other)) throw std::logic_error(describe(action) + " meets " + describe(*other));
        ranks[action.peer.index()].accept(*other, mine.pack(action));
        ++at[action.peer.index()];
        break;
      }
      case ActionKind::kReceive:
        if (action.peer != r || own[r.index()].empty()) return false;
        if (!same(own[r.index()].front().first, action)) throw std::logic_error(describe(action) + ": wrong copy");
        mine.accept(action, own[r.index()].front().second);
        own[r.index()].pop_front();
        break;
      case ActionKind::kAllGather:
        require_neighbour(r, action);
        for (const Rank member : pipeline.groups[static_cast<std::size_t>(action.group)].ranks) {
          if (head(member) == nullptr || !(*head(member) == action)) return false;
        }
        for (const Rank member : pipeline.groups[static_cast<std::size_t>(action.group)].ranks) {
          require_neighbour(member, action);
          ranks[member.index()].gather(action);
          if (member != r) ++at[member.index()];
        }
        break;
      case ActionKind::kReduceScatter:
      case ActionKind::kAllReduce: {
        if (action.kind == ActionKind::kReduceScatter) require_neighbour(r, action);
        const auto& members = pipeline.groups[static_cast<std::size_t>(action.group)].ranks;
        Word sum = 0;
        for (const Rank member : members) {
          if (head(member) == nullptr || !(*head(member) == action)) return false;
          sum += ranks[member.index()].bucket(action);
        }
        for (const Rank member : members) {
          if (action.microbatch >= 0) {
            require_neighbour(member, action);
            (void)ranks[member.index()].take_bucket(action);
            ranks[member.index()].add_to_share(action, sum);
            if (member != r) ++at[member.index()];
            continue;
          }
          auto& last = last_reduction[member.index()];
          const std::pair here{action.group, action.bucket};
          if (here <= last) throw std::logic_error(describe(action) + ": not ascending");
          last = here;
          ranks[member.index()].start_reduction(action);
          ranks[member.index()].bucket(action) = sum;
          if (member != r) ++at[member.index()];
        }
        break;
      }
    }
    ++at[r.index()];
    return true;
  };
  try {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < at.size(); ++r) {
        while (head(Rank::of(r)) != nullptr && step(Rank::of(r))) moved = true;
      }
    }
    for (std::size_t r = 0; r < at.size(); ++r) {
      if (head(Rank::of(r)) != nullptr) return "deadlock at " + describe(*head(Rank::of(r)));
    }
    return difference(pipeline, layout, phase, ranks);
  } catch (const std::logic_error& error) {
    return error.what();
  }
}

inline std::vector<SymbolicRank> symbolic_ranks(const Pipeline& pipeline, const BatchLayout& layout) {
  std::vector<SymbolicRank> ranks;
  for (int r = 0; r < pipeline.ranks; ++r) ranks.emplace_back(pipeline, layout, Rank(r));
  return ranks;
}

}  // namespace autopar::testing
