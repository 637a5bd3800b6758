#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// The first law that a program violates, and where.
struct ProgramFault {
  Rank rank;
  int position = -1;  ///< in the rank's list; -1 if an action is missing
  std::string what;   ///< a description of the action and of the violation
};

namespace detail {

/// Checks a program against the pipeline, independently of the generator: they share only the batch arithmetic.
class ProgramCheck {
 public:
  ProgramCheck(const Pipeline& pipeline, const BatchLayout& layout, Phase phase, const Program& program)
      : pipeline_(pipeline), split_(pipeline, layout), phase_(phase), program_(program) {
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      auto& of_shards = gathered_.emplace_back(static_cast<std::size_t>(pipeline.stages[s].tensor()));
      for (std::size_t shard = 0; shard < of_shards.size(); ++shard) {
        auto& [once, by_whole_backward] = of_shards[shard];
        for (const int g : gathered_by_backward(pipeline, StageId::of(s), static_cast<int>(shard))) {
          by_whole_backward.add(pipeline, g);
          if (!once.times.contains({g, 0})) once.add(pipeline, g);
        }
      }
    }
  }

  [[nodiscard]] std::optional<ProgramFault> run() {
    if (program_.ranks.size() != static_cast<std::size_t>(pipeline_.ranks)) {
      return ProgramFault{Rank::none(), -1,
                          "the program has " + std::to_string(program_.ranks.size()) + " ranks, the pipeline " +
                              std::to_string(pipeline_.ranks)};
    }
    split_computes_.resize(program_.ranks.size());
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      for (const Action& action : program_.ranks[r]) {
        if (action.kind == ActionKind::kBackwardInput) split_computes_[r].emplace(action.stage, action.microbatch);
      }
    }
    if (auto fault = check_contents()) return fault;
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      if (auto fault = check_dependencies(Rank::of(r))) return fault;
      if (auto fault = check_reductions(Rank::of(r))) return fault;
      if (auto fault = check_collectives_of_computes(Rank::of(r))) return fault;
    }
    return check_progress();
  }

 private:
  using Actions = std::vector<Action>;

  /// Buckets that a compute action gathers, and how often.
  struct Gathered {
    std::map<std::pair<int, int>, int> times;  // by group and bucket
    int count = 0;
    void add(const Pipeline& pipeline, int group) {
      for (int b = 0; b < pipeline.groups[static_cast<std::size_t>(group)].buckets; ++b) add(group, b);
    }
    void add(int group, int bucket) {
      ++times[{group, bucket}];
      ++count;
    }
  };
  struct GatheredByActions {
    Gathered once, by_whole_backward;
  };

  [[nodiscard]] const Actions& actions(Rank rank) const { return program_.ranks[rank.index()]; }
  [[nodiscard]] ProgramFault fault_at(Rank rank, std::size_t position, const std::string& why) const {
    return {rank, static_cast<int>(position), "(" + describe(actions(rank)[position]) + ") " + why};
  }

  static auto key(const Action& a) {
    return std::tuple(a.kind, a.stage, a.microbatch, a.channel, a.flow, a.peer, a.samples.begin, a.samples.end, a.group,
                      a.bucket);
  }

  // ---- every action that the pipeline requires occurs once, and no other

  [[nodiscard]] std::vector<Actions> expected_actions() const {
    std::vector<Actions> expected(program_.ranks.size());
    for (int m = 0; m < split_.microbatches(); ++m) {
      expect_computation(expected, m);
      for (std::size_t c = 0; c < pipeline_.channels.size(); ++c) {
        for (const Flow flow : {Flow::kValue, Flow::kGradient}) expect_messages(expected, static_cast<int>(c), m, flow);
      }
    }
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) expect_collectives(expected, static_cast<int>(g));
    return expected;
  }

  void expect_collectives(std::vector<Actions>& expected, int g) const {
    const ReduceGroup& group = pipeline_.groups[static_cast<std::size_t>(g)];
    const auto expect = [&](ActionKind kind, Flow flow, int microbatch = -1, int times = 1) {
      for (const Rank rank : group.ranks) {
        for (int i = 0; i < group.buckets * times; ++i) {
          const int b = i % group.buckets;
          expected[rank.index()].push_back(
              {.kind = kind, .stage = group.stage, .microbatch = microbatch, .flow = flow, .group = g, .bucket = b});
        }
      }
    };
    const bool forwards = phase_ != Phase::kBackward, backwards = phase_ != Phase::kForward;
    if (backwards && group.zero < 2) {
      expect(group.zero == 0 ? ActionKind::kAllReduce : ActionKind::kReduceScatter, Flow::kGradient);
    }
    if (forwards && (group.zero == 1 || group.zero == 2)) expect(ActionKind::kAllGather, Flow::kValue);
    for (int m = 0; m < split_.microbatches() && group.zero >= 2; ++m) {
      const auto slices = split_.slices(group.stage, m);
      if (slices.empty()) continue;
      if (backwards) expect(ActionKind::kReduceScatter, Flow::kGradient, m);
      if (group.zero < 3) continue;
      if (forwards) expect(ActionKind::kAllGather, Flow::kValue, m);
      if (!backwards) continue;
      const Action compute{.stage = group.stage, .microbatch = m, .flow = Flow::kGradient};
      const int times = group.buckets > 0 ? gathered_by(compute, group.ranks.front()).times.at({g, 0}) : 0;
      expect(ActionKind::kAllGather, Flow::kGradient, m, comes_in_parts(compute) ? 2 * times : times);
    }
  }

  void expect_computation(std::vector<Actions>& expected, int m) const {
    for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) {
      for (const MicrobatchSlice& slice : split_.slices(StageId::of(s), m)) {
        Action action{.stage = StageId::of(s), .microbatch = m, .samples = slice.samples};
        if (phase_ != Phase::kBackward) expected[slice.rank.index()].push_back(action);
        if (phase_ == Phase::kForward) continue;
        action.flow = Flow::kGradient;
        const bool in_parts = is_split(action, slice.rank);
        action.kind = in_parts ? ActionKind::kBackwardInput : ActionKind::kBackward;
        expected[slice.rank.index()].push_back(action);
        action.kind = ActionKind::kBackwardWeight;
        if (in_parts) expected[slice.rank.index()].push_back(action);
      }
    }
  }

  /// Whether this rank's program splits this backward in two parts.
  [[nodiscard]] bool is_split(const Action& compute, Rank rank) const {
    return split_computes_[rank.index()].contains({compute.stage, compute.microbatch});
  }

  /// Whether any rank with samples in the backward splits it.
  [[nodiscard]] bool comes_in_parts(const Action& compute) const {
    const auto slices = split_.slices(compute.stage, compute.microbatch);
    return !slices.empty() && is_split(compute, slices.front().rank);
  }

  void expect_messages(std::vector<Actions>& expected, int c, int m, Flow flow) const {
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(c)];
    if (!travels(channel, flow, phase_)) return;
    for (const Route& route : split_.routes(channel, m, flow)) {
      Action action{.kind = ActionKind::kSend,
                    .stage = writer_of(channel, flow),
                    .microbatch = m,
                    .channel = c,
                    .flow = flow,
                    .peer = route.to,
                    .samples = route.samples};
      expected[route.from.index()].push_back(action);
      action.kind = ActionKind::kReceive;
      action.stage = reader_of(channel, flow);
      action.peer = route.from;
      expected[route.to.index()].push_back(action);
    }
  }

  [[nodiscard]] std::optional<ProgramFault> check_contents() const {
    auto expected = expected_actions();
    for (std::size_t r = 0; r < expected.size(); ++r) {
      const Rank rank = Rank::of(r);
      auto& wanted = expected[r];
      std::ranges::sort(wanted, {}, key);
      std::vector<std::size_t> found(actions(rank).size());  // positions
      std::iota(found.begin(), found.end(), 0);
      const auto key_at = [&](std::size_t position) { return key(actions(rank)[position]); };
      std::ranges::stable_sort(found, {}, key_at);
      const auto [want, have] = std::ranges::mismatch(wanted, found, {}, key, key_at);
      if (have != found.end() && (want == wanted.end() || key_at(*have) < key(*want)))
        return fault_at(rank, *have, "does not belong there, or is there twice");
      if (want != wanted.end()) return ProgramFault{rank, -1, describe(*want) + " is missing"};
    }
    return std::nullopt;
  }

  // ---- an action follows what it needs

  [[nodiscard]] std::optional<ProgramFault> check_dependencies(Rank rank) const {
    std::set<std::pair<StageId, int>> forward_done, gradient_done;  // micro-batches of stages
    for (std::size_t i = 0; i < actions(rank).size(); ++i) {
      const Action& action = actions(rank)[i];
      const std::pair compute(action.stage, action.microbatch);
      auto& done = action.flow == Flow::kValue ? forward_done : gradient_done;
      const std::string computation = action.flow == Flow::kValue ? "forward" : "backward";
      if (gives_input_gradients(action.kind) && phase_ == Phase::kStep && !forward_done.contains(compute))
        return fault_at(rank, i, "comes before its forward");
      if (action.kind == ActionKind::kBackwardWeight && !gradient_done.contains(compute))
        return fault_at(rank, i, "comes before its input backward");
      if (action.kind == ActionKind::kSend && action.stage.valid() && !done.contains(compute))
        return fault_at(rank, i, "comes before the " + computation + " that makes its data");
      if (action.kind == ActionKind::kReceive && action.stage.valid() && done.contains(compute))
        return fault_at(rank, i, "comes after the " + computation + " that needs its data");
      if (action.kind == ActionKind::kAllGather && action.microbatch < 0) {
        const bool needed = std::ranges::any_of(forward_done, [&](const auto& computed) {
          return !action.stage.valid() || computed.first == action.stage;
        });
        if (needed) return fault_at(rank, i, "comes after a forward that needs its parameters");
      }
      if (is_compute(action.kind)) done.insert(compute);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<ProgramFault> check_reductions(Rank rank) const {
    std::pair<int, int> last{-1, -1};
    std::set<StageId> reduced;  // none() stands for all stages
    for (std::size_t i = 0; i < actions(rank).size(); ++i) {
      const Action& action = actions(rank)[i];
      const bool backward = is_compute(action.kind) && action.kind != ActionKind::kForward;
      if (backward && (reduced.contains(action.stage) || reduced.contains(StageId::none()))) {
        return fault_at(rank, i, "comes after a reduction; reductions follow the last backward");
      }
      const bool sums = action.kind == ActionKind::kAllReduce || action.kind == ActionKind::kReduceScatter;
      if (!sums || action.microbatch >= 0) continue;
      const std::pair<int, int> here{action.group, action.bucket};
      if (here < last) return fault_at(rank, i, "is out of order; groups and their buckets are reduced ascending");
      last = here;
      reduced.insert(action.stage);
    }
    return std::nullopt;
  }

  // ---- collectives of a compute action are adjacent to it, so that they can run within it

  static bool is_of_compute(const Action& action) { return is_collective(action.kind) && action.microbatch >= 0; }

  [[nodiscard]] std::optional<ProgramFault> check_collectives_of_computes(Rank rank) const {
    const Actions& all = actions(rank);
    Gathered gathered;  // right before the action
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Action& action = all[i];
      const auto neighbour = [&](std::size_t j) {  // of the same compute action
        const bool same = j < all.size() && all[j].stage == action.stage && all[j].microbatch == action.microbatch &&
                          all[j].flow == action.flow;
        return same ? &all[j] : nullptr;
      };
      const Action* const before = neighbour(i - 1);
      const Action* const next = neighbour(i + 1);
      const bool continues = before != nullptr && before->kind == action.kind;
      const bool is_gather = action.kind == ActionKind::kAllGather;
      if (is_of_compute(action) && takes_part(rank, action)) {
        if (is_gather) {
          if (next == nullptr || (next->kind != ActionKind::kAllGather && !is_compute(next->kind)))
            return fault_at(rank, i, "does not stand right before the compute action that needs it");
          if (action.after != (continues ? before->after + 1 : 0))
            return fault_at(rank, i, "is not the next of its compute action");
          gathered.add(action.group, action.bucket);
          continue;
        }
        if (!continues && (before == nullptr || !gives_weight_gradients(before->kind)))
          return fault_at(rank, i, "does not stand right behind the compute action that fills its bucket");
      }
      if (is_of_compute(action) && !is_gather) {
        const int least = continues ? before->after : 0;
        if (action.after < least || action.after > gathered_by(action, rank).count)
          return fault_at(rank, i, "stands among the gatherings of its compute action where it cannot be");
      }
      if (is_compute(action.kind) && gathered.times != gathered_by(action, rank).times)
        return fault_at(rank, i, "comes before its parameters were gathered");
      gathered = {};
    }
    return std::nullopt;
  }

  /// What a compute action gathers on a rank of its stage, given the compute action or one of its collectives.
  [[nodiscard]] const Gathered& gathered_by(const Action& of, Rank rank) const {
    const auto shard = static_cast<std::size_t>(*pipeline_.stages[of.stage.index()].shard_of(rank));
    const GatheredByActions& of_shard = gathered_[of.stage.index()][shard];
    return of.flow == Flow::kGradient && !comes_in_parts(of) ? of_shard.by_whole_backward : of_shard.once;
  }

  /// Whether the rank has samples in the compute action that a collective belongs to.
  [[nodiscard]] bool takes_part(Rank rank, const Action& collective) const {
    const auto slices = split_.slices(collective.stage, collective.microbatch);
    return std::any_of(slices.begin(), slices.end(), [&](const MicrobatchSlice& slice) { return slice.rank == rank; });
  }

  // ---- it completes if a send waits for its receive and joint actions wait for all their ranks; sender and receiver
  // of every directed pair have their messages in the same order

  [[nodiscard]] std::optional<ProgramFault> check_progress() {
    position_.assign(program_.ranks.size(), 0);
    to_itself_.resize(program_.ranks.size());
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) movable_.push_back(Rank::of(r));
    while (!movable_.empty()) {
      const Rank rank = movable_.back();
      movable_.pop_back();
      while (head(rank) != nullptr && step(rank)) {
      }
      if (mismatch_) return mismatch_;
    }
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      if (head(Rank::of(r)) != nullptr) return deadlock(Rank::of(r));
    }
    return std::nullopt;
  }

  [[nodiscard]] const Action* head(Rank rank) const {
    const auto at = position_[rank.index()];
    return at < actions(rank).size() ? &actions(rank)[at] : nullptr;
  }

  /// Advances a rank, and all ranks that its action waits for.
  /// @return false if one of them has not come to it, or to another message
  [[nodiscard]] bool step(Rank rank) {
    const Action& action = *head(rank);
    if (action.kind == ActionKind::kSend || action.kind == ActionKind::kReceive) {
      if (action.peer == rank ? !pass_to_itself(rank, action) : !meets(rank, action)) return false;
      if (action.peer != rank) advance(action.peer);
    } else {
      const auto members = doing_together(rank, action);
      for (const Rank member : members) {
        if (head(member) == nullptr || !(*head(member) == action)) return false;
      }
      for (const Rank member : members) {
        if (member != rank) advance(member);
      }
    }
    ++position_[rank.index()];
    return true;
  }

  [[nodiscard]] bool pass_to_itself(Rank rank, const Action& action) {
    auto& waiting = to_itself_[rank.index()];
    if (action.kind == ActionKind::kSend) {
      waiting.push(&action);
      return true;
    }
    if (waiting.empty() || !is_same_message(*waiting.front(), rank, action)) return false;
    waiting.pop();
    return true;
  }

  /// Whether the other end of a message is its rank's next action.
  [[nodiscard]] bool meets(Rank rank, const Action& action) {
    const Action* other = head(action.peer);
    if (other == nullptr || other->peer != rank) return false;
    if (action.kind == ActionKind::kSend)
      return other->kind == ActionKind::kReceive && is_same_message(action, action.peer, *other);
    return other->kind == ActionKind::kSend && is_same_message(*other, rank, action);
  }

  [[nodiscard]] bool is_same_message(const Action& send, Rank receiver, const Action& receive) {
    const bool same = send.channel == receive.channel && send.microbatch == receive.microbatch &&
                      send.flow == receive.flow && send.samples == receive.samples;
    if (!same) mismatch_ = fault_at(receiver, position_[receiver.index()], "meets the " + describe(send));
    return same;
  }

  /// The ranks that run an action together: none continues before all have reached it. Empty if the rank runs it alone.
  [[nodiscard]] std::span<const Rank> doing_together(Rank rank, const Action& action) const {
    if (is_collective(action.kind)) return pipeline_.groups[static_cast<std::size_t>(action.group)].ranks;
    if (!may_exchange(action.kind)) return {};
    const Mesh& mesh = pipeline_.stages[action.stage.index()];
    return mesh.tensor() > 1 ? mesh.tensor_group(*mesh.replica_of(rank)) : std::span<const Rank>();
  }

  void advance(Rank rank) {
    ++position_[rank.index()];
    movable_.push_back(rank);
  }

  [[nodiscard]] ProgramFault deadlock(Rank rank) const {
    const Action& action = *head(rank);
    std::string others;
    const auto tell = [&](Rank other) {
      if (other == rank) return;
      const Action* at = head(other);
      others += (others.empty() ? "" : "; ") + std::string("rank ") + std::to_string(other.value()) +
                (at == nullptr ? " is at its end" : " is at the " + describe(*at));
    };
    if (action.peer.valid())
      tell(action.peer);
    else
      for (const Rank member : doing_together(rank, action)) tell(member);
    return fault_at(rank, position_[rank.index()], "waits for ever" + (others.empty() ? "" : ": " + others));
  }

  const Pipeline& pipeline_;
  BatchSplit split_;
  Phase phase_;
  const Program& program_;
  std::vector<std::vector<GatheredByActions>> gathered_;           // [stage][tensor shard]
  std::vector<std::set<std::pair<StageId, int>>> split_computes_;  // of each rank: stage, micro-batch
  // Of check_progress, by rank.
  std::vector<std::size_t> position_;
  std::vector<std::queue<const Action*>> to_itself_;  // sends that have no receive yet
  std::optional<ProgramFault> mismatch_;
  std::vector<Rank> movable_;
};

}  // namespace detail

/// The first law of `make_program` that `program` violates; empty if there is none:
///
/// - Each forward, backward (whole or in two parts), send, receive and reduction of the pipeline occurs once, and
///   nothing else does.
/// - Data are produced before use. Sender and receiver of a directed pair have messages in the same order.
/// - Reductions follow the last backward of their stage (for tied parameters, of any stage), groups and buckets
///   ascending.
/// - Parameters are gathered before the first forward that needs them. Gathers and reductions within a compute action
///   are adjacent to it.
/// - The program completes with rendezvous sends, blocking collectives, and compute actions for which tensor shards of
///   a replica wait for one another.
/// @throws InvalidArgument if pipeline or layout are malformed
/// @cost O(actions * log(actions))
[[nodiscard]] inline std::optional<ProgramFault> find_fault(const Pipeline& pipeline, const BatchLayout& layout,
                                                            Phase phase, const Program& program) {
  return detail::ProgramCheck(pipeline, layout, phase, program).run();
}

/// @throws InvalidArgument with rank, position and action if the program violates a law; see `find_fault`
inline void validate(const Pipeline& pipeline, const BatchLayout& layout, Phase phase, const Program& program) {
  const auto fault = find_fault(pipeline, layout, phase, program);
  if (!fault) return;
  std::string where;
  if (fault->rank.valid()) where += "rank " + std::to_string(fault->rank.value());
  if (fault->position >= 0) where += ", action " + std::to_string(fault->position);
  if (!where.empty()) where += fault->position >= 0 ? " " : ": ";
  throw InvalidArgument("program: " + where + fault->what);
}

}  // namespace autopar
