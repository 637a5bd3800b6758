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
  Affine saved, workspace, deferred_weight, forward_workspace;  ///< as of an OpProfile
  friend bool operator==(const AtomMemory&, const AtomMemory&) = default;
};

/// An *atom*: operators that may not be separated. Every convex set of atoms is a legal stage.
struct OpProfile {
  std::string name;  ///< operator or first operator, e.g. "aten::linear"
  std::string path;  ///< nearest module or parameter path, may be empty
  std::vector<WorkItem> work;
  Affine saved;              ///< bytes kept from forward until backward
  Affine workspace;          ///< extra bytes while it or its backward runs, beside what it keeps
  Affine forward_workspace;  ///< of these, while it runs: no more
  Bytes resident{};          ///< casts of parameters that are read themselves, too (see ParameterProfile::copy),
                             ///< made once a step and kept for all micro-batches
  Affine deferred_weight;    ///< what gradients of parameters are made from when they are deferred
  /// Of these four what each tensor shard takes in a region, however many there are: values that are whole, and what
  /// is there while shards exchange some. The rest goes with a shard's share of the region's units.
  AtomMemory on_each_shard;
  std::vector<ParameterId> parameters;  ///< read by it; the same id at several atoms is one tensor (tied)
  bool whole_batch = false;             ///< mixes samples: exact only with one micro-batch and one replica
  Bytes totals{};                       ///< sums over the whole batch that it takes, which replicas add up inside their
                                        ///< stage, forward and backward; exact only with one micro-batch
  bool batch_statistic = false;         ///< normalises by the samples that it sees at a time
  std::uint64_t structure = 0;          ///< equal for atoms with equal operators, shapes and constants
  std::vector<std::int32_t> ops;        ///< positions of its operators in the captured graph, ascending
};

/// A value that flows from one atom to another. One value read by several atoms is several edges with one `value`.
struct ValueProfile {
  std::int32_t value = -1;     ///< id of the value in the captured graph
  Affine bytes;                ///< size
  bool differentiable = true;  ///< its gradient flows back, with the same size
  bool kept = false;  ///< in what its maker keeps until its backward: whoever else holds it there holds the same memory
  /// The maker's workspace is that of a backward which is given two gradients of it; given their sum it takes one less.
  bool two_gradients = false;
  bool for_readers = false;  ///< kept because those who read it need it for their backwards; the maker does not
};

/// A value that comes from the caller.
struct InputProfile {
  std::int32_t value = -1;
  Affine bytes;
  bool differentiable = false;
  std::vector<NodeId> readers;
};

/// A value that goes back to the caller.
struct OutputProfile {
  std::int32_t value = -1;
  Affine bytes;
  NodeId writer;
  bool kept = false;  ///< as of a ValueProfile
};

struct ParameterProfile {
  std::string name;
  Bytes bytes;                ///< of the tensor itself
  bool trainable = true;      ///< has a gradient and optimizer state
  std::int64_t elements = 0;  ///< 0 = a buffer, or not known
  Bytes copy{};               ///< of a copy in a smaller element type that all read in its place; 0 = it is read itself
  /// Highest ZeRO level at which ranks can hold it in shards; 0: something outside the stages reads it, so that it
  /// stays whole on the devices of its ranks, and nothing of it is offloaded.
  int highest_zero = 3;
  /// Each call makes the copy anew, for one atom alone, whose last backward lets go of it. Else it is kept from call to
  /// call, or until a call ends.
  bool copy_by_call = false;

  /// Bytes of what stages compute with in its place.
  [[nodiscard]] Bytes computed_with() const { return copy > Bytes(0) ? copy : bytes; }
};

/// Atoms that the tensor shards of a replica can compute together, each on slices of its parameters and of what it
/// keeps: a column and a row linear layer with what lies between, heads of attention, an embedding, a class head with
/// its loss. What enters and what leaves is whole on every shard. Or what such a region is followed by, norms and
/// residuals, which the shards can cut by tokens if they compute that region together: its units are tokens, it has no
/// parameters, and what it exchanges is what it adds to the exchanges of regions around it.
/// `fault_in_tensor_regions` says what else holds.
struct TensorRegion {
  std::vector<NodeId> atoms;            ///< ascending; no two regions share one
  std::vector<ParameterId> parameters;  ///< held in slices
  std::int64_t units = 1;               ///< hidden units, heads, classes: at most so many shards
  bool even = true;                     ///< whether the number of shards must divide them
  Affine forward;                       ///< bytes that the shards all-reduce in a forward of n samples
  Affine backward;                      ///< likewise in a backward
  int forward_calls = 0;                ///< all-reduces that these are
  int backward_calls = 0;
  int follows = -1;  ///< of what lies behind a region: its place among the regions; -1 = none

  /// Whether so many shards can compute it together.
  [[nodiscard]] bool admits(int shards) const {
    return shards == 1 || (shards > 1 && shards <= units && (!even || units % shards == 0));
  }
  friend bool operator==(const TensorRegion&, const TensorRegion&) = default;
};

/// Everything the planner knows of a model. Costs scale with samples; nothing here knows a device.
struct ModelProfile {
  Graph<OpProfile, ValueProfile> graph;
  /// By ParameterId, what operators read last last: backwards make gradients from the end. Buffers, which are not
  /// trainable, are here too.
  std::vector<ParameterProfile> parameters;
  std::vector<InputProfile> inputs;
  std::vector<OutputProfile> outputs;
  std::vector<TensorRegion> tensor_regions;
  Affine held_beside;          ///< bytes of a rank beside what its stages hold, by its samples of the batch: memory of
                               ///< libraries, and copies of arguments
  bool loss_mode = true;       ///< forward and backward may be pipelined (else: all forwards, then all backwards)
  bool chunked_heads = false;  ///< of the program whose class heads make their logits piece by piece
  /// Whether `tensor_regions` has linear layers of which each shard has some inputs, and which are no part of a pair.
  bool layers_by_inputs = false;
  std::uint64_t hash = 0;  ///< of the captured graph: a plan belongs to one model
};

}  // namespace autopar
