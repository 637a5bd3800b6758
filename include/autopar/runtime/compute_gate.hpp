#pragma once

#include <cstdint>
#include <functional>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/transport.hpp>

namespace autopar {

/// A collective of a replica's tensor shards, each with one buffer: the operation of the same name of a Transport.
enum class Exchange : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };

/// The interface through which a compute action communicates while it runs: it unshards parameters, reduces gradients
/// and exchanges values between tensor shards. The executor passes it to its engine. A bucket is identified by its
/// reduction group and its number in the group.
///
/// `unshard` is called before a bucket that is gathered for the compute action is used, as often as the engine likes.
/// `reshard` may be called when the bucket is not used for a while. `unshard` is then needed before the next use, and
/// gathers the bucket again if the program says so. Both ignore buckets that are not gathered for the compute action.
///
/// `gradients_ready` is called when nothing more will be added to a bucket's gradients, or never. That is in the
/// stage's last backward; for tied parameters, in the last backward of all their stages. Buckets that are reduced
/// within compute actions are ready in every backward that computes weight gradients. Earlier calls are ignored.
///
/// `exchange` is called in a forward or input backward of a stage with tensor shards. All shards of the replica call it
/// in the same order. All ranks of the stage call `gradients_ready` at the same positions in this order. The engine
/// owns the buffer, which has the result afterwards. `meanwhile` is called while the exchange is in flight, for work
/// that does not need its result, and must not call the gate. If it throws, the exchange stays in flight until the run
/// ends.
///
/// All are called during a compute action, on the thread that runs it. They may call the engine back, for buffers and
/// to report completion.
/// @throws TransportError, and what the engine throws
class ComputeGate {
 public:
  virtual void unshard(int group, int bucket) = 0;  ///< unsharded on return; starts the next gather
  virtual void reshard(int group, int bucket) = 0;
  virtual void gradients_ready(int group, int bucket) = 0;
  virtual void exchange(Exchange kind, const Buffer& buffer, DType dtype,
                        const std::function<void()>& meanwhile = {}) = 0;

 protected:
  ~ComputeGate() = default;
};

}  // namespace autopar
