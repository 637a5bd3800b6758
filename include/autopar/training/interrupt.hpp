#pragma once

#include <csignal>

#include <autopar/runtime/world.hpp>

namespace autopar::training {

/// While it lives, Ctrl-C (SIGINT), SIGTERM and SIGUSR1 ask the program to end after its step, with a checkpoint. The
/// second one ends it at once.
///
/// Handlers are those of the process: at the end of its last Interrupt the earlier ones are there again. MPICH's
/// mpiexec hands all three signals on to all ranks. Open MPI's kills the ranks a few seconds after SIGINT and SIGTERM,
/// by its manual, and hands SIGUSR1 on: `kill -USR1` it. Slurm: `sbatch --signal=USR1@300`, with srun.
class Interrupt {
 public:
  explicit Interrupt(World& world);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Asks all ranks to end as a signal does, as of early stopping. exit_status() stays as it is. Not collective.
  void ask() { asked_ = true; }

  /// Whether a signal has come to any rank, or any has called `ask`: the same on all, so that they end after the same
  /// step. Collective; one small sum between hosts, which a step's own handshake costs as well.
  [[nodiscard]] bool is_asked();

  /// 128 + the signal's number, as shells have it (130 after Ctrl-C, 143 after SIGTERM), so that a script can tell an
  /// interrupted run, which is to be resumed, from a finished one; 0 where none came.
  [[nodiscard]] int exit_status() const { return signal_ == 0 ? 0 : 128 + signal_; }

 private:
  World& world_;
  bool asked_ = false;
  int signal_ = 0;  ///< that all ranks know of
};

}  // namespace autopar::training
