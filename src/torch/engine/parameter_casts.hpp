#pragma once

#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/interpret/stage_parts.hpp"

namespace autopar::parameters {
class ComputeCopy;
}

namespace autopar::engine {

/// The casts of parameters that a stage reads: operators that run once for each call, elsewhere, or not at all where a
/// copy is kept from earlier calls (ComputeCopy). Gradients flow back through them to the parameters' own element type.
class ParameterCasts {
 public:
  /// Returns the tensor that replaces casts of a parameter; undefined: the stage casts.
  using Copy = std::function<at::Tensor(ValueId)>;

  /// @param ops   of the stage, ascending
  /// @param copy  see Stage::Leaves
  /// @pre what is referred to outlives this
  ParameterCasts(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops, Copy copy);

  /// The other operators of the stage, which run for each slice.
  [[nodiscard]] const std::vector<OpId>& each_slice() const { return each_slice_; }
  /// Decides which casts are made when an operator first reads them: made together, a device would wait for the host.
  /// @param parts  of `each_slice`
  void find_readers(const std::vector<interpret::StagePart>& parts);
  [[nodiscard]] bool are_read_by(OpId op) const { return read_by_.contains(op); }

  /// Starts a call. Casts are kept until `drop`, and as long as a backward needs them.
  /// @param differentiate  whether backwards will follow
  /// @param copies         what replaces casts of some parameters in this call, maybe in 8 bits
  void start(replay::Environment& values, const replay::Environment& handles, bool differentiate,
             const std::map<ValueId, at::Tensor>& copies = {});
  /// Makes what an operator reads and is not made.
  void make_for(OpId op, replay::Environment& values, const replay::Environment& handles);
  void drop(replay::Environment& values);
  /// Appends the memory of kept casts, which are updated first; null for casts that calls make. O(casts).
  /// @param copies  what replaces casts of some parameters
  void add_kept(const replay::Environment& handles, const std::map<ValueId, at::Tensor>& copies,
                std::vector<const void*>& memory) const;

 private:
  struct Cast {
    ValueId parameter, result;
  };
  void make(OpId op, replay::Environment& values, const replay::Environment& handles);
  [[nodiscard]] at::Tensor cast(const at::Tensor& leaf, const at::Tensor& handle, ValueId parameter,
                                const ValueInfo& form) const;
  /// The copy that is kept on the parameter's handle; null if it does not have the form of the cast.
  [[nodiscard]] static parameters::ComputeCopy* kept_copy(const at::Tensor& handle, const ValueInfo& form);

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  Copy copy_;
  std::vector<Cast> casts_;
  std::vector<OpId> each_slice_;
  std::map<OpId, std::vector<OpId>> read_by_;  ///< casts that are made when their readers run
  std::vector<OpId> made_first_;               ///< the other casts
  std::map<std::tuple<ValueId, c10::ScalarType, bool>, at::Tensor> made_;  ///< by parameter, type and grad mode
  bool differentiates_ = false;
  std::map<ValueId, at::Tensor> copies_;  ///< of the call under way
};

}  // namespace autopar::engine
