#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::oracle {

struct SampleRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end > begin ? end - begin : 0; }
};

/// Which ranks hold which samples of a plan's batch, written independently of `BatchSplit`. The callers who bring
/// inputs are stage -1; the callers who get results are one more stage at the end.
class Batch {
 public:
  explicit Batch(const Plan& plan) : plan_(plan) {}

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int stages() const { return static_cast<int>(plan_.stages.size()); }
  [[nodiscard]] bool is_stage(int stage) const { return stage >= 0 && stage < stages(); }
  [[nodiscard]] const std::vector<Rank>& ranks_of(int stage) const { return mesh(stage).ranks(); }
  [[nodiscard]] int shards(int stage) const { return mesh(stage).tensor(); }

  /// Ranks that hold the same samples, by tensor shard.
  using Holders = std::pair<std::vector<std::size_t>, SampleRange>;
  /// Which ranks hold which samples of micro-batch m in a stage, in the order of samples. Ranks without samples are
  /// left out.
  [[nodiscard]] std::vector<Holders> holders(int stage, std::int64_t m) const {
    std::vector<Holders> out;
    const bool own_pieces = !is_stage(stage) || keeps_pieces();
    const std::int64_t parts = own_pieces ? plan_.world : replicas(stage);
    const std::int64_t size = microbatch_size(m);
    std::int64_t begin = 0;
    for (std::int64_t q = 0; q < parts; ++q) {
      const std::int64_t end = own_pieces ? begin + piece(q, m) : size * (q + 1) / parts;
      std::vector<std::size_t> ranks;
      if (own_pieces) ranks.push_back(static_cast<std::size_t>(q));
      for (int t = 0; !own_pieces && t < shards(stage); ++t)
        ranks.push_back(ranks_of(stage)[static_cast<std::size_t>(q * shards(stage) + t)].index());
      if (end > begin) out.emplace_back(std::move(ranks), SampleRange{begin, end});
      begin = end;
    }
    return out;
  }

 private:
  [[nodiscard]] const Mesh& mesh(int stage) const { return plan_.stages[static_cast<std::size_t>(stage)].mesh; }
  [[nodiscard]] std::int64_t replicas(int stage) const {
    return static_cast<std::int64_t>(ranks_of(stage).size()) / shards(stage);
  }
  /// Samples that rank r brings, as even as possible.
  [[nodiscard]] std::int64_t local(std::int64_t r) const {
    return plan_.batch * (r + 1) / plan_.world - plan_.batch * r / plan_.world;
  }
  /// Samples of rank r in micro-batch m. Remainders are carried over from rank to rank.
  [[nodiscard]] std::int64_t piece(std::int64_t r, std::int64_t m) const {
    const std::int64_t own = local(r), count = plan_.microbatches;
    const std::int64_t carried = plan_.batch * r / plan_.world % count;
    return (own * (m + 1) + carried) / count - (own * m + carried) / count;
  }
  [[nodiscard]] std::int64_t microbatch_size(std::int64_t m) const {
    std::int64_t size = 0;
    for (std::int64_t r = 0; r < plan_.world; ++r) size += piece(r, m);
    return size;
  }
  /// Whether all stages are on all ranks: then each rank runs the samples that it brings.
  [[nodiscard]] bool keeps_pieces() const {
    return replicas(0) == plan_.world &&
           std::all_of(plan_.stages.begin(), plan_.stages.end(),
                       [this](const StagePlan& stage) { return stage.mesh.replicas() == replicas(0); });
  }

  const Plan& plan_;
};

/// All values of one kind that cross from one stage to another, and their gradients; stages as in `Batch`.
struct Crossing {
  int from = 0, to = 0;
  bool whole = false;    ///< sent whole: its size does not depend on the samples
  bool returns = false;  ///< a gradient comes back
  Affine value{}, gradient{};
};
[[nodiscard]] inline std::vector<Crossing> crossings(const verify::StatedPlan& stated) {
  const auto stage = [&](StageId id) {
    return id.valid() ? id.value() : id == kSource ? -1 : static_cast<int>(stated.plan.stages.size());
  };
  std::vector<Crossing> out;
  for (std::size_t c = 0; c < stated.channels.size(); ++c) {
    const Channel& channel = stated.pipeline.channels[c];
    out.push_back({stage(channel.from), stage(channel.to), channel.kind != ChannelKind::kBatched,
                   channel.differentiable, stated.channels[c].value, stated.channels[c].gradient});
  }
  return out;
}

}  // namespace autopar::oracle
