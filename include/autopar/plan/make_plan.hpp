#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/certificate.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/least_memory.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/refine.hpp>
#include <autopar/plan/remedy.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

/// The staging that a plan describes, for a graph of `nodes` nodes.
/// @throws InvalidArgument unless the plan puts each node into one stage
[[nodiscard]] inline Staging staging_of(const Plan& plan, std::size_t nodes) {
  Staging staging{std::vector<int>(nodes, -1), {}, plan.microbatches, plan.schedule};
  std::vector<const std::vector<Rank>*> positions;
  for (const StagePlan& stage : plan.stages) {
    const auto same =
        std::find_if(positions.begin(), positions.end(), [&](const auto* ranks) { return *ranks == stage.ranks; });
    staging.position_of.push_back(static_cast<int>(same - positions.begin()));
    if (same == positions.end()) positions.push_back(&stage.ranks);
  }
  if (positions.size() == plan.stages.size()) staging.position_of.clear();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    staging.replicas.push_back(static_cast<int>(plan.stages[s].ranks.size()));
    for (const NodeId atom : plan.stages[s].atoms) {
      if (atom.index() >= nodes || staging.stage_of[atom.index()] >= 0) {
        throw InvalidArgument("the plan puts atom " + std::to_string(atom.value()) + " of " + std::to_string(nodes) +
                              " into a second stage, or the model has no such atom");
      }
      staging.stage_of[atom.index()] = static_cast<int>(s);
    }
  }
  if (std::find(staging.stage_of.begin(), staging.stage_of.end(), -1) != staging.stage_of.end()) {
    throw InvalidArgument("the plan leaves out an atom of the model; it was made for another one");
  }
  return staging;
}

namespace detail {

[[nodiscard]] inline std::vector<int> replicas_of(const Plan& plan) {
  std::vector<int> replicas;
  for (const auto& stage : plan.stages)
    replicas.push_back(static_cast<int>(stage.ranks.size()));
  return replicas;
}

/// Bytes by which a rank may hold more than blocks say whose parameters were put together.
[[nodiscard]] inline Bytes rounding(const Workload& work, const Workload& coarse, const Constraints& constraints) {
  if (coarse.parameters.size() == work.parameters.size()) return {};
  return Bytes(static_cast<std::int64_t>(work.parameters.size()) * (constraints.gradient_copies + 2));
}

/// Turns what a search found into a plan that explains itself, or into an error that says what would fit.
class PlanMaker {
 public:
  PlanMaker(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints)
      : work_(work),
        cluster_(cluster),
        request_(request),
        constraints_(constraints),
        objective_(work, cluster, constraints) {}

  [[nodiscard]] Plan make(const Workload& coarse, const Partition& blocks, bool whole, SearchResult found) const {
    if (!found.candidates.any_fits()) rescue(coarse, found);
    const bool large = !whole && (work_.graph.node_count() >= kMany || rounding(work_, coarse, constraints_) > Bytes(0));
    std::optional<Pieces> pieces;
    if (large) pieces.emplace(work_, blocks, cluster_, searched(coarse));
    const Candidates fine = large ? refined_in_pieces(*pieces, blocks, found) : refined(blocks, whole, found);
    Plan plan = describe_best(fine, large ? pieces->objective : objective_,
                              large ? pieces->partition : Partition::singletons(work_.graph.node_count()));
    add_proof(plan, found, whole, blocks.block_count());
    return plan;
  }

 private:
  static constexpr std::size_t kRefined = 4;  // of the best, if nodes were put together
  static constexpr int kEstimates = 1500;
  static constexpr int kEstimatesOfPieces = 300;
  static constexpr std::size_t kPieces = 640;
  static constexpr std::int64_t kSimulated = 400'000;  // actions, of refined stagings of many nodes

  /// Blocks cut along a topological order, so that many moves of parts of them can be tried, of however many nodes.
  struct Pieces {
    Partition partition;
    Workload work;
    Constraints constraints;
    StepObjective objective;

    Pieces(const Workload& fine, const Partition& blocks, const Cluster& cluster, Constraints searched)
        : partition(cut(fine, blocks)), work(contracted(fine, partition, kBucketBytes)),
          constraints(std::move(searched)), objective(work, cluster, constraints) {
      if (fine.segment_of.empty()) return;
      for (const NodeId piece : work.graph.nodes())
        work.segment_of.push_back(fine.segment_of[partition.members(BlockId(piece.value())).front().index()]);
    }

    [[nodiscard]] static Partition cut(const Workload& fine, const Partition& blocks) {
      const std::size_t size = (blocks.node_count() + kPieces - 1) / kPieces;
      std::vector<std::size_t> seen(blocks.block_count(), 0);
      std::vector<BlockId> open(blocks.block_count()), piece_of(blocks.node_count());
      std::int32_t count = 0;
      for (const NodeId node : topological_order(fine.graph)) {
        const std::size_t block = blocks.block_of(node).index();
        if (seen[block]++ % size == 0) open[block] = BlockId(count++);
        piece_of[node.index()] = open[block];
      }
      return Partition(std::move(piece_of));
    }
  };

  /// The constraints under which nothing that fits in blocks does not fit in nodes.
  [[nodiscard]] Constraints searched(const Workload& coarse) const {
    Constraints out = constraints_;
    out.memory -= rounding(work_, coarse, constraints_);
    return out;
  }

  [[nodiscard]] Candidates refined(const Partition& blocks, bool whole, const SearchResult& found) const {
    Candidates fine(constraints_.memory);
    std::size_t rank = 0;
    for (Candidate& candidate : found.candidates.ranked()) {
      Staging staging = expanded(candidate.staging, blocks);
      // Moving nodes and ranks knows nothing of stages that share ranks.
      if (!whole && candidate.staging.position_of.empty() && rank++ < kRefined) {
        const Staging better = LocalSearch(objective_).improve(staging, kEstimates).first;
        fine.offer({better, objective_(better)});
      }
      expand(candidate.terms.savings, blocks);
      // Blocks do not know the modules of their nodes.
      if (!whole && !constraints_.recomputed_modules.empty()) candidate.terms = objective_(staging);
      fine.offer({std::move(staging), std::move(candidate.terms)});
    }
    return fine;
  }

  /// The best stagings are improved in pieces and simulated with all nodes. The others keep what was predicted of them in
  /// blocks, and are not better than the best.
  [[nodiscard]] Candidates refined_in_pieces(const Pieces& pieces, const Partition& blocks,
                                             const SearchResult& found) const {
    std::vector<Candidate> ranked = found.candidates.ranked();
    std::vector<Candidate> finalists;
    LocalSearch local(pieces.objective);
    std::size_t rank = 0;
    for (const Candidate& candidate : ranked) {
      if (rank == kRefined || !found.candidates.fits(candidate)) break;
      ++rank;
      finalists.push_back({expanded(candidate.staging, blocks), candidate.terms});
      expand(finalists.back().terms.savings, blocks);
      // Moving nodes and ranks knows nothing of stages that share ranks, comparing nothing of synthesised orders.
      if (!candidate.staging.position_of.empty() || candidate.staging.schedule == ScheduleKind::kSynthesised) continue;
      Staging staging = candidate.staging;
      staging.stage_of.clear();
      for (const NodeId piece : pieces.work.graph.nodes()) {
        const NodeId first = pieces.partition.members(BlockId(piece.value())).front();
        staging.stage_of.push_back(candidate.staging.stage_of[blocks.block_of(first).index()]);
      }
      const Staging better = local.improve(staging, kEstimatesOfPieces).first;
      if (better == staging) continue;
      finalists.push_back({expanded(better, pieces.partition), pieces.objective.folded(better)});
      expand(finalists.back().terms.savings, pieces.partition);
    }
    std::stable_sort(finalists.begin(), finalists.end(),
                     [](const Candidate& a, const Candidate& b) { return a.terms.step < b.terms.step; });
    Candidates fine(constraints_.memory);
    std::int64_t left = kSimulated;
    for (Candidate& finalist : finalists) {
      if (left <= 0 && fine.any_fits()) break;
      left -= objective_.actions(finalist.staging);
      StepTerms terms = with_all_nodes(finalist);
      fine.offer({std::move(finalist.staging), std::move(terms)});
    }
    for (Candidate& candidate : ranked) {
      if (found.candidates.fits(candidate) && candidate.terms.step <= fine.best_step()) continue;
      candidate.staging.stage_of.clear();  // only the best one's is asked for
      candidate.terms.savings.recomputed.clear();
      fine.offer(std::move(candidate));
    }
    return fine;
  }

  [[nodiscard]] StepTerms with_all_nodes(const Candidate& candidate) const {
    // Blocks do not know the modules of their nodes.
    if (!constraints_.recomputed_modules.empty()) return objective_(candidate.staging);
    const SizedPipeline sized =
        make_pipeline(work_, candidate.staging, candidate.terms.ranks, constraints_.world);
    return objective_.evaluate(candidate.staging, sized, candidate.terms.savings);
  }

  /// From blocks to nodes.
  static void expand(Savings& savings, const Partition& blocks) {
    for (auto& segments : savings.recomputed) {
      for (auto& segment : segments) {
        std::vector<NodeId> nodes;
        for (const NodeId block : segment) {
          const auto& members = blocks.members(BlockId(block.value()));
          nodes.insert(nodes.end(), members.begin(), members.end());
        }
        std::sort(nodes.begin(), nodes.end());
        segment = std::move(nodes);
      }
    }
  }

  /// Nothing that was searched fits: the staging that needs least memory, or the error.
  void rescue(const Workload& coarse, SearchResult& found) const {
    const Constraints tight = searched(coarse);
    const StepObjective objective(coarse, cluster_, tight);
    auto least = least_memory(objective);
    if (!least) {
      refuse_all(found.candidates.ranked());
      refuse_no_staging();
    }
    if (least->peak <= tight.memory) {
      found.candidates.offer({least->staging, objective(least->staging)});
      if (found.candidates.any_fits()) return;
    }
    least->peak += rounding(work_, coarse, constraints_);
    const auto remedies = find_remedies(coarse, cluster_, request_, tight, least->peak);
    throw InfeasiblePlan(
        "no plan fits " + std::to_string(constraints_.world) + " x " + readable(constraints_.memory) +
            " (memory_margin taken off): the plan that needs least, " +
            describe(least->staging.replicas, least->staging.microbatches, least->staging.schedule) + ", needs " +
            readable(least->peak) + " on each rank of stage " + std::to_string(least->stage.value()) + ", " +
            readable(least->peak - constraints_.memory) + " more than there is" + too_large_node(),
        least->stage, least->peak, constraints_.memory, describe(remedies, cluster_, request_, constraints_));
  }

  /// No plain schedule is allowed, and what was tried under the others is too large.
  void refuse_all(const std::vector<Candidate>& tried) const {
    if (tried.empty()) return;
    const auto peak = [](const Candidate& candidate) { return StepObjective::peak(candidate.terms); };
    const Candidate& least = *std::min_element(
        tried.begin(), tried.end(), [&](const Candidate& a, const Candidate& b) { return peak(a) < peak(b); });
    throw InfeasiblePlan("no plan fits " + std::to_string(constraints_.world) + " x " + readable(constraints_.memory) +
                             " (memory_margin taken off): of those that were tried, the one that needs least, " +
                             describe(least.staging.replicas, least.staging.microbatches, least.staging.schedule) +
                             ", needs " + readable(peak(least)) + " on a rank",
                         StageId(0), peak(least), constraints_.memory,
                         "schedule = 1f1b or auto may need less; else use more ranks or more memory");
  }

  /// The node that needs most by itself, if no rank can hold it even with one sample; else empty.
  [[nodiscard]] std::string too_large_node() const {
    const auto& costs = work_.node_costs(1);
    Bytes most{};
    NodeId largest = NodeId::none();
    for (const NodeId node : work_.graph.nodes()) {
      Bytes own = work_.graph[node].resident + costs[node.index()].saved + costs[node.index()].workspace;
      for (const ParameterId parameter : work_.graph[node].parameters)
        own += Bytes(least_held(work_.parameters[parameter.index()], constraints_).at(constraints_.world));
      if (own <= most) continue;
      most = own;
      largest = node;
    }
    if (most <= constraints_.memory) return "";
    const WorkNode& unit = work_.graph[largest];
    return "; no cut helps, for " + unit.name + (unit.path.empty() ? "" : " (near " + unit.path + ")") +
           " alone needs " + readable(most) + " with one sample";
  }

  [[noreturn]] void refuse_no_staging() const {
    for (const NodeId node : work_.graph.nodes()) {
      const WorkNode& unit = work_.graph[node];
      if (!unit.whole_batch) continue;
      throw CaptureError(unit.name, unit.path,
                         "mixes the samples of a batch, so its stage must have one replica, which stages = " +
                             std::to_string(constraints_.stages) + " with replicas = " +
                             listed(request_.options.replicas) +
                             " do not allow; leave them to the planner");
    }
    throw InfeasiblePlan("no division into stages meets stages = " + std::to_string(constraints_.stages) +
                         " and replicas = " + listed(request_.options.replicas) +
                         (request_.options.schedule == "auto" ? "" : " under schedule = " + request_.options.schedule) +
                         "; leave them to the planner");
  }

  /// From blocks to the nodes of the work itself.
  [[nodiscard]] static Staging expanded(const Staging& staging, const Partition& blocks) {
    Staging fine = staging;
    fine.stage_of.assign(blocks.node_count(), 0);
    for (std::size_t node = 0; node < fine.stage_of.size(); ++node) {
      fine.stage_of[node] = staging.stage_of[blocks.block_of(NodeId::of(node)).index()];
    }
    return fine;
  }

  /// @param pieces  of which the objective's nodes are made
  [[nodiscard]] Plan describe_best(const Candidates& candidates, const StepObjective& objective,
                                   const Partition& pieces) const {
    const Candidate& best = candidates.best();
    Plan plan;
    plan.model = work_.hash;
    plan.world = constraints_.world;
    plan.batch = constraints_.batch;
    plan.microbatches = best.staging.microbatches;
    plan.schedule = best.staging.schedule;
    plan.orders = best.terms.orders;
    plan.zero = best.terms.savings.zero;
    plan.device = cluster_.device.name;
    plan.device_memory = constraints_.memory;
    plan.optimizer_state_factor = constraints_.optimizer_state_factor;
    plan.step = best.terms.step;
    plan.bubble = best.terms.bubble;
    add_stages(plan, best);
    add_runners_up(plan, candidates);
    plan.binding = binding(candidates, objective, pieces);
    plan.notes = constraints_.notes;
    add_idle_note(plan, candidates);
    return plan;
  }

  void add_stages(Plan& plan, const Candidate& best) const {
    const auto nodes = nodes_by_stage(best.staging);
    for (std::size_t s = 0; s < nodes.size(); ++s) {
      const StageTerms& terms = best.terms.stages[s];
      StagePlan stage;
      stage.atoms = members_of(nodes[s]);
      for (const NodeId node : nodes[s]) {
        const WorkNode& unit = work_.graph[node];
        stage.parameters.insert(stage.parameters.end(), unit.parameters.begin(), unit.parameters.end());
      }
      std::sort(stage.parameters.begin(), stage.parameters.end());
      stage.parameters.erase(std::unique(stage.parameters.begin(), stage.parameters.end()), stage.parameters.end());
      for (const ParameterId parameter : stage.parameters) {
        stage.parameter_elements += work_.parameters[parameter.index()].elements;
        stage.parameter_bytes += work_.parameters[parameter.index()].bytes;
      }
      stage.ranks = best.terms.ranks[s];
      if (!best.terms.savings.recomputed.empty()) {
        for (const auto& segment : best.terms.savings.recomputed[s]) stage.recomputed.push_back(members_of(segment));
      }
      stage.forward = terms.forward;
      stage.backward = terms.backward;
      stage.communication = terms.communication;
      stage.reduction = terms.reduction;
      stage.peak_memory = terms.memory.total();
      plan.stages.push_back(std::move(stage));
    }
  }

  [[nodiscard]] std::vector<NodeId> members_of(const std::vector<NodeId>& nodes) const {
    std::vector<NodeId> members;
    for (const NodeId node : nodes) {
      const auto& more = work_.graph[node].members;
      members.insert(members.end(), more.begin(), more.end());
    }
    std::sort(members.begin(), members.end());
    return members;
  }

  /// The next shapes, and always the one that everybody knows: one stage on all ranks.
  void add_runners_up(Plan& plan, const Candidates& candidates) const {
    const Candidate& best = candidates.best();
    std::vector<Candidate> others = candidates.ranked();
    std::erase_if(others, [&](const Candidate& c) {
      return c.staging.replicas == best.staging.replicas && c.staging.position_of == best.staging.position_of;
    });
    const auto replicated = std::find_if(others.begin(), others.end(), [&](const Candidate& c) {
      return c.staging.stages() == 1 && c.staging.ranks() == constraints_.world;
    });
    for (auto other = others.begin(); other != others.end(); ++other) {
      const bool among_first = candidates.fits(*other) && plan.runners_up.size() < 3;
      if (!among_first && other != replicated) continue;
      plan.runners_up.push_back(
          {describe(other->staging.replicas, other->staging.microbatches, other->staging.schedule) +
               describe(other->terms.savings),
           candidates.fits(*other) ? why_slower(*other, best) : why_not(*other), other->terms.step});
    }
  }

  [[nodiscard]] std::string why_not(const Candidate& other) const {
    return "does not fit: needs " + readable(StepObjective::peak(other.terms)) + " of " +
           readable(constraints_.memory) + " a rank";
  }

  [[nodiscard]] static std::string why_slower(const Candidate& other, const Candidate& best) {
    const double ratio = other.terms.step / best.terms.step;
    if (ratio < 1.005) return "as fast, within 0.5 %";
    const double computing = (other.terms.computing - best.terms.computing).value();
    const double summing = (other.terms.summing - best.terms.summing).value();
    const double waiting = (other.terms.step - other.terms.computing - best.terms.step + best.terms.computing).value();
    std::string why;
    if (computing >= std::max(summing, waiting)) {
      why = "its busiest rank computes " + readable(other.terms.computing) + " instead of " +
            readable(best.terms.computing);
    } else if (summing >= 0.5 * waiting) {
      why = "gradient sums take " + readable(other.terms.summing) + " instead of " + readable(best.terms.summing);
    } else {
      why = "bubble " + percent(other.terms.bubble) + " instead of " + percent(best.terms.bubble);
    }
    return formatted("%.2f", ratio) + " x slower: " + why;
  }

  /// Memory if a faster shape does not fit; else the largest part of the average rank's step: computing,
  /// what free links would save, or the rest, which is waiting for other stages.
  [[nodiscard]] Binding binding(const Candidates& candidates, const StepObjective& objective,
                                const Partition& pieces) const {
    const Candidate& best = candidates.best();
    for (const Candidate& other : candidates.ranked()) {
      if (!candidates.fits(other) && other.terms.step < best.terms.step) return Binding::kMemory;
    }
    Workload free_links = objective.work();
    free_links.transfer = [](Bytes, Rank, Rank) { return Seconds{}; };
    free_links.all_reduce = [](Bytes, std::span<const Rank>) { return Seconds{}; };
    const StepObjective free(free_links, cluster_, objective.constraints());
    Staging staging = best.staging;
    staging.stage_of.clear();
    for (const NodeId piece : free_links.graph.nodes()) {
      const NodeId first = pieces.members(BlockId(piece.value())).front();
      staging.stage_of.push_back(best.staging.stage_of[first.index()]);
    }
    const bool many = objective.actions(staging) > StepObjective::kManyActions &&
                      staging.schedule != ScheduleKind::kSynthesised;
    const StepTerms unhindered = many ? free.folded(staging) : free.evaluate(staging, best.terms.ranks);
    const double links = std::max(0.0, (best.terms.step - unhindered.step) / best.terms.step);
    const double bubble = best.terms.bubble - links;
    if (1 - best.terms.bubble >= std::max(links, bubble)) return Binding::kCompute;
    return links >= bubble ? Binding::kBandwidth : Binding::kBubble;
  }

  void add_idle_note(Plan& plan, const Candidates& candidates) const {
    std::vector<bool> used(static_cast<std::size_t>(constraints_.world), false);
    for (const auto& stage : plan.stages) {
      for (const Rank rank : stage.ranks)
        used[rank.index()] = true;
    }
    std::vector<int> idle;
    for (std::size_t r = 0; r < used.size(); ++r) {
      if (!used[r]) idle.push_back(static_cast<int>(r));
    }
    if (idle.empty()) return;
    plan.notes.push_back((idle.size() == 1 ? "rank " : "ranks ") + ranges(idle) + " idle: " +
                         why_idle(candidates, constraints_.world - static_cast<int>(idle.size())));
  }

  [[nodiscard]] std::string why_idle(const Candidates& candidates, int used) const {
    if (!constraints_.replicas.empty()) return "the replicas asked for leave them over";
    bool fit = false, found = false;
    for (const Candidate& other : candidates.ranked()) {
      if (other.staging.ranks() <= used) continue;
      found = true;
      fit = fit || candidates.fits(other);
    }
    if (fit) return "plans that use more ranks are slower";
    return found ? "plans that use more ranks and were looked at do not fit"
                 : "no plan that uses more ranks came out of the search";
  }

  void add_proof(Plan& plan, const SearchResult& found, bool whole, std::size_t blocks) const {
    plan.certificate = make_certificate(work_, constraints_, plan.step);
    plan.certificate.searched_to_end = found.proven && whole;
    if (whole) plan.certificate.searched_bound = found.proven ? plan.step : found.lower_bound;
    const std::string scope = whole ? "" : " of " + std::to_string(blocks) + " blocks of operators";
    if (found.proven) {
      plan.notes.push_back("searched to the end: no plan" + scope + " has a shorter predicted step");
    } else if (found.lower_bound > Seconds(0)) {
      plan.notes.push_back("searched " + std::to_string(found.states) + " states, not to the end: no plan" + scope +
                           " has a predicted step below " + readable(found.lower_bound));
    }
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
  StepObjective objective_;
};

}  // namespace detail

}  // namespace autopar
