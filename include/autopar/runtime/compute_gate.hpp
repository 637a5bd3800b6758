#pragma once

#include <cstdint>
#include <functional>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/transport.hpp>

namespace autopar {

/// What the tensor shards of a replica do together with one buffer each, as the operation of that name of a Transport.
enum class Exchange : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };

/// What a compute action asks of the run that it is part of: parameters come in through it, gradients go out, and
/// values of operators that lie on several ranks are exchanged. A bucket is named by its reduction group and its number
/// in it. The executor gives one to its engine.
///
/// Of what is gathered for a compute action, the compute action calls `unshard` before it uses a bucket, as often as it
/// likes. It may `reshard` a bucket that it does not use for now, and must `unshard` it before it uses it once more:
/// then it is gathered another time, if the program says so. Other buckets are ignored.
///
/// It calls `gradients_ready` once it will add nothing more to a bucket's gradients: in the last backward of the stage
/// (of all, for tied parameters), of buckets that are summed within compute actions in every one that gives weight
/// gradients, or not at all. Earlier calls are ignored.
///
/// It calls `exchange` in a forward or an input backward of a stage with tensor shards, where all shards of the replica
/// do so in the same order, and all ranks of the stage call `gradients_ready` at the same places among them. The
/// buffer's memory is the engine's, and has the result afterwards. `meanwhile` is called while the exchange is under
/// way, for what can be computed without its result; it asks the gate for nothing. What it throws leaves the exchange
/// under way until the run has ended.
///
/// All are called during a compute action, on whichever thread runs it, and may call the engine back: for memory to
/// gather into and to sum in, and to say that it has been.
/// @throws TransportError, and what the engine throws
class ComputeGate {
 public:
  virtual void unshard(int group, int bucket) = 0;  ///< it is whole afterwards, and the next one is on its way
  virtual void reshard(int group, int bucket) = 0;
  virtual void gradients_ready(int group, int bucket) = 0;
  virtual void exchange(Exchange kind, const Buffer& buffer, DType dtype,
                        const std::function<void()>& meanwhile = {}) = 0;

 protected:
  ~ComputeGate() = default;
};

}  // namespace autopar
