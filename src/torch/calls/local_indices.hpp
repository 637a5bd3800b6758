#pragma once

#include <cstdint>
#include <vector>

#include <autopar/plan/options.hpp>
#include <autopar/runtime/log.hpp>

#include "torch/calls/call_arguments.hpp"
#include "torch/calls/handshake.hpp"
#include "torch/planning/model_program.hpp"

namespace autopar::calls {

/// What arguments of `Options::local_indices` must be.
/// @throws InvalidArgument if one is no int32 or int64, has no samples, or, where it is in the host's memory, has
///         numbers that are no samples of this rank's batch
void require_local_indices(const CallArguments& arguments, const Options& options);

/// Adds `first`, the number of samples of the ranks before, to the arguments of `Options::local_indices`, in copies.
/// Negative numbers, as a loss's `ignore_index` of -100, stay.
void count_in_global_batch(CallArguments& arguments, const Options& options, std::int64_t first);

/// Says once that integers which pick samples look as if they counted within each rank's batch.
class LocalIndexWatch {
 public:
  static constexpr std::int64_t kCalls = 3;  ///< of a signature, that are looked at

  /// A bit for each of the first 64 tensor arguments: its integers may number samples, are not named in
  /// `Options::local_indices`, and all are below this rank's own samples. Reads the arguments: once that has been
  /// warned of, none.
  [[nodiscard]] std::uint64_t look(const CallArguments& arguments, const Options& options) const;

  /// Warns, on rank 0, if on every rank with samples that is not the first such rank the same argument was seen so, and
  /// the program picks samples by it. All ranks get the same headers.
  void warn(const std::vector<CallHeader>& headers, const CallArguments& arguments,
            const planning::ModelProgram& program, const Logger& log);

 private:
  bool has_warned_ = false;
};

}  // namespace autopar::calls
