#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/engine/fp8_weights.hpp"
#include "torch/engine/rounded_sums.hpp"
#include "torch/engine/stage.hpp"
#include "torch/parameters/gradient_buckets.hpp"
#include "torch/parameters/shards.hpp"
#include "torch/staging/staged_graph.hpp"

namespace autopar::engine {

/// The stages of a captured program on one rank (none, one or several) and their gradients. Prepared once and used by
/// every call (see TorchEngine). Stages that read the same parameter share its gradient.
class RankRuntime {
 public:
  /// @param leaves  see Stage
  /// @param splits_backwards  whether programs have backwards in two parts
  /// @param recomputed        atoms that stages recompute before their backward
  /// @param sharded           by reduction group: what it shards; empty: nothing
  /// @param buckets           the buckets of gradients that are not reduced into shards, and how all are sent
  RankRuntime(const OpGraph& graph, const algebra::BatchSemantics& plan, const staging::StagedGraph& division,
              Rank rank, c10::Device device, const Stage::Leaves& leaves, bool splits_backwards = false,
              interpret::RecomputedAtoms recomputed = {}, std::vector<parameters::ShardedGroup> sharded = {},
              const BucketPolicy& buckets = {});
  /// Without compute copies: stages read owner handles only.
  RankRuntime(const OpGraph& graph, const algebra::BatchSemantics& plan, const staging::StagedGraph& division,
              Rank rank, c10::Device device, const Stage::Lookup& lookup, bool splits_backwards = false,
              interpret::RecomputedAtoms recomputed = {})
      : RankRuntime(graph, plan, division, rank, device, Stage::Leaves{.handle = lookup}, splits_backwards,
                    std::move(recomputed)) {}
  RankRuntime(const RankRuntime&) = delete;
  RankRuntime& operator=(const RankRuntime&) = delete;

  [[nodiscard]] const PartitionedProgram& program() const { return program_; }
  [[nodiscard]] const OpGraph& graph() const { return *program_.graph; }
  [[nodiscard]] const Pipeline& pipeline() const { return program_.pipeline; }
  [[nodiscard]] c10::Device device() const { return program_.device; }
  [[nodiscard]] Rank rank() const { return rank_; }

  [[nodiscard]] const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }  ///< ascending
  /// Updates the leaves whose handles changed memory or requires_grad. O(parameters of the rank).
  void refresh_leaves();
  /// See Stage::add_kept_casts; for all stages.
  [[nodiscard]] std::vector<const void*> kept_casts() const;
  /// Releases casts of parameters, which each call makes again. Backwards keep the casts that they need.
  void drop_casts();

  /// Parameters that a stage of this rank reads or a reduction group of this rank contains, ascending.
  [[nodiscard]] const std::vector<ValueId>& parameters() const { return parameters_; }
  /// Index in parameters().
  /// @pre the parameter is one of them
  [[nodiscard]] std::size_t position_of(ValueId parameter) const { return position_[parameter.index()]; }
  /// The current tensor of the user's handle of a parameter.
  /// @pre it is one of parameters()
  [[nodiscard]] const at::Tensor& handle(ValueId parameter) const;

  [[nodiscard]] const std::vector<parameters::BucketLayout>& bucket_layouts() const {
    return bucket_layouts_;
  }  ///< by group
  /// Whether this rank takes part in the group's reductions.
  [[nodiscard]] bool in_group(int group) const { return member_[static_cast<std::size_t>(group)]; }
  /// This rank's memory of the unit whose gradients the group reduces into shards; null if it all-reduces them.
  [[nodiscard]] parameters::ShardMemory* shards_of(int group) const { return shared_shards_of(group).get(); }
  [[nodiscard]] std::shared_ptr<parameters::ShardMemory> shared_shards_of(int group) const {
    return sharded_.empty() ? nullptr : sharded_[static_cast<std::size_t>(group)].memory;
  }
  /// Null if no layer runs in 8 bits.
  [[nodiscard]] const Fp8Weights* fp8_weights() const { return fp8_weights_ ? &*fp8_weights_ : nullptr; }
  /// The elements of a parameter of `bucket_layouts()[group]` in this rank's part, as indices of the part.
  /// @pre shards_of(group)
  [[nodiscard]] Interval within_part(int group, const parameters::BucketLayout::Place& place) const;
  /// Where the gradients of an action's bucket are summed, if they are rounded to be sent; null if they are not. Null
  /// on one member means null on all.
  [[nodiscard]] const SummingStream* summing_stream_of(const Action& action) const;
  /// Gradients of buckets that have not come yet, of all calls.
  [[nodiscard]] const std::shared_ptr<autograd::UnwrittenSums>& unwritten() const { return unwritten_; }
  /// The ZeRO level of a group.
  [[nodiscard]] int zero_of(int group) const { return program_.pipeline.groups[static_cast<std::size_t>(group)].zero; }

 private:
  void find_parameters(const staging::StagedGraph& division, const std::vector<StageId>& own,
                       const Stage::Lookup& handle);
  void lay_out_buckets(const staging::StagedGraph& division);
  void find_gathers(const staging::StagedGraph& division, const std::vector<StageId>& own);
  [[nodiscard]] parameters::BucketLayout layout_in(const parameters::ShardUnit& unit,
                                                   const std::vector<ValueId>& parameters) const;

  PartitionedProgram program_;
  Rank rank_;
  std::vector<ValueId> parameters_;
  std::vector<std::size_t> position_;  ///< by ValueId: index in parameters()
  std::vector<parameters::BucketLayout> bucket_layouts_;
  std::vector<bool> member_;
  std::vector<parameters::ShardedGroup> sharded_;  ///< by group; or empty
  BucketPolicy buckets_;
  std::shared_ptr<autograd::UnwrittenSums> unwritten_ = std::make_shared<autograd::UnwrittenSums>();
  std::optional<SummingStream> summing_stream_;  ///< if gradients are rounded to be sent
  std::vector<bool> reduced_;                    ///< by ValueId: in a reduction group of this rank
  std::vector<std::unique_ptr<Stage>> stages_;
  std::optional<Fp8Weights> fp8_weights_;
  std::map<ValueId, at::Tensor> unread_;  ///< handles of parameters that no stage of this rank reads
};

}  // namespace autopar::engine
