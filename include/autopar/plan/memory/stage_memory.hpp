#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

/// Peak bytes of the worst rank of a stage, term by term.
struct StageMemory {
  Bytes parameters{};  ///< parameters, copies that are read in their place, buffers, and resident bytes of nodes; a
                       ///< tied parameter counts once on each rank, in the first stage that reads it
  Bytes gradients{};   ///< `gradient_copies` x trainable
  Bytes optimizer{};   ///< `optimizer_state_factor` x trainable
  Bytes saved{};       ///< activations of all micro-batches that are forward and not yet backward, and what deferred
                       ///< weight backwards need
  Bytes boundary{};    ///< values and gradients from and to other stages
  Bytes workspace{};   ///< of a compute action beside these, see MicrobatchMemory; negative if gradients come while
                       ///< activations and parameter copies are freed. Also: parameter gradients that wait for other
                       ///< readers, results that the caller has, what a rank holds beside its stages
  Bytes gathered{};    ///< under ZeRO, unsharded or summed units of gradients, beside the shards
  Bytes brought{};     ///< under ZeRO 3, unsharded parameters beside the shards
  Bytes summed{};      ///< under ZeRO 1, the shard of a sum beside the sum, if all is summed at once, when no
                       ///< activations are left
  Bytes update{};      ///< temporaries of the optimizer's step, when only parameters and their state are left, less
                       ///< parameter copies that were freed; or of fetching new values from the host
  Bytes host{};        ///< in host memory, of what is offloaded; if that is device memory, it is in the terms above
  Bytes in_shards{};   ///< no memory of its own: unsharded size of the parameters that ZeRO 3 shards
  bool copies_go = false;  ///< no memory: whether backwards free the copies that their call made

  /// While compute actions run.
  [[nodiscard]] Bytes running() const { return boundary + workspace + std::max(saved + gathered + brought, summed); }
  /// Of one compute action: stages that share ranks run theirs one after the other.
  [[nodiscard]] Bytes transient() const { return workspace + gathered + brought; }
  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer + std::max(running(), update); }
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

/// The memory of one parameter on a rank that holds it or its shard. If it is offloaded, the device keeps what stages
/// compute with (a copy, if they read one) and makes the gradients. The host has what the optimizer works with.
[[nodiscard]] inline StageMemory parameter_memory(const ParameterProfile& parameter, const Constraints& constraints,
                                                  int zero = 0, int replicas = 1, Offload offload = Offload::kNone) {
  StageMemory memory;
  zero = std::min(zero, parameter.highest_zero);
  if (parameter.highest_zero == 0) offload = Offload::kNone;
  const auto share = [&](Bytes bytes, int level) {
    return zero >= level ? Bytes((bytes.value() + replicas - 1) / replicas) : bytes;
  };
  memory.parameters = parameter.bytes + parameter.copy;
  if (parameter.trainable) {
    // If all operators read a copy, the copy is gathered, and the parameter itself is sharded from level 1 on. If it is
    // offloaded, only the shard of the copy remains on the device.
    const bool is_copied = parameter.copy > Bytes(0);
    if (is_copied && offload == Offload::kNone) {
      memory.parameters = share(parameter.bytes, 1);
      if (zero < 3 || replicas < 2) memory.parameters += parameter.copy;
    } else {
      memory.parameters = share(parameter.computed_with(), 3);
    }
    // Unsharded at level 1, because no_sync keeps them so.
    memory.gradients = share(parameter.bytes, 2) * constraints.gradient_copies;
    memory.optimizer = share(Bytes(static_cast<std::int64_t>(std::ceil(static_cast<double>(parameter.bytes.value()) *
                                                                       constraints.optimizer_state_factor))),
                             1);
    const Bytes stepped = share(parameter.bytes, 1);
    if (offload == Offload::kOptimizer && constraints.host_memory) {
      memory.host = stepped + stepped * constraints.gradient_copies + memory.optimizer;
      memory.optimizer = {};
    } else if (offload == Offload::kOptimizer) {
      memory.parameters += stepped;
    }
  }
  return memory;
}

/// Static memory lower bound of one parameter under all allowed memory optimizations: `whole` bytes, and each replica's
/// share of `shared` bytes. The copy is left out if a backward frees it while larger gradients come.
struct LeastHeld {
  std::int64_t whole = 0, shared = 0;  ///< bytes

  /// Bytes on one of so many replicas.
  [[nodiscard]] std::int64_t at(int replicas) const { return whole + shared / replicas; }
  LeastHeld& operator+=(const LeastHeld& other) {
    whole += other.whole;
    shared += other.shared;
    return *this;
  }
  friend LeastHeld operator-(LeastHeld a, const LeastHeld& b) { return {a.whole - b.whole, a.shared - b.shared}; }
  friend LeastHeld operator+(LeastHeld a, const LeastHeld& b) { return a += b; }
};
/// @param readers  number of nodes that read it; if several stages do, all their ranks may shard it
[[nodiscard]] inline LeastHeld least_held(const ParameterProfile& parameter, const Constraints& constraints,
                                          std::size_t readers) {
  const Offload offload = parameter.highest_zero > 0 ? constraints.offloads.back() : Offload::kNone;
  const StageMemory least = parameter_memory(parameter, constraints, 0, 1, offload);
  const int zero = std::min(constraints.zero_levels.back(), parameter.highest_zero);
  LeastHeld held;
  const auto add = [&](Bytes bytes, int level) { (zero >= level ? held.shared : held.whole) += bytes.value(); };
  const auto add_among_all = [&](Bytes bytes) {
    if (zero >= 1 && readers > 1)
      held.whole += bytes.value() / constraints.ranks();
    else
      add(bytes, 1);
  };
  if (!parameter.trainable) {
    held.whole += parameter.bytes.value() + parameter.copy.value();
    return held;
  }
  if (parameter.copy > Bytes(0) && offload == Offload::kNone) {
    if (zero < 3 && !parameter.copy_by_call) held.whole += parameter.copy.value();
    add_among_all(parameter.bytes);
  } else {
    add(parameter.computed_with(), 3);
    add_among_all(least.parameters -
                  parameter.computed_with());  // the optimizer's own, if it is offloaded within one memory
  }
  add(least.gradients, 2);
  add_among_all(least.optimizer);
  return held;
}

/// Temporaries of libtorch's optimizers while they step a parameter: as many tensors as its state has, at most two
/// (Adam's denominator).
/// @param largest  bytes of the largest parameter, of which a rank steps one of `shares` shards
[[nodiscard]] inline Bytes update_memory(Bytes largest, double optimizer_state_factor, int shares) {
  const auto tensors = static_cast<std::int64_t>(std::min(2.0, std::ceil(optimizer_state_factor)));
  return Bytes((largest.value() + shares - 1) / shares * tensors);
}

}  // namespace autopar
