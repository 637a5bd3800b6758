#pragma once

#include <concepts>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/compute_gate.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// Computes what the executor orders, on this rank.
///
/// Threads: the engine is called on one thread at a time. That is the executor's thread, which waits for a compute
/// action to end, or, within a compute action, the thread that calls the gate. Backwards of CUDA stages run on
/// autograd's device thread, so `bucket`, `reduced`, `gathering`, `gathered` and `reshard` are called there, too.
///
/// Stages: every action names its stage, since a rank may have several. It is the stage that runs, that sends or
/// receives the message, or whose bucket is reduced. The stage kSource stands for arguments and their gradients. The
/// stage kSink stands for results and their gradients. The stage is invalid for reductions of parameters tied across
/// stages.
///
/// Laws:
/// - `forward` of a slice is called after all its messages were passed to `accept`; so is `backward`, with gradients.
/// - `pack` of a value message is called after the sender's `forward` (for source channels: before any), `pack` of a
///   gradient message after its `backward`. All are called before the next forward or backward.
/// - `pack` and `receive_buffer` return memory that stays valid until its Buffer::owner is dropped.
/// - A message from a rank to itself goes through `pack` and `accept` like any other, without a transport.
/// - All messages for a compute action are accepted right before it, ascending by channel and peer, whichever arrived
///   first. Partial sums, totals and gradients of values with several readers are added in that order. Results thus do
///   not depend on timing or schedule, and all readers of a total have the same bits.
/// - Messages to kSource and kSink are accepted in the program's order.
/// - `set_gate` sets the gate that compute actions use; null removes it.
template <class E>
concept StageEngine = requires(E& engine, const Action& action, const Buffer& buffer, ComputeGate* gate) {
  engine.set_gate(gate);
  engine.forward(action);
  engine.backward(action);
  { engine.pack(action) } -> std::same_as<Buffer>;            ///< kSend: the message's bytes
  { engine.receive_buffer(action) } -> std::same_as<Buffer>;  ///< kReceive: the memory that the message is written to
  engine.accept(action, buffer);                              ///< kReceive: the message has arrived
  { engine.bucket(action) } -> std::same_as<Buffer>;  ///< kAllReduce, kReduceScatter: gradients, reduced in place
  { engine.bucket_dtype(action) } -> std::same_as<DType>;
  engine.reduced(action);  ///< kAllReduce, kReduceScatter: the sum, or this rank's shard of it, is in the bucket
};

/// An engine that holds parameters, or the state that belongs to them, in shards.
///
/// `gathering` returns the memory of an unsharded bucket with this rank's part in place. `gathered` reports that the
/// other parts have arrived. A bucket that is gathered for the call is complete before the first compute action that
/// reads it, and stays unsharded. A bucket that is gathered for a compute action is complete when the `unshard` that
/// asked for it returns.
///
/// `reshard` is called once for each gather, when the compute action asks for it or after it, whether the bucket was
/// used or not. If two gathers of a bucket overlap, its use ends with the second `reshard`. A kReduceScatter for a
/// compute action comes with each of the stage's backwards that compute weight gradients. `bucket` then returns what
/// was added since the last one.
template <class E>
concept ShardingEngine = StageEngine<E> && requires(E& engine, const Action& action) {
  { engine.gathering(action) } -> std::same_as<Buffer>;  ///< kAllGather
  engine.gathered(action);
  engine.reshard(action);
};

/// What an engine that sums parts itself asks of its run: exchanges among the members of the reduction's group, with
/// buffers as `AnyTransport` describes them. Each returns when it is complete; on a device, complete for work that is
/// enqueued afterwards on the thread's current stream.
class PartExchange {
 public:
  PartExchange() = default;
  PartExchange(const PartExchange&) = delete;
  PartExchange& operator=(const PartExchange&) = delete;
  virtual void all_to_all(const Buffer& buffer) = 0;
  virtual void all_gather(const Buffer& buffer) = 0;

 protected:
  ~PartExchange() = default;
};

/// An engine that performs some reductions itself: every member sends each other member its part once, in a smaller
/// element type, and adds what it receives. `sum_parts` stands for `bucket` in such a reduction. On a device it may
/// make another stream current, so that computation goes on beside it; `reduced` makes the computation wait.
template <class E>
concept PartSummingEngine = StageEngine<E> && requires(E& engine, const Action& action, PartExchange& exchange) {
  { engine.sums_parts(action) } -> std::same_as<bool>;  ///< the same on all members
  engine.sum_parts(action, exchange);
};

/// An engine that can also run a backward in two parts. `backward_input` computes the gradients that are sent on. It
/// may leave parameter gradients to the `backward_weight` of the same slice, which is called later.
template <class E>
concept SplitBackwardEngine = StageEngine<E> && requires(E& engine, const Action& action) {
  engine.backward_input(action);
  engine.backward_weight(action);
};

}  // namespace autopar
