#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/parameters/fp8_shards.hpp"

namespace autopar::engine {

class RankRuntime;

/// Parameters of which all that a program reads is casts to bf16, and these only as weights of layers that run in 8
/// bits: such layers may be given the weight in 8 bits instead. Ascending. The same on all ranks of a stage.
/// @param parameters  of the stage, ascending
/// @param layers      of the stage, which run in 8 bits as soon as they have scales, ascending
/// @cost O(edges)
[[nodiscard]] std::vector<ValueId> fp8_weights(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                               const std::vector<ValueId>& parameters, const std::vector<OpId>& layers);

/// The weights of a rank that its layers are given in 8 bits: gathered so under ZeRO 3 (Fp8Shards), otherwise kept so
/// across calls (ComputeCopy).
class Fp8Weights {
 public:
  /// @param runtime  with its stages @pre both outlive it
  Fp8Weights(const RankRuntime& runtime, fp8::Layers& layers);

  /// The reduction groups that a training call gathers in 8 bits if it begins now, ascending: their layers have scales,
  /// and their weights are trained. The same on all members.
  [[nodiscard]] std::vector<int> groups() const;
  /// @pre it is one of them
  [[nodiscard]] parameters::Fp8Shards& shards_of(int group) const { return *gathered_.at(group).shards; }
  /// Adds what replaces casts of the group's parameters in such a call.
  void add_gathered(int group, std::map<ValueId, at::Tensor>& copies) const;
  /// Adds the kept weights that replace casts in a training call that begins now, up to date.
  void add_kept(std::map<ValueId, at::Tensor>& copies) const;

 private:
  struct Group {
    std::unique_ptr<parameters::Fp8Shards> shards;
    std::vector<ValueId> weights;
  };
  void find_gathered(int group, const std::vector<ValueId>& weights, fp8::Layers& layers);

  const RankRuntime& runtime_;
  std::map<int, Group> gathered_;  ///< by group, those whose messages are shorter in 8 bits
  std::vector<std::pair<ValueId, const fp8::Layer*>> weights_;
};

}  // namespace autopar::engine
