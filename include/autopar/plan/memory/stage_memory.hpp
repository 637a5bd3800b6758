#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// From ZeRO 2 on, what decides how much is unsharded while an operator of a stage works, beside the shards.
///
/// A unit has at most `unit` bytes, or it is one parameter. So the parameters of an operator are in units of at most
/// their bytes, or one unit, and one unit more. A parameter that is alone in its operator is in one unit.
struct Unsharded {
  Bytes unit{};           ///< 0: nothing is unsharded for compute actions
  Bytes owned{};          ///< trainable bytes of the stage that are held in shards
  Bytes computed_with{};  ///< under ZeRO 3, what is gathered in their place
  Bytes of_several{};     ///< the units of parameters that several operators read: they stay from the first to the last
  bool whole_backwards = true;  ///< the input half of a split backward ends with all that it gathered

  /// Bytes of the units that an operator's parameters are in, at most.
  /// @param read  trainable bytes that one operator reads
  [[nodiscard]] Bytes units_of(const LargestTrained& read) const {
    const auto units = [&](Bytes bytes) { return bytes > Bytes(0) ? std::max(bytes, unit) : Bytes(0); };
    return std::max(units(read.of_all), units(read.of_several) + (read.of_several > Bytes(0) ? unit : Bytes(0)));
  }
  /// Gathered parameters: the operator's, and one unit of the operator before or after it.
  /// @param read    trainable bytes that the operator reads
  /// @param beside  the most that one of its neighbours reads, of those that read any
  [[nodiscard]] Bytes gathered(const LargestTrained& read, Bytes beside) const {
    if (computed_with == Bytes(0)) return Bytes(0);
    const Bytes ahead = beside > Bytes(0) ? std::max(beside, unit) : Bytes(0);
    const Bytes most = whole_backwards ? std::min(of_several + units_of(read) + ahead, owned) : owned;
    return detail::in_proportion(most, computed_with, owned);
  }
  friend bool operator==(const Unsharded&, const Unsharded&) = default;
};

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
                       ///< activations and parameter copies are freed. Also: unsharded parameters, gradients that
                       ///< wait for other readers, results that the caller has, what a rank holds beside its stages
  Bytes gathered{};    ///< under ZeRO, unsharded or summed units of gradients, beside the shards; and the copy of a
                       ///< bucket that is sent rounded
  Bytes summed{};      ///< under ZeRO 1, the shard of a sum beside the sum, and a bucket's copy, if all is summed at
                       ///< once, when no activations are left
  Bytes update{};      ///< temporaries of the optimizer's step, when only parameters and their state are left, less
                       ///< parameter copies that were freed; or of fetching new values from the host
  Bytes host{};        ///< in host memory, of what is offloaded; if that is device memory, it is in the terms above
  Bytes first_made{};  ///< no memory of its own: those `gradients` that the stage's first backward makes, if
                       ///< that is split its second half
  Bytes coming{};      ///< no memory of its own: those of them that are there, at most, while they are made, less what
                       ///< was deferred and has gone meanwhile
  Bytes to_come{};     ///< those of them that are not made when compute actions need most
  Unsharded unsharded{};   ///< no memory of its own: what sizes the unsharded parameters in `workspace`
  bool copies_go = false;  ///< no memory: whether backwards free the copies that their call made

  /// While compute actions run.
  [[nodiscard]] Bytes running() const { return boundary + workspace + std::max(saved + gathered, summed) - to_come; }
  /// Of one compute action: stages that share ranks run theirs one after the other.
  [[nodiscard]] Bytes transient() const { return workspace + gathered; }
  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer + std::max(running(), update); }
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

namespace detail {

/// What one parameter makes a rank hold: add(term, bytes, level) for each part that ZeRO shards from a level on. If it
/// is offloaded, the device keeps what stages compute with (a copy, if they read one) and makes the gradients. The host
/// has what the optimizer works with. Otherwise, if all operators read a copy, the copy is gathered and comes on top,
/// see `copy_beside`.
template <class Add>
void for_each_part(const ParameterProfile& parameter, const Constraints& constraints, Offload offload, const Add& add) {
  constexpr int kNever = 4;
  if (!parameter.trainable) return add(&StageMemory::parameters, parameter.bytes + parameter.copy, kNever);
  const bool offloaded = offload == Offload::kOptimizer && parameter.highest_zero > 0;
  const bool to_host = offloaded && constraints.host_memory;
  const bool is_copied = parameter.copy > Bytes(0) && !offloaded;
  add(&StageMemory::parameters, is_copied ? parameter.bytes : parameter.computed_with(), is_copied ? 1 : 3);
  if (offloaded) add(to_host ? &StageMemory::host : &StageMemory::parameters, parameter.bytes, 1);
  for (int copy = 0; copy < constraints.gradient_copies; ++copy) {
    add(&StageMemory::gradients, parameter.bytes, 2);  // unsharded at level 1, because no_sync keeps them so
    if (to_host) add(&StageMemory::host, parameter.bytes, 1);
  }
  const double state = static_cast<double>(parameter.bytes.value()) * constraints.optimizer_state_factor;
  add(to_host ? &StageMemory::host : &StageMemory::optimizer, Bytes(static_cast<std::int64_t>(std::ceil(state))), 1);
}

/// A copy that is held whole beside the parameter, below ZeRO 3.
[[nodiscard]] inline Bytes copy_beside(const ParameterProfile& parameter, Offload offload) {
  const bool offloaded = offload == Offload::kOptimizer && parameter.highest_zero > 0;
  return parameter.trainable && !offloaded ? parameter.copy : Bytes(0);
}

}  // namespace detail

/// The memory of one parameter on a rank that holds it or its shard.
[[nodiscard]] inline StageMemory parameter_memory(const ParameterProfile& parameter, const Constraints& constraints,
                                                  int zero = 0, int replicas = 1, Offload offload = Offload::kNone) {
  StageMemory memory;
  zero = std::min(zero, parameter.highest_zero);
  detail::for_each_part(parameter, constraints, offload, [&](Bytes StageMemory::*term, Bytes bytes, int level) {
    memory.*term += zero >= level ? detail::shard_of(bytes, replicas) : bytes;
  });
  if (zero < 3 || replicas < 2) memory.parameters += detail::copy_beside(parameter, offload);
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
  const Offload offload = constraints.offloads.back();
  const int zero = std::min(constraints.zero_levels.back(), parameter.highest_zero);
  LeastHeld held;
  detail::for_each_part(parameter, constraints, offload, [&](Bytes StageMemory::*term, Bytes bytes, int level) {
    if (term == &StageMemory::host) return;
    if (level == 1 && zero >= 1 && readers > 1)
      held.whole += bytes.value() / constraints.ranks();
    else
      (zero >= level ? held.shared : held.whole) += bytes.value();
  });
  if (zero < 3 && !parameter.copy_by_call) held.whole += detail::copy_beside(parameter, offload).value();
  return held;
}

/// Temporaries of libtorch's optimizers while they step a parameter: as many tensors as its state has, at most two
/// (Adam's denominator).
/// @param largest  bytes of the largest parameter, of which a rank steps one of `shares` shards
[[nodiscard]] inline Bytes update_memory(Bytes largest, double optimizer_state_factor, int shares) {
  const auto tensors = static_cast<std::int64_t>(std::min(2.0, std::ceil(optimizer_state_factor)));
  return detail::shard_of(largest, shares) * tensors;
}

/// Peak bytes of the rank that needs most; stages on one rank add up.
/// @param meshes  by stage; two have the same ranks, in the same order, or none in common
/// @param bytes_of  peak bytes of a stage, by its position in `meshes`
template <class BytesOf>
[[nodiscard]] Bytes peak_of_ranks(const std::vector<Mesh>& meshes, const BytesOf& bytes_of) {
  std::vector<Bytes> of_first;  // rank of each mesh
  for (std::size_t s = 0; s < meshes.size(); ++s) {
    if (meshes[s].empty()) continue;
    const std::size_t first = meshes[s].rank(0).index();
    if (first >= of_first.size()) of_first.resize(first + 1);
    of_first[first] += bytes_of(s);
  }
  return of_first.empty() ? Bytes{} : *std::max_element(of_first.begin(), of_first.end());
}

}  // namespace autopar
