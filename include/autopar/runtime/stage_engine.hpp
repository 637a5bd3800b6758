#pragma once

#include <concepts>
#include <functional>
#include <utility>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// Computes what the executor orders, on this rank. Called on one thread only.
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
/// same bits. Messages to kSource and kSink are accepted in the program's order. What `on_bucket_ready` takes is called
/// with (group, bucket) once nothing will be added to that bucket: during the last backward of its stage (of all, for
/// tied parameters), on whichever thread runs it, or not at all; earlier calls are ignored. An empty function takes it
/// back.
template <class E>
concept StageEngine = requires(E& engine, const Action& action, const Buffer& buffer,
                               std::function<void(int group, int bucket)> ready) {
  engine.forward(action);
  engine.backward(action);
  { engine.pack(action) } -> std::same_as<Buffer>;            ///< kSend: the message's bytes
  { engine.receive_buffer(action) } -> std::same_as<Buffer>;  ///< kReceive: where its bytes shall arrive
  engine.accept(action, buffer);                              ///< kReceive: the bytes are there
  engine.on_bucket_ready(std::move(ready));
  { engine.bucket(action) } -> std::same_as<Buffer>;  ///< kReduce(Scatter): the bucket's gradients, summed in place
  { engine.bucket_dtype(action) } -> std::same_as<DType>;
  engine.reduced(action);  ///< kReduce(Scatter): the sum, or this rank's share of it, is there
};

/// An engine that holds parameters, or what belongs to them, in shares.
///
/// `gathering` gives the memory of a whole bucket with this rank's part in place, `gathered` says that the others'
/// parts are there, too. What is gathered for the call is so before the first compute action that reads it. Of what is
/// gathered for a compute action, the compute action asks, through what `on_parameters_needed` takes, before it uses a
/// bucket, as often as it likes. It may let go of a bucket early, and must ask again before it uses it once more: then
/// it is gathered another time, if the program says so. `holds` says whether a bucket is whole, gathered and not let go
/// of since. `release` comes after the compute action for each gathering, whether it was used or not; a bucket that is
/// gathered twice at a time ends with the second. A kReduceScatter for a compute action comes with each of the stage's
/// backwards that give weight gradients: `bucket` takes what was added since the last one, and `on_bucket_ready`'s
/// function may be called in every such backward.
template <class E>
concept ShardingEngine = StageEngine<E> &&
    requires(E& engine, const Action& action, std::function<void(int group, int bucket)> needed) {
  { engine.gathering(action) } -> std::same_as<Buffer>;  ///< kGather
  engine.gathered(action);
  engine.release(action);
  { std::as_const(engine).holds(action) } -> std::same_as<bool>;
  engine.on_parameters_needed(std::move(needed));
};

/// An engine that can also run a backward in two parts: `backward_input` gives the gradients that travel on and may
/// leave gradients of parameters to the `backward_weight` of the same slice, which comes later.
template <class E>
concept SplitBackwardEngine = StageEngine<E> && requires(E& engine, const Action& action) {
  engine.backward_input(action);
  engine.backward_weight(action);
};

}  // namespace autopar
