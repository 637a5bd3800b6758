#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <mpi.h>

#include "communicator_pool.hpp"
#include "host_transport.hpp"
#include "mpi_engine.hpp"

namespace autopar::detail {

/// Host memory between processes.
///
/// Messages of a directed pair are matched in order (the tag is only compared), on one communicator; sums are made of
/// messages on a second one, so that their bits do not depend on the MPI library and nothing in them blocks: every
/// member adds one part of the buffer in the order of ranks and sends the result to the others.
class MpiTransport final : public HostTransport, public std::enable_shared_from_this<MpiTransport> {
 public:
  /// @param communicators  duplicates of the world's; what is under way keeps the transport, and it keeps them.
  MpiTransport(std::shared_ptr<MpiEngine> engine, std::shared_ptr<Health> health,
               std::shared_ptr<const CommunicatorPair> communicators, int tag_limit);

  class MessageTask;
  class SumTask;

 private:
  void post(std::shared_ptr<HostOperation> operation) override;
  void group_made(GroupId group, const std::vector<Rank>& ranks) override;
  [[nodiscard]] MPI_Comm messages() const { return communicators_->messages; }
  [[nodiscard]] MPI_Comm sums() const { return communicators_->sums; }
  bool help() override {
    engine_->help();
    return true;
  }

  const std::shared_ptr<MpiEngine> engine_;
  const std::shared_ptr<const CommunicatorPair> communicators_;
  const int tag_limit_;
  /// The sums of each group that were started, oldest first: one at a time. Touched by tasks alone.
  std::vector<std::deque<SumTask*>> queues_;
};

}  // namespace autopar::detail
