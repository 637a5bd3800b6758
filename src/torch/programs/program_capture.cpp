#include "torch/programs/program_capture.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>
#include <autopar/plan/option_text.hpp>

#include "kernels/all_kernels.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/pointwise/pointwise.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/whole_handles.hpp"
#include "torch/passes/channels_last.hpp"
#include "torch/passes/pass_list.hpp"
#include "torch/passes/pass_manager.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/ranks/error_message.hpp"

namespace autopar::programs {

namespace {

/// Of CUDA devices that this version supports, with the process's setting of what single precision may be rounded to.
passes::MatrixUnits matrix_units(c10::Device device) {
  return {device.is_cuda(), device.is_cuda() && at::globalContext().allowTF32CuDNN(at::Float32Op::CONV)};
}

/// A tensor that forward reads and is no parameter of the module's.
void require_no_part(const at::Tensor& constant) {
  const auto* layout = parameters::layout_of(constant);
  if (layout == nullptr || !layout->is_part()) return;
  throw InvalidArgument("forward reads '" + layout->name + "' of another AutoParallel model, which " +
                        layout->description +
                        ", so each rank would compute with other values: give forward model->gather(p) of that model "
                        "as an argument, or wrap one module that has both");
}

/// Forward as a function of its defined tensor arguments. @param returned  what becomes of each result, if not null
auto flat(const calls::CallArguments& arguments, const ForwardFunction& forward, ReturnedResults* returned) {
  return [&arguments, &forward, returned](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(arguments.flat_count), defined;
    for (std::size_t i = 0; i < tensors.size(); ++i) all[arguments.positions[i]] = tensors[i];
    auto result = forward(all);
    if (returned != nullptr) *returned = {result.prototype, {}, result.tensors.size()};
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      if (!result.tensors[i].defined()) continue;
      if (returned != nullptr) returned->positions.push_back(i);
      defined.push_back(result.tensors[i]);
    }
    return defined;
  };
}

}  // namespace

ProgramCapture::ProgramCapture(ranks::Ranks& ranks, torch::nn::Module& module, std::span<const std::byte> members,
                               const Options& options, const parameters::ParameterStore& parameters,
                               const deployment::Deployment& deployment)
    : ranks_(ranks),
      module_(module),
      options_(options),
      parameters_(parameters),
      deployment_(deployment),
      members_(module, members) {}

void ProgramCapture::compile_kernels_ahead() {
  const auto device = deployment_.device();
  if (device.is_cuda() && options_.fusion != Switch::kOff)
    kernels_ahead_.emplace(devices::context_of(device.type()), device.index(), kernels::all_kernels());
}

// ---------------------------------------------------------------- settings

trace::CaptureOptions ProgramCapture::capture_options() const {
  trace::CaptureOptions capture;
  capture.exact_batch_norm = options_.batch_norm == BatchNorm::kExact;
  const auto device = deployment_.device().type();
  capture.device = device;
  capture.on_constant = require_no_part;
  if (options_.precision == Precision::kBf16) capture.autocast = trace::Autocast{at::kBFloat16, device};
  if (computes_in_bf16(options_.precision))
    capture.autocast = trace::Autocast{at::kBFloat16, device, /*everywhere=*/true};
  if (options_.precision == Precision::kFp16) capture.autocast = trace::Autocast{at::kHalf, device};
  return capture;
}

// Autocast lowers single precision only, and one of several settings of element types would be silently without effect.
void ProgramCapture::require_one_precision() const {
  if (options_.precision == Precision::kModule || options_.precision == Precision::kTf32) return;
  const auto setting = "precision = " + option_text(options_.precision);
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (!at::autocast::is_autocast_enabled(type)) continue;
    throw InvalidArgument("autocast is on around the call, but " + setting +
                          " is set, which casts in its place; leave autocast off, or set precision = module");
  }
  const auto& tensors = parameters_.tensors();
  const auto is_single = [](const auto& tensor) {
    return tensor.is_parameter && tensor.handle.scalar_type() == at::kFloat;
  };
  if (std::any_of(tensors.begin(), tensors.end(), is_single)) return;
  const auto first =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.is_parameter; });
  if (first == tensors.end()) return;
  throw InvalidArgument(setting +
                        " keeps parameters in float32 and computes in 16 bits, but the module has none of float32: '" +
                        first->name() + "' is " + c10::toString(first->handle.scalar_type()) +
                        "; convert the module with to(torch::kFloat), or set precision = module");
}

bool ProgramCapture::chunks_logits() const {
  return deployment_.has_plan() ? deployment_.plan().chunked_heads : options_.class_head == ClassHead::kChunked;
}

bool ProgramCapture::fuses() const {
  const auto device = deployment_.device();
  if (!device.is_cuda()) return options_.fusion == Switch::kOn;
  return options_.fusion != Switch::kOff && devices::context_of(device.type()).compiles_kernels(device.index());
}

// ---------------------------------------------------------------- capture

std::shared_ptr<CapturedProgram> ProgramCapture::capture(const calls::CallArguments& arguments,
                                                         const ForwardFunction& forward) {
  auto program = std::make_shared<CapturedProgram>();
  ranks::collective_try(ranks_, "capturing the model", [&] { capture_into(*program, arguments, forward); });
  require_same_graph(*program);
  if (ranks_.is_first()) {
    ranks_.logger(LogModule::kCapture)
        .debug("captured forward: " + std::to_string(program->captured.ops.size()) + " operators, " +
               std::to_string(program->graph.ops.size()) + " after all passes");
  }
  return program;
}

void ProgramCapture::capture_into(programs::CapturedProgram& program, const calls::CallArguments& arguments,
                                  const ForwardFunction& forward) {
  const auto flat_forward = flat(arguments, forward, &program.returned);
  require_one_precision();
  program.inputs = arguments.specs;
  {
    const parameters::WholeHandles whole(parameters_.registry());
    const auto before = members_.look({});
    program.captured = trace::capture(module_, arguments.specs, flat_forward, capture_options());
    if (passes::gains_from_channels_last(program.captured, matrix_units(deployment_.device()))) {
      auto faster =
          passes::capture_channels_last(program.captured, module_, arguments.specs, flat_forward, capture_options());
      if (faster) std::tie(program.captured, program.inputs) = std::tie(faster->graph, faster->inputs);
    }
    members_.ignore_changes_for_all(before);
  }
  program.verification.members = members_.look(arguments.beside);
  compile(program);
  program.plan = algebra::analyze_batch(program.graph, planning::algebra_options(options_));
  for (const auto& value : program.graph.values) {
    if (value.kind == ValueKind::kConstant && value.constant.defined()) {
      program.verification.constants.emplace_back(value.constant, value.constant._version());
    }
  }
}

void ProgramCapture::compile(programs::CapturedProgram& program) {
  const auto device = deployment_.device();
  const passes::PassTarget target{device.type(), fuses(), chunks_logits()};
  passes::PassManager manager(passes::pass_list());
  if (!options_.graph_after.empty()) manager.show_after(options_.graph_after);
  const auto log = ranks_.is_first() ? ranks_.logger(LogModule::kPasses) : Logger();
  auto compiled = manager.run(program.captured, target, log);
  program.graph = std::move(compiled.graph);
  program.shown = std::move(compiled.shown);
  if (target.fuses && device.is_cuda())
    groups_ahead_.emplace(devices::context_of(device.type()), device.index(),
                          fused::pointwise::kernels_of(program.graph));
}

void ProgramCapture::require_same_graph(const programs::CapturedProgram& program) {
  const std::vector<std::uint64_t> mine{program.captured.hash(), program.captured.ops.size(), program.graph.hash()};
  const auto all = ranks_.all_gather(std::as_bytes(std::span(mine)), "comparing captured graphs");
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::uint64_t first[2], other[2];
    std::memcpy(first, all[0].data(), sizeof(first));
    std::memcpy(other, all[r].data(), sizeof(other));
    throw InvalidArgument("the ranks captured different programs: rank 0 has " + std::to_string(first[1]) +
                          " operators (hash " + std::to_string(first[0]) + "), rank " + std::to_string(r) + " has " +
                          std::to_string(other[1]) + " (hash " + std::to_string(other[0]) +
                          "); construct the same model on every rank, and let forward not depend on the rank");
  }
}

// ---------------------------------------------------------------- other modes

// A forward may keep what it computes, and in the end that must be of the call's own mode: other modes come first.
PlannedModes ProgramCapture::capture_other_modes(const calls::CallArguments& arguments,
                                                 const ForwardFunction& forward) {
  PlannedModes modes;
  if (options_.inference) return modes;
  const bool training = module_.is_training(), gradients = at::GradMode::is_enabled();
  const auto& tensors = parameters_.tensors();
  const bool trains = std::any_of(tensors.begin(), tensors.end(), [](const parameters::ManagedTensor& tensor) {
    return tensor.is_parameter && tensor.handle.requires_grad();
  });
  if (trains && !(training && gradients)) {
    modes.planned = capture_in_mode(true, true, arguments, forward);
    if (modes.planned == nullptr && !gradients) modes.planned = capture_in_mode(training, true, arguments, forward);
  }
  if (training && may_have_stages()) {
    if (auto evaluation = capture_in_mode(false, false, arguments, forward))
      modes.others.push_back(std::move(evaluation));
  }
  return modes;
}

bool ProgramCapture::may_have_stages() const {
  return ranks_.size() > 1 || options_.stages > 1 || options_.replicas.size() > 1 || options_.plan_only;
}

std::shared_ptr<CapturedProgram> ProgramCapture::capture_in_mode(bool training, bool gradients,
                                                                 const calls::CallArguments& arguments,
                                                                 const ForwardFunction& forward) {
  auto program = std::make_shared<CapturedProgram>();
  std::string outcome;
  ranks::or_fail(ranks_, "capturing the model", [&] {
    try {
      const ModeScope scope(module_, training, gradients);
      capture_into(*program, arguments, forward);
      outcome = std::to_string(program->captured.hash());
    } catch (const Error& error) {  // of this mode, which may never be called
      program.reset();
      outcome = error.what();
    }
  });
  const auto name = std::string(training ? "training" : "evaluation") + (gradients ? " with gradients" : "");
  const auto outcomes =
      ranks_.all_gather(ranks::blob_of((program ? "+" : "-") + outcome), "capturing the model's " + name);
  const auto is_as_here = [&](const Blob& other) { return ranks::text_of(other) == "+" + outcome; };
  if (program != nullptr && std::all_of(outcomes.begin(), outcomes.end(), is_as_here)) return program;
  ranks_.logger(LogModule::kSession)
      .info("the plan does not know the model's " + name +
            ", which cannot be captured with these arguments: " + outcome);
  return nullptr;
}

// ---------------------------------------------------------------- verification

std::optional<trace::CaptureChange> ProgramCapture::change_since(const CapturedProgram& program,
                                                                 const calls::CallArguments& arguments,
                                                                 const ForwardFunction& forward) {
  const NormalModeScope as_captured;
  const parameters::WholeHandles whole(parameters_.registry());
  const auto before = members_.look({});
  auto change = trace::change_since_capture(program.captured, module_, program.inputs,
                                            flat(arguments, forward, nullptr), capture_options());
  members_.ignore_changes_for_all(before);
  return change;
}

void ProgramCapture::verify_at(const CapturedProgram& program, const calls::CallArguments& arguments,
                               const ForwardFunction& forward, std::int64_t batch) {
  const std::int64_t sizes[] = {batch};
  const NormalModeScope as_captured;
  const parameters::WholeHandles whole(parameters_.registry());
  trace::verify_capture(program.captured, module_, program.inputs, flat(arguments, forward, nullptr), sizes,
                        capture_options());
}

}  // namespace autopar::programs
