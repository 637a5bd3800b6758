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
  Bytes parameters{};  ///< parameters, copies that are read in their place, buffers, and what nodes hold besides; a
                       ///< tied one counts once on each rank, in the first stage that reads it
  Bytes gradients{};   ///< `gradient_copies` x trainable
  Bytes optimizer{};   ///< `optimizer_state_factor` x trainable
  Bytes saved{};       ///< activations of all micro-batches that are forward but not yet backward, and what is deferred
  Bytes boundary{};    ///< values and gradients that come from and go to other stages
  Bytes workspace{};   ///< what a compute action takes beside them, see MicrobatchMemory: less than nothing, where
                       ///< `gradients` come as `saved` goes, and copies of parameters with it. And gradients of
                       ///< parameters that wait for those of their other readers, results that the caller has, and what
                       ///< a rank holds beside its stages
  Bytes gathered{};    ///< under ZeRO, units of gradients that are whole, or summed, beside the shards
  Bytes brought{};     ///< under ZeRO 3, parameters that are whole beside the shards
  Bytes summed{};      ///< under ZeRO 1, the shard of a sum beside the sum, if all is summed at once: no activations
                       ///< are left
  Bytes update{};  ///< temporaries of the optimizer's step, when nothing but parameters and their state is left, less
                   ///< copies of parameters that are gone; or of bringing new values from the host
  Bytes host{};    ///< in the host's memory, of what is offloaded; where that is the device's own, it is in the
                   ///< terms above
  Bytes in_shards{};       ///< no memory: the parameters that ZeRO 3 has in shards, if all were whole
  bool copies_go = false;  ///< no memory: whether backwards let go of copies that their call made

  /// Until all compute actions have run.
  [[nodiscard]] Bytes running() const { return boundary + workspace + std::max(saved + gathered + brought, summed); }
  /// Of one compute action at a time: stages that share their ranks run their compute actions one after the other.
  [[nodiscard]] Bytes transient() const { return workspace + gathered + brought; }
  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer + std::max(running(), update); }
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

/// What one parameter costs a rank that holds it, or its shard of it. Of what is offloaded, what stages compute with
/// stays on the device, in its smaller element type if they read it in one, and gradients are made there; the host has
/// the optimizer's own.
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
    // Where all read a copy, that is what is gathered, and the parameter itself is held in shards from 1 on; if it is
    // offloaded, the shard of the copy is what is left of it.
    const bool is_copied = parameter.copy > Bytes(0);
    if (is_copied && offload == Offload::kNone) {
      memory.parameters = share(parameter.bytes, 1);
      if (zero < 3 || replicas < 2) memory.parameters += parameter.copy;
    } else {
      memory.parameters = share(parameter.computed_with(), 3);
    }
    // Whole at level 1: no_sync keeps them so.
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

/// What one parameter costs a rank at least, whatever the memory optimizations that are allowed: this, and so much of
/// every replica's shard. Without its copy, where a backward lets go of that while gradients come, which are larger.
struct LeastHeld {
  std::int64_t whole = 0, shared = 0;  ///< bytes

  /// On one of so many replicas.
  [[nodiscard]] std::int64_t at(int replicas) const { return whole + shared / replicas; }
  LeastHeld& operator+=(const LeastHeld& other) {
    whole += other.whole;
    shared += other.shared;
    return *this;
  }
  friend LeastHeld operator-(LeastHeld a, const LeastHeld& b) { return {a.whole - b.whole, a.shared - b.shared}; }
  friend LeastHeld operator+(LeastHeld a, const LeastHeld& b) { return a += b; }
};
/// @param readers  nodes that read it: of several, in several stages, all ranks may have shards
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
                  parameter.computed_with());  // the optimizer's own, where it is offloaded in one memory
  }
  add(least.gradients, 2);
  add_among_all(least.optimizer);
  return held;
}

/// What libtorch's optimizers make beside the state of a parameter while they step it: as many tensors as its state
/// has, two at most (Adam's denominator).
/// @param largest  of the parameters, at least; of which the rank steps one of so many shares
[[nodiscard]] inline Bytes update_memory(Bytes largest, double optimizer_state_factor, int shares) {
  const auto tensors = static_cast<std::int64_t>(std::min(2.0, std::ceil(optimizer_state_factor)));
  return Bytes((largest.value() + shares - 1) / shares * tensors);
}

}  // namespace autopar
