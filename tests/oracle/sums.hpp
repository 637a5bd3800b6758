#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::oracle {

/// A sum of gradients over ranks, by bucket.
struct GradientSum {
  std::vector<std::size_t> ranks;     ///< ascending
  int stage = -1;                     ///< -1 = parameters tied across stages
  std::vector<std::int64_t> buckets;  ///< bytes that are sent for it at the end of a call
};

/// A plan's sums in the order of its groups, and their buckets, written independently of `cut_into_buckets`.
class GradientSums {
 public:
  explicit GradientSums(const verify::StatedPlan& stated) : stated_(stated), plan_(stated.plan) {}

  /// Adds trainable parameters by the stages that read them, the last parameter first.
  [[nodiscard]] std::vector<GradientSum> find() && {
    std::map<std::vector<int>, std::vector<ParameterId>> by_stages;
    std::vector<std::vector<int>> readers(stated_.model.parameters.size());
    for (int s = 0; s < static_cast<int>(plan_.stages.size()); ++s) {
      for (const ParameterId id : plan_.stages[static_cast<std::size_t>(s)].parameters)
        readers[id.index()].push_back(s);
    }
    for (std::size_t p = readers.size(); p-- > 0;) {
      if (!readers[p].empty() && stated_.model.parameters[p].trainable)
        by_stages[readers[p]].push_back(ParameterId::of(p));
    }
    std::vector<std::vector<int>> own, tied;
    for (const auto& [readers_of_list, list] : by_stages)
      (readers_of_list.size() > 1 ? tied : own).push_back(readers_of_list);
    if (shares_ranks()) std::reverse(own.begin(), own.end());  // a rank completes its later stage first
    for (const auto* lists : {&own, &tied}) {
      for (const auto& stages : *lists) {
        const int count = stages.size() == 1 ? mesh(stages.front()).tensor() : 1;
        for (int t = 0; t < count; ++t) add(stages, t, by_stages.at(stages));
      }
    }
    return std::move(sums_);
  }

 private:
  [[nodiscard]] const Mesh& mesh(int stage) const { return plan_.stages[static_cast<std::size_t>(stage)].mesh; }
  [[nodiscard]] bool shares_ranks() const {
    std::vector<bool> taken(static_cast<std::size_t>(plan_.world), false);
    for (const StagePlan& stage : plan_.stages) {
      for (const Rank rank : stage.mesh.ranks()) {
        if (taken[rank.index()]) return true;
        taken[rank.index()] = true;
      }
    }
    return false;
  }

  /// @param t  tensor shard
  void add(const std::vector<int>& stages, int t, const std::vector<ParameterId>& list) {
    GradientSum sum;
    sum.stage = stages.size() == 1 ? stages.front() : -1;
    for (const int s : stages) {
      for (int q = 0; q < mesh(s).replicas(); ++q) sum.ranks.push_back(mesh(s).rank(q, t).index());
    }
    std::sort(sum.ranks.begin(), sum.ranks.end());
    sum.ranks.erase(std::unique(sum.ranks.begin(), sum.ranks.end()), sum.ranks.end());
    if (sum.ranks.size() < 2) return;
    std::map<std::int64_t, std::size_t> filling;  // by element size: buckets with room
    std::vector<std::int64_t> used;
    for (const ParameterId parameter : list) {
      const ParameterProfile& held = stated_.parameter(parameter);
      const auto [room, element] = in_bucket(held);
      const auto known = filling.find(element);
      if (known != filling.end() && used[known->second] > 0 && used[known->second] + room > plan_.buckets.size.value())
        filling.clear();  // a full bucket closes all
      if (filling.emplace(element, used.size()).second) {
        used.push_back(0);
        sum.buckets.push_back(0);
      }
      used[filling.at(element)] += room;
      const bool in_backwards = plan_.zero >= 2 && sum.stage >= 0 && held.highest_zero >= 2;
      const bool halved = plan_.buckets.reduce_dtype == ReduceDtype::kBf16 && element == 4;
      if (!in_backwards) sum.buckets[filling.at(element)] += held.bytes.value() / (halved ? 2 : 1);
    }
    sums_.push_back(std::move(sum));
  }

  /// Bytes of a gradient in a bucket, padded to a multiple of 16 elements, and the size of an element. If elements are
  /// unknown, just its bytes.
  [[nodiscard]] static std::pair<std::int64_t, std::int64_t> in_bucket(const ParameterProfile& parameter) {
    const std::int64_t bytes = parameter.bytes.value(), elements = parameter.elements;
    if (elements <= 0 || bytes <= 0 || bytes % elements != 0 || bytes / elements >= 64) return {bytes, 1};
    return {(elements + 15) / 16 * 16 * (bytes / elements), bytes / elements};
  }

  const verify::StatedPlan& stated_;
  const Plan& plan_;
  std::vector<GradientSum> sums_;
};

}  // namespace autopar::oracle
