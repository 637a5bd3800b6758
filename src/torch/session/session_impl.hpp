#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <autopar/torch/session.hpp>

#include "torch/calls/loss_watch.hpp"
#include "torch/cost/profile.hpp"
#include "torch/programs/planned_modes.hpp"
#include "torch/session/session_parts.hpp"
#include "torch/steps/step_call.hpp"

namespace autopar::session {

/// What happens in a call: all ranks agree on it, its program is found or made, its step runs, its results get their
/// history.
class Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
       std::shared_ptr<InitRecord> init, std::span<const std::byte> members);
  /// Completes the page of `report_file`.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // As those of Session.
  CallResult call(const Flattened& flattened, const ForwardFunction& forward);
  void prepare(const Flattened& flattened, const ForwardFunction& forward);
  void deploy(Plan plan);
  void recapture();
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] const SessionStats& stats();
  [[nodiscard]] c10::Device device() const;
  void attach(torch::optim::Optimizer& optimizer);
  void sync_gradients();
  void begin_step();
  LoadReport load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                  const LoadOptions& options);

  [[nodiscard]] SessionParts& parts() { return parts_; }
  /// @throws InvalidArgument, naming the member of AutoParallel, before the model is deployed
  [[nodiscard]] SessionParts& deployed_parts(const char* member);

 private:
  void resolve_once();
  void choose_device();
  [[noreturn]] void refuse_to_run();
  /// Finds the call's program, or makes it. @return what ranks agreed on
  [[nodiscard]] calls::AgreedCall find_program(steps::Call& call, const Flattened& flattened,
                                               const ForwardFunction& forward);
  void capture_and_deploy(const calls::CallArguments& arguments, const std::string& key, std::int64_t batch,
                          const ForwardFunction& forward);
  void deploy_state(const programs::PlannedModes& modes, const cost::GraphProfile& profile);
  void make_plan(programs::PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch);
  void choose_mode(steps::Call& call) const;
  [[nodiscard]] CallResult run(const std::shared_ptr<steps::Call>& call, const calls::AgreedCall& agreed);
  /// The program prepared what a call needs, since `preparing_since_`.
  void end_preparation(std::chrono::steady_clock::time_point now);
  void count(const steps::Call& call, const std::vector<at::Tensor>& results,
             std::chrono::steady_clock::time_point start);
  void write_measured();

  SessionParts parts_;
  PlanFunction planner_;
  std::optional<Plan> given_plan_;
  Logger log_;
  SessionStats stats_;
  std::optional<std::chrono::steady_clock::time_point> preparing_since_;
  calls::LossWatch losses_;  ///< of rank 0: all ranks have the same
};

}  // namespace autopar::session
