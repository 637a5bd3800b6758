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
/// Laws: `forward` of a share is called once all its messages were given to `accept`; `backward` likewise with
/// gradients; `pack` of a value message comes after the sender's `forward` (source channels: before any), of a gradient
/// message after its `backward`, and all of them before the next forward or backward. `pack` and `landing` give memory
/// that stays valid until its Buffer::owner is dropped.
/// A message from a rank to itself goes through pack and accept like any other, without a transport.
/// Messages of one channel, micro-batch and flow are accepted in the program's order; partial sums and gradients of
/// values read in several places are added in that order, so results are reproducible.
/// What `on_bucket_ready` takes is called with (group, bucket) once nothing will be added to that bucket: during the
/// last `backward`, on whichever thread runs it, or not at all; earlier calls are ignored. An empty function takes it
/// back.
template <class E>
concept StageEngine = requires(E& engine, const Action& action, const Buffer& buffer,
                               std::function<void(int group, int bucket)> ready) {
  engine.forward(action);
  engine.backward(action);
  { engine.pack(action) } -> std::same_as<Buffer>;     ///< kSend: the message's bytes
  { engine.landing(action) } -> std::same_as<Buffer>;  ///< kReceive: where its bytes shall arrive
  engine.accept(action, buffer);                       ///< kReceive: the bytes are there
  engine.on_bucket_ready(std::move(ready));
  { engine.bucket(action) } -> std::same_as<Buffer>;   ///< kReduce: the bucket's gradients, summed in place
  { engine.bucket_dtype(action) } -> std::same_as<DType>;
  engine.reduced(action);                              ///< kReduce: the sum is there
};

}  // namespace autopar
