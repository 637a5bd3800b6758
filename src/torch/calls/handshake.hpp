#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "torch/ranks/ranks.hpp"

#include "torch/calls/call_words.hpp"
#include "torch/calls/optimizer_watch.hpp"
#include "torch/parameters/state_registry.hpp"

namespace autopar::calls {

/// What ranks may do together; they must all do the same.
enum class CallKind : std::uint8_t {
  kForward,
  kBackward,
  kPrepare,
  kDeploy,
  kSync,
  kClip,
  kGather,
  kSave,
  kExport,
  kLoad,
  kWhole,
  kNorm,
  kDot,
  kWait
};
[[nodiscard]] std::string_view name_of(CallKind kind);

/// What a rank tells the others at the start of a collective call. Plain bytes: equal programs, equal layout.
/// Size: one message has all that ranks compare.
struct CallHeader {
  std::uint64_t serial = 0;  ///< of this model's collective calls
  std::int32_t model = 0;    ///< its number among the World's models, from 1
  std::array<char, 40> model_name{};
  CallKind kind = CallKind::kForward;
  bool needs_capture = false;       ///< what it has is stale
  bool members_changed = false;     ///< since the program was last found to be what forward does
  bool accumulates = false;         ///< inside no_sync
  bool has_pending = false;         ///< gradients that were accumulated and not reduced
  std::uint8_t obstacles = 0;       ///< to a replay (graphs/obstacle.hpp)
  std::uint64_t key = 0;            ///< hash of `details`
  std::uint64_t shared = 0;         ///< hash of the contents of shared arguments
  std::int64_t samples = 0;         ///< local batch
  std::uint64_t word = 0;           ///< of the kind's own: which results have gradients, formats of arguments, …
  std::uint64_t local_indices = 0;  ///< see LocalIndexWatch
  std::int64_t loss_backwards = 0;  ///< since the last call
  double loss_factors = 0;          ///< sum of the factors that these came in with
  bool failed = false;              ///< this rank cannot make the call
  bool has_late_failure = false;    ///< see LateFailure
  parameters::StateId absent;       ///< backward: a parameter that is elsewhere and whose gradient is asked for
  double loss_scale = 1;            ///< of this call, or of the next
  parameters::StateId unattached;   ///< a parameter that an optimizer seems to step without `attach`
  std::array<OptimizerWatch::Seen, OptimizerWatch::kCompared> optimizers{};
  std::int64_t outside_gradients = 0;  ///< parameters that have some, to be compared
};

/// Every rank's header, by rank. Collective.
/// @param details  text that must be equal on all ranks
/// @param words  what it says, for people, made where it differs; none: `details` is shown
/// @param error  why this rank cannot make the call, if it cannot: thrown here, and named on the other ranks
/// @throws InvalidArgument, on every rank, naming two ranks and both values where they differ
std::vector<CallHeader> exchange(ranks::Ranks& ranks, const CallHeader& mine, const std::string& details,
                                 const std::exception_ptr& error = nullptr,
                                 const std::function<std::vector<CallWord>()>& words = {});

/// The headers' optimizers must have equal hyper-parameters, and have stepped equally since the last call. Collective.
/// @param describe  an optimizer of this rank's own header that had gradients
/// @throws InvalidArgument, on every rank, naming two ranks and both values where they differ
void require_same_optimizers(ranks::Ranks& ranks, const std::vector<CallHeader>& headers,
                             const std::function<std::string(std::size_t)>& describe);

/// FNV-1a.
[[nodiscard]] std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0xcbf29ce484222325ULL);
[[nodiscard]] std::uint64_t hash_text(std::string_view text);

}  // namespace autopar::calls
