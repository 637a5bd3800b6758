#pragma once

#include <cstdint>
#include <functional>

#include <autopar/core/cluster.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/schedule/batch_split.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::placement {

/// Checks calls that the plan was not made for: other modes, other arguments, other batches.
class BatchChecks {
 public:
  /// @param describe_cluster  the devices, at the precision of the options; asked on rank 0 alone
  /// @pre what is referred to outlives this
  BatchChecks(ranks::Ranks& ranks, const deployment::Deployment& deployment, std::function<Cluster()> describe_cluster)
      : ranks_(ranks), deployment_(deployment), describe_cluster_(std::move(describe_cluster)) {}

  /// @throws InvalidArgument if a batch norm gets one sample, of which there is no variance
  void require_statistics(const programs::CapturedProgram& program, const BatchLayout& layout) const;
  /// Warns once that batch norms take the statistics of slices.
  void warn_of_batch_statistics(const programs::CapturedProgram& program, std::int64_t batch);
  /// Warns where a call is predicted not to fit. Nothing for batches up to the largest that was checked.
  /// @param recorded  steps of the program are captured as CUDA graphs
  void check_memory(programs::CapturedProgram& program, std::int64_t batch, bool recorded) const;

 private:
  ranks::Ranks& ranks_;
  const deployment::Deployment& deployment_;
  std::function<Cluster()> describe_cluster_;
  bool warned_of_statistics_ = false;
};

}  // namespace autopar::placement
