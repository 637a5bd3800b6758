#pragma once

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/parameter_groups.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/multilevel/uncoarsen.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/certificate.hpp>
#include <autopar/plan/report/kept_options.hpp>
#include <autopar/plan/report/ties.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/search/tensor_degrees.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

/// The staging that a plan describes, for a graph of `nodes` nodes.
/// @pre the plan puts each node into one stage, see `fault_in_shape`
[[nodiscard]] inline Staging staging_of(const Plan& plan, std::size_t nodes) {
  Staging staging = shape_of_plan(plan);
  staging.stage_of.assign(nodes, -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const NodeId atom : plan.stages[s].atoms) staging.stage_of[atom.index()] = static_cast<int>(s);
  }
  return staging;
}

namespace detail {

/// Turns the result of a search into a plan that explains itself.
class PlanMaker {
 public:
  PlanMaker(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints)
      : work_(work), cluster_(cluster), request_(request), constraints_(constraints) {}

  /// @param found  stagings of the blocks of `coarse` @pre any fits
  [[nodiscard]] Plan make(const Coarsened& coarse, const SearchResult& found) const {
    const StepObjective objective(work_, cluster_, constraints_);
    const Uncoarsening uncoarsening(objective, coarse);
    SearchResult fine{uncoarsening.refined(found)};
    // A block may hold a region together with nodes that are faster in another shape.
    if (!coarse.whole() && !uncoarsening.in_pieces() && found.mixes_degrees) SharedRanks(objective, fine).offer();
    const Ties::Choice choice = Ties(work_, cluster_, constraints_, request_.ties).choose(fine.candidates);
    Plan plan = described(choice.candidate, fine.candidates, uncoarsening);
    add_proof(plan, found, coarse, fine.candidates.best_step());
    if (!choice.note.empty()) plan.notes.push_back(choice.note);
    return plan;
  }

 private:
  [[nodiscard]] Plan described(const Candidate& best, const Candidates& candidates,
                               const Uncoarsening& uncoarsening) const {
    Plan plan;
    plan.model = work_.hash;
    plan.world = constraints_.world;
    plan.batch = constraints_.batch;
    plan.microbatches = best.staging.microbatches;
    plan.schedule = best.staging.schedule;
    plan.orders = best.terms.orders;
    plan.zero = best.terms.optimizations.zero;
    plan.offload = best.terms.optimizations.offload;
    plan.sequence_parallel = best.terms.optimizations.sequence;
    plan.chunked_heads = work_.chunked_heads;
    plan.layers_by_inputs = work_.layers_by_inputs;
    plan.buckets = constraints_.buckets;
    plan.precision = request_.options.precision;
    plan.constraints = kept_options(request_.options);
    plan.device = cluster_.device.name;
    plan.device_memory = constraints_.memory;
    plan.host_memory = plan.offload == Offload::kNone ? Bytes(0) : constraints_.host_memory.value_or(Bytes(0));
    plan.gradient_copies = constraints_.gradient_copies;
    plan.optimizer_state_factor = constraints_.optimizer_state_factor;
    plan.step = best.terms.step;
    plan.bubble = best.terms.bubble;
    add_stages(plan, best);
    add_runners_up(plan, best, candidates);
    plan.binding = binding(best, candidates, uncoarsening);
    plan.notes = constraints_.notes;
    add_idle_note(plan, candidates);
    add_buckets_note(plan, best);
    if (constraints_.tensor_degrees != std::vector{1}) {
      add_regions_note(plan, best);
      add_degrees_note(plan, candidates);
    }
    return plan;
  }

  /// Notes what tensor shards compute in slices.
  void add_regions_note(Plan& plan, const Candidate& best) const {
    if (best.staging.tensor.empty()) return;
    const auto all = region_shards_of(work_.regions, best.staging, best.terms.optimizations.sequence);
    const TensorRegion* first = nullptr;
    int sliced = 0, whole = 0, followers = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const bool is_sliced = all[r] > 1, follows = work_.regions[r].follows >= 0;
      if (is_sliced && first == nullptr) first = &work_.regions[r];
      if (is_sliced) ++(follows ? followers : sliced);
      if (!is_sliced && !follows) ++whole;
    }
    std::string note = "tensor shards compute " + std::to_string(sliced) + " of " + std::to_string(sliced + whole) +
                       " parts of the model in slices";
    if (first != nullptr) {
      const WorkNode& node = work_.graph[first->atoms.front()];
      note += ", the first of them near " + (node.path.empty() ? node.name : node.path);
    }
    if (whole > 0)
      note += "; " + std::to_string(whole) +
              " whole, as a stage has not all of it, is one rank a replica, or its units "
              "do not divide so";
    if (followers > 0) note += "; what lies behind " + std::to_string(followers) + " of them is cut by tokens";
    plan.notes.push_back(std::move(note));
  }

  /// Notes the step of each tensor degree, if all stages have it.
  void add_degrees_note(Plan& plan, const Candidates& candidates) const {
    if (constraints_.tensor_degrees.size() == 1) return;
    std::string steps;
    for (const int degree : constraints_.tensor_degrees) {
      const auto ranked = candidates.ranked();
      const auto found = std::ranges::find_if(ranked, [&](const Candidate& candidate) {
        const auto& tensor = candidate.staging.tensor;
        return degree == 1 ? tensor.empty()
                           : !tensor.empty() && std::ranges::all_of(tensor, [&](int own) { return own == degree; });
      });
      steps += (steps.empty() ? "" : ", ") + std::to_string(degree) + ": ";
      steps += found == ranked.end()     ? "nothing found"
               : candidates.fits(*found) ? readable(found->terms.step)
                                         : "does not fit";
    }
    plan.notes.push_back("steps by tensor shards a replica, the same for all stages: " + steps);
  }

  /// Notes a bucket size that is not the default, with the number of sums that it saves in the stage that has most.
  void add_buckets_note(Plan& plan, const Candidate& best) const {
    if (plan.buckets.size == BucketPolicy{}.size) return;
    const Workload work =
        best.staging.tensor.empty() ? work_ : in_shards(work_, best.staging, best.terms.optimizations.sequence);
    const auto most = [&](const BucketPolicy& policy) {
      std::size_t tied = 0, out = 0;
      for (const auto& group : parameter_groups(work, best.staging, best.terms.meshes)) {
        const auto [units, whole] = sharded_buckets_of(work, group, policy, plan.zero);
        const std::size_t count = units.buckets.size() + whole.buckets.size();
        if (!group.stage.valid()) tied += count;
        out = std::max({out, tied, count});  // a stage has one group, or equal ones of its tensor shards
      }
      return out;
    };
    const auto own = most(plan.buckets), usual = most(BucketPolicy{});
    if (own == 0) return;
    plan.notes.push_back("gradients are summed " + readable(plan.buckets.size) + " at a time, in " +
                         std::to_string(own) + (own == 1 ? " bucket" : " buckets") + " a stage at most instead of " +
                         std::to_string(usual) + " of " + readable(BucketPolicy{}.size));
  }

  void add_stages(Plan& plan, const Candidate& best) const {
    const auto nodes = nodes_by_stage(best.staging);
    for (std::size_t s = 0; s < nodes.size(); ++s) {
      const StageTerms& terms = best.terms.stages[s];
      StagePlan stage;
      stage.atoms = members_of(nodes[s]);
      std::set<ParameterId> read;
      for (const NodeId node : nodes[s])
        read.insert(work_.graph[node].parameters.begin(), work_.graph[node].parameters.end());
      stage.parameters.assign(read.begin(), read.end());
      for (const ParameterId parameter : read) {
        stage.parameter_elements += work_.parameters[parameter.index()].elements;
        stage.parameter_bytes += work_.parameters[parameter.index()].bytes;
      }
      stage.mesh = best.terms.meshes[s];
      if (!best.terms.optimizations.recomputed.empty()) {
        for (const auto& segment : best.terms.optimizations.recomputed[s])
          stage.recomputed.push_back(members_of(segment));
      }
      stage.forward = terms.forward;
      stage.backward = terms.backward;
      stage.communication = terms.communication;
      stage.reduction = terms.reduction;
      stage.peak_memory = terms.memory.total();
      stage.host_memory = terms.memory.host;
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

  /// Adds the next best shapes, and always the plan that everybody knows: one stage on all ranks.
  void add_runners_up(Plan& plan, const Candidate& best, const Candidates& candidates) const {
    std::vector<Candidate> others = candidates.ranked();
    std::erase_if(others, [&](const Candidate& c) {
      return c.staging.replicas == best.staging.replicas && c.staging.position_of == best.staging.position_of &&
             c.staging.tensor == best.staging.tensor;
    });
    const auto replicated = std::find_if(others.begin(), others.end(), [&](const Candidate& c) {
      return c.staging.stages() == 1 && c.staging.ranks() == constraints_.world && c.staging.tensor.empty();
    });
    for (auto other = others.begin(); other != others.end(); ++other) {
      const bool among_first = candidates.fits(*other) && plan.runners_up.size() < 3;
      if (!among_first && other != replicated) continue;
      plan.runners_up.push_back({describe(other->staging) + describe(other->terms.optimizations),
                                 candidates.fits(*other) ? why_slower(*other, best) : why_not(*other),
                                 other->terms.step});
    }
  }

  [[nodiscard]] std::string why_not(const Candidate& other) const {
    if (StepObjective::peak(other.terms) <= constraints_.memory)
      return "does not fit: its hosts do not hold what is offloaded";
    return "does not fit: needs " + readable(StepObjective::peak(other.terms)) + " of " +
           readable(constraints_.memory) + " a rank";
  }

  [[nodiscard]] static std::string why_slower(const Candidate& other, const Candidate& best) {
    const double ratio = other.terms.step / best.terms.step;
    if (ratio < 0.995) return formatted("%.2f", ratio) + " x the step, which predictions do not tell apart";
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
    } else if (percent(other.terms.bubble) != percent(best.terms.bubble)) {
      why = "bubble " + percent(other.terms.bubble) + " instead of " + percent(best.terms.bubble);
    } else {
      why = "its busiest rank waits " + readable(other.terms.step - other.terms.computing) + " instead of " +
            readable(best.terms.step - best.terms.computing);
    }
    return formatted("%.2f", ratio) + " x slower: " + why;
  }

  /// Memory if a faster shape does not fit. Otherwise the largest part of the average rank's step. The parts are
  /// computing without exchanges, what free links would save, and the rest, which is waiting for other stages.
  [[nodiscard]] Binding binding(const Candidate& best, const Candidates& candidates,
                                const Uncoarsening& uncoarsening) const {
    for (const Candidate& other : candidates.ranked()) {
      if (!candidates.fits(other) && other.terms.step < best.terms.step) return Binding::kMemory;
    }
    const StepObjective& objective = uncoarsening.comparing();
    Workload free_links = objective.work();
    free_links.transfer = [](Bytes, Rank, Rank) { return Seconds{}; };
    free_links.all_reduce = [](Bytes, std::span<const Rank>) { return Seconds{}; };
    const StepObjective free(free_links, cluster_, objective.constraints());
    const auto [staging, terms] = uncoarsening.comparable(best);
    const bool many = objective.actions(staging) > objective.constraints().budget.many_actions || !terms.orders.empty();
    const SizedPipeline sized = free.pipeline(staging, terms.meshes);
    const StepTerms unhindered =
        many ? free.folded(staging, sized, terms.optimizations, terms.orders) : free.evaluate(staging, terms.meshes);
    const double links = std::max(0.0, (best.terms.step - unhindered.step) / best.terms.step);
    const double computing = (1 - unhindered.bubble) * (unhindered.step / best.terms.step);
    const double bubble = 1 - computing - links;
    if (computing >= std::max(links, bubble)) return Binding::kCompute;
    return links >= bubble ? Binding::kBandwidth : Binding::kBubble;
  }

  void add_idle_note(Plan& plan, const Candidates& candidates) const {
    std::vector<bool> used(static_cast<std::size_t>(constraints_.world), false);
    for (const auto& stage : plan.stages) {
      for (const Rank rank : stage.mesh.ranks()) used[rank.index()] = true;
    }
    std::vector<int> idle;
    for (std::size_t r = 0; r < used.size(); ++r) {
      if (!used[r]) idle.push_back(static_cast<int>(r));
    }
    if (idle.empty()) return;
    bool fit = false, found = false;
    for (const Candidate& other : candidates.ranked()) {
      if (other.staging.ranks() + static_cast<int>(idle.size()) <= constraints_.world) continue;
      found = true;
      fit = fit || candidates.fits(other);
    }
    const char* why = !constraints_.replicas.empty() ? "the replicas asked for leave them over"
                      : fit                          ? "plans that use more ranks are slower"
                      : found                        ? "plans that use more ranks and were looked at do not fit"
                                                     : "no plan that uses more ranks came out of the search";
    plan.notes.push_back((idle.size() == 1 ? "rank " : "ranks ") + ranges(idle) + " idle: " + why);
  }

  /// @param best  predicted step; the plan's may be longer (`Ties`)
  void add_proof(Plan& plan, const SearchResult& found, const Coarsened& coarse, Seconds best) const {
    const bool whole = coarse.whole();
    plan.certificate = make_certificate(work_, constraints_, plan.step);
    const bool is_best = plan.step <= best;
    plan.certificate.searched_to_end = found.proven && whole && is_best;
    if (whole) plan.certificate.searched_bound = found.proven ? best : found.lower_bound;
    const std::string scope =
        whole ? "" : " of " + std::to_string(coarse.blocks.block_count()) + " blocks of operators";
    if (found.proven) {
      plan.notes.push_back(
          "searched to the end: no plan" + scope +
          (is_best ? " has a shorter predicted step" : " has a predicted step below " + readable(best)));
    } else if (found.plain_proven) {
      plan.notes.push_back("searched to the end: no plan" + scope +
                           " with one stage a rank and whole backwards has a shorter predicted step");
    } else if (found.lower_bound > Seconds(0)) {
      plan.notes.push_back("searched " + std::to_string(found.states) + " states, not to the end: no plan" + scope +
                           " has a predicted step below " + readable(found.lower_bound));
    }
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
};

}  // namespace detail

}  // namespace autopar
