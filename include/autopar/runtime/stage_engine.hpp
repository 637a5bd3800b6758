#pragma once

#include <concepts>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/compute_gate.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// Computes what the executor orders, on this rank.
///
/// Called on one thread at a time: the executor's, which waits for a compute action to end, or, within a compute
/// action, whichever thread calls the gate. Backwards of CUDA stages run on autograd's device thread, so that `bucket`,
/// `reduced`, `gathering`, `gathered` and `reshard` are called there, too.
///
/// Every action names its stage, of which a rank may have several: that which runs, which a message leaves or reaches
/// (kSource for arguments and their gradients, kSink for results and theirs), or whose bucket is summed (invalid for
/// parameters tied across stages).
///
/// Laws: `forward` of a slice is called once all its messages were given to `accept`; `backward` likewise with
/// gradients; `pack` of a value message comes after the sender's `forward` (source channels: before any), of a gradient
/// message after its `backward`, and all of them before the next forward or backward. `pack` and `receive_buffer` give
/// memory that stays valid until its Buffer::owner is dropped. A message from a rank to itself goes through pack and
/// accept like any other, without a transport. All messages for a compute action are accepted right before it,
/// ascending by channel and peer, whatever came first; partial sums, totals and gradients of values read in several
/// places are added in that order, so results depend on no timing and no schedule, and all readers of a total have the
/// same bits. Messages to kSource and kSink are accepted in the program's order. `set_gate` says whom compute actions
/// ask; null takes it back.
template <class E>
concept StageEngine = requires(E& engine, const Action& action, const Buffer& buffer, ComputeGate* gate) {
  engine.set_gate(gate);
  engine.forward(action);
  engine.backward(action);
  { engine.pack(action) } -> std::same_as<Buffer>;            ///< kSend: the message's bytes
  { engine.receive_buffer(action) } -> std::same_as<Buffer>;  ///< kReceive: where its bytes shall arrive
  engine.accept(action, buffer);                              ///< kReceive: the bytes are there
  { engine.bucket(action) } -> std::same_as<Buffer>;  ///< kReduce(Scatter): the bucket's gradients, summed in place
  { engine.bucket_dtype(action) } -> std::same_as<DType>;
  engine.reduced(action);  ///< kReduce(Scatter): the sum, or this rank's shard of it, is there
};

/// An engine that holds parameters, or what belongs to them, in shards.
///
/// `gathering` gives the memory of a whole bucket with this rank's part in place, `gathered` says that the others'
/// parts are there, too. What is gathered for the call is so before the first compute action that reads it, and stays.
/// What is gathered for a compute action is there from the `unshard` that asked for it on; `reshard` comes once for
/// each gathering, at the compute action's own or after it, whether the bucket was used or not. One that is gathered
/// twice at a time ends with the second. A kReduceScatter for a compute action comes with each of the stage's backwards
/// that give weight gradients: `bucket` takes what was added since the last one.
template <class E>
concept ShardingEngine = StageEngine<E> && requires(E& engine, const Action& action) {
  { engine.gathering(action) } -> std::same_as<Buffer>;  ///< kGather
  engine.gathered(action);
  engine.reshard(action);
};

/// An engine that can also run a backward in two parts: `backward_input` gives the gradients that travel on and may
/// leave gradients of parameters to the `backward_weight` of the same slice, which comes later.
template <class E>
concept SplitBackwardEngine = StageEngine<E> && requires(E& engine, const Action& action) {
  engine.backward_input(action);
  engine.backward_weight(action);
};

}  // namespace autopar
