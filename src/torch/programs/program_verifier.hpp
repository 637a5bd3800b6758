#pragma once

#include <memory>

#include <autopar/plan/options.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/torch/session.hpp>

#include "torch/calls/call_arguments.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/programs/program_capture.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::programs {

/// Asks whether a program is still what forward does. Members that forward reads are numbers in a capture; when they
/// change, so must the program.
class ProgramVerifier {
 public:
  /// @pre what is referred to outlives this
  ProgramVerifier(ranks::Ranks& ranks, const Options& options, ProgramCapture& capture)
      : ranks_(ranks), options_(options), capture_(capture) {}

  /// Whether bytes of members have changed since the program was last found to be what forward does. Not collective.
  /// @param program  null: there is none yet
  [[nodiscard]] bool members_changed(const std::shared_ptr<CapturedProgram>& program,
                                     const calls::CallArguments& arguments);
  /// Asks where members have changed, and at calls 2, 4, 8, … of the program. Collective.
  /// @param members_changed  on some rank
  /// @return whether the program must be captured again before this call
  /// @throws CaptureError on all ranks if it is another program and members have not changed: nobody knows since when
  [[nodiscard]] bool is_outdated(CapturedProgram& program, const calls::CallArguments& arguments,
                                 const ForwardFunction& forward, bool members_changed);
  /// Captures at new global batches, a few times, and compares. Collective.
  void verify_batch(CapturedProgram& program, const calls::CallArguments& arguments, const ForwardFunction& forward,
                    std::int64_t batch);

 private:
  void warn_of_change(const trace::CaptureChange& change);

  ranks::Ranks& ranks_;
  const Options& options_;
  ProgramCapture& capture_;
  bool warned_of_change_ = false;
};

}  // namespace autopar::programs
