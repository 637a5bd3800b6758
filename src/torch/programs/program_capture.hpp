#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <torch/nn/module.h>

#include <autopar/plan/options.hpp>
#include <autopar/torch/session.hpp>

#include "capture/trace/capture.hpp"
#include "capture/trace/capture_change.hpp"
#include "torch/calls/call_arguments.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/device/kernel_compilation.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/programs/member_watch.hpp"
#include "torch/programs/planned_modes.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::programs {

/// Captures the module's forward and rewrites it: programs that are not divided yet.
///
///   ProgramCapture capture(ranks, module, members, options, parameters, deployment);
///   auto program = capture.capture(arguments, forward);   // the same on all ranks, or an error on all
class ProgramCapture {
 public:
  /// @param members  bytes of the object `module` (see MemberWatch)
  /// @pre what is referred to outlives this
  ProgramCapture(ranks::Ranks& ranks, torch::nn::Module& module, std::span<const std::byte> members,
                 const Options& options, const parameters::ParameterStore& parameters,
                 const deployment::Deployment& deployment);

  /// Starts to compile kernels, where there will be some; called once, when the device is known.
  void compile_kernels_ahead();
  /// Collective. @throws CaptureError, InvalidArgument on all ranks
  [[nodiscard]] std::shared_ptr<CapturedProgram> capture(const calls::CallArguments& arguments,
                                                         const ForwardFunction& forward);
  /// Other modes that the first plan carries, whichever mode is called first. Collective.
  [[nodiscard]] PlannedModes capture_other_modes(const calls::CallArguments& arguments, const ForwardFunction& forward);

  /// What forward does otherwise than the program; nothing if it does the same. Runs forward once on fake tensors.
  [[nodiscard]] std::optional<trace::CaptureChange> change_since(const CapturedProgram& program,
                                                                 const calls::CallArguments& arguments,
                                                                 const ForwardFunction& forward);
  /// @throws CaptureError if forward at this batch is another program
  void verify_at(const CapturedProgram& program, const calls::CallArguments& arguments, const ForwardFunction& forward,
                 std::int64_t batch);
  [[nodiscard]] MemberWatch& members() { return members_; }

 private:
  void capture_into(CapturedProgram& program, const calls::CallArguments& arguments, const ForwardFunction& forward);
  void compile(CapturedProgram& program);
  void require_same_graph(const CapturedProgram& program);
  void require_one_precision() const;
  [[nodiscard]] trace::CaptureOptions capture_options() const;
  [[nodiscard]] bool chunks_logits() const;
  [[nodiscard]] bool fuses() const;
  [[nodiscard]] bool may_have_stages() const;
  [[nodiscard]] std::shared_ptr<CapturedProgram> capture_in_mode(bool training, bool gradients,
                                                                 const calls::CallArguments& arguments,
                                                                 const ForwardFunction& forward);

  ranks::Ranks& ranks_;
  torch::nn::Module& module_;
  const Options& options_;
  const parameters::ParameterStore& parameters_;
  const deployment::Deployment& deployment_;
  MemberWatch members_;
  // On a GPU, while the host does something else.
  std::optional<devices::KernelCompilation> kernels_ahead_;  ///< from when the device is known
  std::optional<devices::KernelCompilation> groups_ahead_;   ///< point-wise groups of the latest program
};

}  // namespace autopar::programs
