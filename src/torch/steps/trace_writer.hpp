#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/io/trace_parts.hpp>
#include <autopar/plan/options.hpp>

#include "torch/planning/optional_files.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/steps/trace_clock.hpp"

namespace autopar::steps {

/// Brings the ranks' parts of a trace into one file. Ranks whose folder of parts is rank 0's write theirs there.
/// Others, on hosts with disks of their own, send theirs to rank 0.
///
///   if (!writer.start()) return;   // collective, once
///   writer.write(part);            // collective, at steps that all ranks agree on
///   writer.keep(part);             // now and then, by each rank alone
///   writer.finish(part);           // at the end, by each rank alone
class TraceWriter {
 public:
  /// @pre what is referred to outlives this
  TraceWriter(const Options& options, planning::OptionalFiles& files, ranks::Ranks& ranks);

  /// Keeps what a killed run has left, agrees on where parts go, and compares clocks. Collective.
  /// @return false, on every rank, if there can be no trace; rank 0 has warned
  [[nodiscard]] bool start();
  /// On every rank the same. @param every  Options::trace_every
  /// @return steps between writings; 0 = at the end
  [[nodiscard]] int interval(int every) const { return every == 0 && !all_share() ? kIntervalOfSenders : every; }
  /// Since all ranks have started. Ranks of one host have one clock; others' were compared over a collective, so they
  /// are as far apart as a message takes.
  [[nodiscard]] Seconds seconds(TraceClock::Time time) const;
  /// Collective. A file that cannot be written is a warning.
  void write(const TracePart& part);
  /// Not collective: what there is of this rank if it is killed before the next writing.
  void keep(const TracePart& part);
  /// Not collective: the rank that ends last joins the parts. A rank that sends its parts leaves its last one here.
  void finish(const TracePart& part);

 private:
  static constexpr int kIntervalOfSenders = 100;

  [[nodiscard]] bool all_share() const;
  [[nodiscard]] bool shares() const { return shares_[ranks_.rank().index()]; }
  [[nodiscard]] bool find_folder();
  void compare_clocks();
  void receive_parts(const std::vector<Blob>& sizes);
  void keep_leftovers();
  void warn_of(const std::vector<std::string>& skipped);

  const Options& options_;
  planning::OptionalFiles& files_;
  ranks::Ranks& ranks_;
  Logger log_;
  TraceParts parts_;
  std::vector<bool> shares_;  ///< by rank: its parts lie where rank 0 reads them
  TraceClock::Time origin_{};
};

}  // namespace autopar::steps
