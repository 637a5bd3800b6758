#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/device.hpp>

#include "torch/collectives/session_collectives.hpp"
#include "torch/device/device_context.hpp"
#include "torch/device/host_memory.hpp"
#include "torch/device/tf32_scope.hpp"
#include "torch/planning/device_costs.hpp"
#include "torch/planning/fp8_choice.hpp"
#include "torch/planning/plan_builder.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/ranks/error_message.hpp"

namespace autopar::session {

Impl::Impl(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
           std::shared_ptr<InitRecord> init, std::span<const std::byte> members)
    : parts_(world, std::move(module), std::move(code), std::move(init), members),
      planner_(std::move(planner)),
      log_(world.logger(LogModule::kSession)),
      losses_(world.rank() == 0 ? log_ : Logger()) {}

Impl::~Impl() {
  try {
    if (parts_.report.has_news()) write_measured();
  } catch (const std::exception& error) {
    log_.warn(std::string("the page of report_file lacks what was measured last: ") + error.what());
  }
}

SessionParts& Impl::deployed_parts(const char* member) {
  if (!parts_.deployer.deployed()) {
    throw InvalidArgument(std::string(member) +
                          ": the model is not deployed yet; call the model or prepare(args...) first");
  }
  return parts_;
}

// ---------------------------------------------------------------- before the first call

void Impl::deploy(Plan plan) {
  if (parts_.deployment.has_plan())
    throw InvalidArgument("deploy(plan): the model is deployed already; call it before the first call");
  given_plan_ = std::move(plan);
}

const Plan& Impl::plan() const {
  if (!parts_.deployment.has_plan())
    throw InvalidArgument("plan(): there is no plan yet; call the model or prepare(args...) first");
  return parts_.deployment.plan();
}

c10::Device Impl::device() const {
  return parts_.options.resolved() ? parts_.deployment.device() : c10::Device(c10::kCPU);
}

void Impl::attach(torch::optim::Optimizer& optimizer) {
  parts_.checkpoints.attach(optimizer);
  parts_.watches.attach(optimizer);
  parts_.optimizers.add(optimizer);
  if (auto* described = dynamic_cast<DescribedOptimizer*>(&optimizer); described != nullptr) {
    const std::shared_ptr<parameters::ParameterStore> parameters(shared_from_this(), &parts_.parameters);
    described->set_collectives(std::make_shared<collectives::SessionCollectives>(described->descriptor(), parameters,
                                                                                 parts_.deployment, *parts_.ranks));
  }
  if (parts_.deployer.deployed()) parts_.optimizers.fit(optimizer);
}

void Impl::resolve_once() {
  if (parts_.options.resolved()) return;
  parts_.options.resolve(*parts_.ranks);
  choose_device();
  if (parts_.options.get().precision == Precision::kFp16) parts_.gradients.start_scaling();
}

void Impl::choose_device() {
  const auto& options = parts_.options.get();
  auto& deployment = parts_.deployment;
  ranks::collective_try(*parts_.ranks, "choosing devices",
                        [&] { deployment.use(device_of(parts_.ranks->world(), options.device)); });
  const auto device = deployment.device();
  log_.info("device " + device.str());
  if (options.precision == Precision::kFp8) {
    ranks::collective_try(*parts_.ranks, "looking for 8-bit products", [&] {
      if (devices::context_of(device.type()).has_fp8(device.index())) return;
      throw InvalidArgument("precision = fp8: " + device.str() +
                            " has no 8-bit products, which need compute capability 8.9 and autopar's kernels; set "
                            "precision = bf16-compute");
    });
  }
  devices::context_of(device.type()).keep_kernels_in(parts_.options.cache().kernels);
  parts_.capture.compile_kernels_ahead();
  if (options.keep_memory && device.is_cpu()) devices::keep_freed_memory();
}

// ---------------------------------------------------------------- calls

CallResult Impl::call(const Flattened& flattened, const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  end_preparation(start);
  resolve_once();
  parts_.runner.trace().enter();
  const auto& options = parts_.options.get();
  const devices::Tf32Scope tf32(options.precision == Precision::kTf32, parts_.deployment.device());
  const at::AutoGradMode gradients(at::GradMode::is_enabled() && !options.inference);
  if (options.plan_only) {
    prepare(flattened, forward);
    refuse_to_run();
  }
  const auto call = std::make_shared<steps::Call>();
  const auto agreed = find_program(*call, flattened, forward);
  parts_.checks.require_statistics(*call->program, call->layout);
  parts_.checks.check_memory(*call->program, call->batch, parts_.graphed.may_record(*call->program));
  parts_.verifier.verify_batch(*call->program, call->arguments, forward, call->batch);
  choose_mode(*call);
  return ranks::or_fail(*parts_.ranks, "forward", [&] {
    auto& trace = parts_.runner.trace();
    trace.begin_step(parts_.progress.calls + 1);
    auto result = run(call, agreed);
    count(*call, result.tensors, start);
    trace.leave("call", call->loss_mode || !call->differentiate);
    return result;
  });
}

void Impl::refuse_to_run() {
  const auto& plan_file = parts_.options.get().plan_file;
  parts_.ranks->world().expect_exception();
  const auto message = "plan_only is set, so the model is planned" +
                       (plan_file.empty() ? "" : " (see '" + plan_file + "')") + " and not run; unset it to train";
  if (parts_.ranks->is_first()) log_.warn(message);
  throw PlanOnly(message, parts_.ranks->rank());
}

calls::AgreedCall Impl::find_program(steps::Call& call, const Flattened& flattened, const ForwardFunction& forward) {
  auto& validator = parts_.validator;
  auto& programs = parts_.programs;
  const auto error = validator.inspect(flattened, call.arguments);
  auto key = validator.key_of(call.arguments);
  const auto own_key = key + calls::format_key(call.arguments);
  const auto known = programs.peek(own_key);
  if (at::GradMode::is_enabled()) call.region = results::region_behind(call.arguments.tensors, call.arguments.own());
  calls::KnownProgram about;
  about.is_new = known == nullptr || known->verification.calls < calls::LocalIndexWatch::kCalls;
  about.is_stale = known != nullptr && known->is_stale();
  about.members_changed = parts_.verifier.members_changed(known, call.arguments);
  about.common_ends = call.region ? call.region->common_ends() : 0;
  about.obstacles = [this, &known] {
    const auto& gradients = parts_.gradients;
    const bool sums_wait = gradients.accumulating() || gradients.has_accumulated();
    return parts_.graphed.obstacles(known.get(), sums_wait, gradients.loss_scale());
  };
  auto agreed = validator.agree_on_call(call.arguments, key, about, error, parts_.deployer.deployed());
  call.layout = agreed.layout;
  call.batch = agreed.batch;
  key += calls::format_key(call.arguments);
  bool capture = !programs.knows(key) || agreed.is_stale;
  if (!capture)
    capture = parts_.verifier.is_outdated(*programs.find(key), call.arguments, forward, agreed.members_changed);
  if (capture) capture_and_deploy(call.arguments, key, call.batch, forward);
  call.program = programs.find(key);
  call.layout.microbatches = parts_.deployment.plan().microbatches;
  validator.warn_of_local_indices(agreed, call.arguments, *call.program);
  auto& verification = call.program->verification;
  ++verification.calls;
  if (capture) verification.agreed = verification.calls;
  return agreed;
}

void Impl::choose_mode(steps::Call& call) const {
  const auto& plan = call.program->plan;
  const auto is_differentiable = [](const algebra::OutputPlan& output) {
    return output.differentiable && output.kind != algebra::OutputKind::kInput;
  };
  call.accumulate = parts_.gradients.accumulating();
  call.differentiate = at::GradMode::is_enabled() && std::ranges::any_of(plan.outputs, is_differentiable);
  call.loss_mode = call.differentiate && plan.loss_mode;
  if (call.differentiate) call.loss_scale = parts_.gradients.loss_scale();
  call.draws = {parts_.progress.seed, static_cast<std::uint64_t>(parts_.progress.calls)};
}

CallResult Impl::run(const std::shared_ptr<steps::Call>& call, const calls::AgreedCall& agreed) {
  auto& gradients = parts_.gradients;
  if (call->differentiate) gradients.warn_of_second_gradients();
  parts_.graphed.run(call, agreed.obstacles);
  if (agreed.has_pending && !call->accumulate) gradients.reduce_accumulated();
  auto results = parts_.runner.results(*call);
  if (call->differentiate) parts_.history.attach(shared_from_this(), call, results);
  const auto& returned = call->program->returned;
  CallResult result{std::vector<at::Tensor>(returned.count), returned.prototype};
  for (std::size_t i = 0; i < results.size(); ++i) result.tensors[returned.positions[i]] = results[i];
  return result;
}

void Impl::count(const steps::Call& call, const std::vector<at::Tensor>& results,
                 std::chrono::steady_clock::time_point start) {
  ++parts_.progress.calls;
  if (call.loss_mode) {
    const auto loss = call.program->returned.positions[static_cast<std::size_t>(call.program->plan.loss)];
    losses_.add(results[loss], parts_.progress.calls);
    stats_.losses_not_finite = losses_.not_finite();
  }
  stats_.microbatches = call.layout.microbatches;
  stats_.global_samples = call.batch;
  if (call.differentiate) stats_.trained_samples += call.batch;
  const auto now = std::chrono::steady_clock::now();
  stats_.last_call = Seconds(std::chrono::duration<double>(now - start).count());
  if (call.loss_mode && call.accumulate) preparing_since_ = now;
  using Part = planning::ReportFile::Part;
  if (call.differentiate)
    parts_.report.count_call(start, now,
                             call.accumulate  ? Part::kSome
                             : call.loss_mode ? Part::kWhole
                                              : Part::kForward);
  else
    parts_.report.drop_actions(start);
  if (parts_.report.is_due()) write_measured();
}

void Impl::write_measured() {
  const auto device = parts_.deployment.device();
  const Bytes peak(device.is_cuda() ? at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].peak : 0);
  parts_.report.write_measured(parts_.ranks->rank(), peak, device.is_cuda());
}

void Impl::begin_step() { preparing_since_ = std::chrono::steady_clock::now(); }

void Impl::end_preparation(std::chrono::steady_clock::time_point now) {
  const auto since = std::exchange(preparing_since_, std::nullopt);
  if (!since || devices::has_work(parts_.deployment.device())) return;
  stats_.preparing += Seconds(std::chrono::duration<double>(now - *since).count());
}

void Impl::prepare(const Flattened& flattened, const ForwardFunction& forward) {
  resolve_once();
  const auto& options = parts_.options.get();
  const devices::Tf32Scope tf32(options.precision == Precision::kTf32, parts_.deployment.device());
  const at::AutoGradMode gradients(at::GradMode::is_enabled() && !options.inference);
  calls::CallArguments arguments;
  const auto error = parts_.validator.inspect(flattened, arguments);
  auto key = parts_.validator.key_of(arguments);
  const bool is_stale = parts_.programs.is_stale(key + calls::format_key(arguments));
  const auto agreed = parts_.validator.agree_on_preparation(arguments, key, is_stale, error);
  key += calls::format_key(arguments);
  if (!parts_.programs.knows(key) || agreed.is_stale) capture_and_deploy(arguments, key, agreed.batch, forward);
}

void Impl::recapture() {
  parts_.programs.clear();
  parts_.graphed.drop();
}

// ---------------------------------------------------------------- programs

void Impl::capture_and_deploy(const calls::CallArguments& arguments, const std::string& key, std::int64_t batch,
                              const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  const programs::NormalModeScope normal;
  auto& deployment = parts_.deployment;
  const bool deployed = parts_.deployer.deployed();
  if (!deployed) {
    ranks::collective_try(*parts_.ranks, "looking for parameters of other models",
                          [&] { parts_.parameters.require_undivided(/*has_placeholders=*/parts_.init != nullptr); });
  }
  programs::PlannedModes modes;
  if (!deployment.has_plan()) modes = parts_.capture.capture_other_modes(arguments, forward);
  const auto program = parts_.capture.capture(arguments, forward);
  ++stats_.captures;
  modes.add(program, at::GradMode::is_enabled());
  modes.recorded = parts_.graphed.may_record(*modes.planned);
  cost::GraphProfile profile;
  if (!deployed) {
    ranks::collective_try(*parts_.ranks, "profiling the model", [&] {
      const auto& options = parts_.options.get();
      modes.in_8_bits =
          planning::chosen_fp8_layers(options, deployment.device(), modes.planned->graph, modes.planned->plan).weights;
      profile = modes.programs().profile(planning::planned_device(options, deployment.device()));
    });
  }
  if (!deployment.has_plan()) make_plan(modes, profile, batch);
  if (parts_.options.get().plan_only) return;
  if (!deployed) {
    if (modes.planned == program) program->checked_batch = deployment.plan().batch;
    deploy_state(modes, profile);
  }
  parts_.deployer.prepare(*program);
  parts_.checks.warn_of_batch_statistics(*program, batch);
  parts_.programs.remember(key, program);
  if (deployment.device().is_cpu()) devices::release_freed_memory();  // what planning needed
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  stats_.planning += Seconds(spent.count());
  log_.info("captured " + std::to_string(program->captured.ops.size()) + " operators, ready in " +
            std::to_string(spent.count()) + " s");
}

void Impl::make_plan(programs::PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch) {
  const auto& options = parts_.options.get();
  auto& deployment = parts_.deployment;
  auto& files = parts_.files;
  const auto factor = parts_.optimizers.state_factor(options.zero == 0 ? 1 : parts_.ranks->size());
  const planning::Optimizers stepped_by{factor.has_value(), factor.value_or(0)};
  const auto new_transport = [&deployment] { return deployment.new_transport(); };
  planning::DeviceCosts costs(parts_.ranks->world(), {options, deployment.device(), parts_.options.cache(), files,
                                                      new_transport, parts_.optimizers.are_multi_tensor()});
  const planning::PlanFiles plan_files(options, files, parts_.report);
  planning::PlanBuilder builder(*parts_.ranks, options, deployment.device(), planner_, costs, plan_files);
  auto programs = modes.programs();
  deployment.adopt(builder.build(programs, profile, batch, stepped_by, parts_.runner.trace().path(), given_plan_));
  // A GPU works on after the host is done with an action.
  if (parts_.ranks->is_first() && plan_files.shows_costs() && deployment.device().is_cpu()) {
    parts_.runner.watch_actions([this](const Action& action, auto begin, auto end) {
      parts_.report.add_action(action, parts_.ranks->rank(), begin, end);
    });
  }
}

void Impl::deploy_state(const programs::PlannedModes& modes, const cost::GraphProfile& profile) {
  parts_.deployer.place(modes, profile);
  const bool is_loaded = parts_.checkpoints.bring();
  parts_.progress.seed = parts_.deployer.make_values(*modes.planned);
  if (is_loaded) parts_.checkpoints.take_over();
}

// ---------------------------------------------------------------- between calls

void Impl::sync_gradients() {
  const auto headers = deployed_parts("sync_gradients").validator.agree(calls::CallKind::kSync, "");
  const bool pending =
      std::any_of(headers.begin(), headers.end(), [](const auto& header) { return header.has_pending; });
  ranks::or_fail(*parts_.ranks, "sync_gradients", [&] { parts_.gradients.sync(pending); });
}

LoadReport Impl::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                      const LoadOptions& options) {
  const bool deployed = parts_.deployer.deployed();
  if (!deployed) resolve_once();
  return parts_.checkpoints.load(folder, optimizers, options, deployed, parts_.options.get().plan_only);
}

const SessionStats& Impl::stats() {
  stats_.calls = parts_.progress.calls;
  stats_.replayed = parts_.graphed.replayed();
  stats_.loss_scale = parts_.gradients.loss_scale();
  if (const auto scaler = parts_.gradients.scaler_state()) stats_.skipped_steps = scaler->skipped;
  return stats_;
}

}  // namespace autopar::session
