#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/core/work.hpp>
#include <autopar/graph/graph.hpp>

namespace autopar {

/// Bytes of memory, for n samples.
struct AtomMemory {
  Affine saved, workspace, deferred_weight, forward_workspace;  ///< as in OpProfile
  friend bool operator==(const AtomMemory&, const AtomMemory&) = default;
};

/// An *atom*: operators that must not be separated. Every convex set of atoms is a legal stage.
struct OpProfile {
  std::string name;  ///< operator or first operator, e.g. "aten::linear"
  std::string path;  ///< nearest module or parameter path, may be empty
  std::vector<WorkItem> work;
  Affine saved;              ///< bytes kept from forward until backward
  Affine workspace;          ///< temporary bytes while the atom or its backward runs, in addition to `saved`
  Affine forward_workspace;  ///< the part of `workspace` that the forward needs; at most `workspace`
  Bytes resident{};          ///< casts of parameters that some operators also read uncast (see ParameterProfile::copy);
                             ///< made once for each step and kept for all micro-batches
  Affine deferred_weight;    ///< what deferred weight backwards compute the gradients from
  /// The part of these four that each tensor shard in a region takes, whatever the number of shards: unsharded values,
  /// and buffers of exchanges. The rest is proportional to the shard's units of the region.
  AtomMemory on_each_shard;
  std::vector<ParameterId> parameters;  ///< parameters that it reads; one id at several atoms is one (tied) tensor
  bool whole_batch = false;             ///< mixes samples: exact only with one micro-batch and one replica
  Bytes totals{};                       ///< bytes of sums over the whole batch, which replicas all-reduce within their
                                        ///< stage in forward and backward; exact only with one micro-batch
  bool batch_statistic = false;         ///< normalises over the samples of one execution
  std::uint64_t structure = 0;          ///< equal for atoms with equal operators, shapes and constants
  std::vector<std::int32_t> ops;        ///< indices of its operators in the captured graph, ascending
};

/// A value that flows from one atom to another. A value with several readers is several edges with one `value`.
struct ValueProfile {
  std::int32_t value = -1;     ///< id of the value in the captured graph
  Affine bytes;                ///< size
  bool differentiable = true;  ///< it has a gradient, of the same size
  bool kept = false;           ///< part of what its producer saves for the backward: other holders share that memory
  /// The producer's workspace assumes that its backward receives two gradients of the value. If it receives their sum,
  /// the workspace is smaller by one such gradient.
  bool two_gradients = false;
  bool for_readers = false;  ///< kept because readers need it for their backwards; the producer does not
};

/// A value that the caller passes in.
struct InputProfile {
  std::int32_t value = -1;
  Affine bytes;
  bool differentiable = false;
  std::vector<NodeId> readers;
};

/// A value that is returned to the caller.
struct OutputProfile {
  std::int32_t value = -1;
  Affine bytes;
  NodeId writer;
  bool kept = false;  ///< as in ValueProfile
};

struct ParameterProfile {
  std::string name;
  Bytes bytes;                ///< of the tensor
  bool trainable = true;      ///< has a gradient and optimizer state
  std::int64_t elements = 0;  ///< 0 for a buffer, or if unknown
  Bytes copy{};               ///< of a copy in a smaller type that all operators read instead; 0: none
  /// Highest ZeRO level at which ranks can shard it. 0: something outside the stages reads it. It then stays unsharded
  /// on the devices of its ranks, and is not offloaded.
  int highest_zero = 3;
  /// Whether each call makes the copy for one atom, whose last backward frees it. Otherwise it is kept across calls, or
  /// until a call ends.
  bool copy_by_call = false;

  /// Bytes of what stages compute with: the copy if there is one.
  [[nodiscard]] Bytes computed_with() const { return copy > Bytes(0) ? copy : bytes; }
};

/// Atoms that the tensor shards of a replica can compute together, each with slices of the parameters and saved values.
/// Examples: a column-parallel and a row-parallel layer with the operators between them, attention heads, an embedding,
/// a class head with its loss. Inputs and outputs of the region are replicated on all shards.
///
/// Another kind of region follows such a region: norms and residuals. The shards can divide them by tokens if they also
/// compute the leading region together (sequence parallelism). Its units are tokens, and it has no parameters. Its
/// exchanged bytes are what it adds to the exchanges of adjacent regions. `fault_in_tensor_regions` checks the
/// invariants.
struct TensorRegion {
  std::vector<NodeId> atoms;            ///< ascending; regions are disjoint
  std::vector<ParameterId> parameters;  ///< held in slices
  std::int64_t units = 1;               ///< hidden units, heads or classes: an upper bound on the number of shards
  bool even = true;                     ///< whether the number of shards must divide `units`
  Affine forward;                       ///< bytes that the shards all-reduce in a forward of n samples
  Affine backward;                      ///< bytes that the shards all-reduce in a backward of n samples
  int forward_calls = 0;                ///< number of all-reduces in the forward
  int backward_calls = 0;
  int follows = -1;  ///< for a region of the second kind: index of the region that it follows; -1: none

  /// Whether this number of shards can compute the region together.
  [[nodiscard]] bool admits(int shards) const {
    return shards == 1 || (shards > 1 && shards <= units && (!even || units % shards == 0));
  }
  friend bool operator==(const TensorRegion&, const TensorRegion&) = default;
};

/// What the planner knows of a model. Costs depend on the number of samples and not on a device.
struct ModelProfile {
  Graph<OpProfile, ValueProfile> graph;
  /// By ParameterId, in the order of their last readers: backwards compute gradients from the end. Includes buffers,
  /// which are not trainable.
  std::vector<ParameterProfile> parameters;
  std::vector<InputProfile> inputs;
  std::vector<OutputProfile> outputs;
  std::vector<TensorRegion> tensor_regions;
  Affine held_beside;          ///< bytes on a rank besides its stages, by the rank's samples of the batch: memory of
                               ///< libraries, and copies of arguments
  bool loss_mode = true;       ///< forward and backward may be pipelined (otherwise: all forwards, then all backwards)
  bool chunked_heads = false;  ///< the profile is of the program whose class heads compute logits in chunks
  /// Whether `tensor_regions` has row-parallel linear layers that are not part of a pair.
  bool layers_by_inputs = false;
  std::uint64_t hash = 0;  ///< of the captured graph: a plan belongs to one model
};

}  // namespace autopar
