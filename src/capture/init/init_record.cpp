#include <autopar/capture/init_record.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <autopar/core/error.hpp>

#include "capture/init/element_fill.hpp"
#include "capture/init/parallel_fill.hpp"
#include "capture/init/skip_draws.hpp"
#include "capture/ir/ivalues.hpp"
#include "capture/replay/replay.hpp"
#include "capture/shapes/meta_kernels.hpp"
#include "capture/trace/construction.hpp"
#include "capture/trace/evaluation.hpp"
#include "capture/trace/fake_tensor.hpp"
#include "capture/trace/generator_use.hpp"
#include "capture/trace/trace_scope.hpp"
#include "ops/registry.hpp"

namespace autopar {
namespace trace {
namespace {

at::Generator default_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

bool same_state(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Operators whose draws are a function of sizes alone, so that they can run on zeros to be skipped.
bool draws_depend_on_sizes(const OpNode& node) {
  static constexpr std::string_view kInPlace[] = {"aten::uniform_",    "aten::normal_",      "aten::random_",
                                                  "aten::bernoulli_",  "aten::exponential_", "aten::cauchy_",
                                                  "aten::log_normal_", "aten::geometric_"};
  std::size_t tensors = 0;
  for_each_input(node, [&](ValueId) { ++tensors; });
  if (tensors == 0) return true;
  const auto& name = node.op.schema().name();
  const auto& def = ops::definition_of(node.op);
  const bool of_each_element = def.has(OpTrait::kDrawsOnDevice) && def.kind != OpKind::kFill;
  if (of_each_element || name == "aten::normal") return true;
  const bool like = name.size() > 5 && name.compare(name.size() - 5, 5, "_like") == 0;
  return tensors == 1 && (like || std::find(std::begin(kInPlace), std::end(kInPlace), name) != std::end(kInPlace));
}

void require_default_generator(const OpNode& node) {
  for (const auto& argument : node.args) {
    if (argument.isGenerator() && argument.toGenerator() != default_generator()) {
      throw CaptureError(node.op.schema().name(), node.path,
                         "a recorded construction draws from the default CPU generator only; construct the module "
                         "yourself and pass it instead of the callable");
    }
  }
}

/// Or else nobody could draw what comes after it without its data.
void require_known_draws(const OpGraph& graph, const OpNode& node) {
  if (init::plain_draws(graph, node) || draws_depend_on_sizes(node)) return;
  throw CaptureError(node.op.schema().name(), node.path,
                     "how much it draws depends on data, which a recorded construction has not; construct the module "
                     "yourself and pass it instead of the callable");
}

}  // namespace

std::shared_ptr<trace::Construction> Construction::make(Drawing drawing) {
  auto construction = std::make_shared<trace::Construction>();
  construction->drawing_ = drawing;
  construction->tracer_.emplace(
      Tracer::Options{.description = "a tensor of a module whose construction is only recorded; its data comes with "
                                     "deployment, or construct the module yourself and pass it instead of the callable",
                      .owner = construction,
                      .constructing = true,
                      .make_real = {}});
  return construction;
}

void Construction::record(const std::function<void()>& construct) {
  const std::lock_guard only_one(trace::generator_use());
  auto generator = default_generator();
  initial_state_ = init::state_of(generator);
  last_state_ = initial_state_;
  try {
    {
      const TraceScope scope(*this);
      construct();
    }
    tracer_->take_replaced();
    tracer_->release_raw_memory();
  } catch (const c10::Error& error) {
    throw CaptureError(tracer_->last_op().empty() ? "constructor" : "after " + tracer_->last_op(), tracer_->last_path(),
                       std::string("the recorded construction failed: ") + error.what_without_backtrace());
  }
}

void Construction::require_no_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  bool any_data = false;
  std::string description;
  ir::for_each_tensor(stack, stack.size() - op.schema().arguments().size(), [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (const auto* tag = trace::fake_tag(tensor); tag != nullptr)
      description = tag->description;
    else
      any_data = any_data || tensor.numel() > 0;
  });
  if (!any_data) return;
  throw InvalidArgument(
      op.schema().name() + " on a tensor without data: " + description +
      "; what an optimizer made of it when it was constructed gets its data when the optimizer is attached: " +
      "call model->attach(optimizer)");
}

/// What is done to tensors that have data is done at once, as the constructor's next line may read them.
bool Construction::runs_at_once(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto base = stack->size() - schema.arguments().size();
  bool any_data = false, any_fake = false, writes_data = false;
  for (std::size_t i = base; i < stack->size(); ++i) {
    const auto* alias = schema.arguments()[i - base].alias_info();
    ir::for_each_tensor({(*stack)[i]}, 0, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      {
        const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
        tracer_->take_replaced(tensor);
      }
      const bool has_data = trace::fake_tag(tensor) == nullptr;
      any_data |= has_data;
      any_fake |= !has_data;
      writes_data |= has_data && alias != nullptr && alias->isWrite();
    });
  }
  if (!any_data || (any_fake && !writes_data)) return false;
  const bool draws = schema.argumentIndexWithName("generator") || op.hasTag(at::Tag::nondeterministic_seeded);
  if (draws && !writes_data) return false;
  const auto refuse = [&](const std::string& reason) {
    throw CaptureError(schema.name(), tracer_->last_path(),
                       reason +
                           ", which a recorded construction does not have yet; "
                           "construct the module yourself and pass it instead of the callable");
  };
  if (draws) refuse("it writes random numbers into a tensor that has data; they follow those of other tensors");
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  for (std::size_t i = base; i < stack->size(); ++i) {
    auto& argument = (*stack)[i];
    const auto* alias = schema.arguments()[i - base].alias_info();
    ir::for_each_tensor({argument}, 0, [&](const at::Tensor& tensor) {
      if (tensor.defined() && trace::fake_tag(tensor) == nullptr && alias != nullptr && alias->isWrite()) {
        tracer_->keep_before_write(tensor);
      }
    });
    if (!any_fake || !argument.isTensor() || trace::fake_tag(argument.toTensor()) == nullptr) continue;
    const auto data = tracer_->constant_data(argument.toTensor());
    if (!data) refuse("it writes into a tensor that has data what is made of others");
    argument = *data;
  }
  op.callBoxed(stack);
  return true;
}

void Construction::handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (materialised_) require_no_data(op, *stack);
  const std::lock_guard only_one(trace::generator_use());
  if (runs_at_once(op, stack)) return;
  const auto before = tracer_->graph().ops.size();
  at::Tensor state;
  if (op.schema().argumentIndexWithName("generator") || op.hasTag(at::Tag::nondeterministic_seeded)) {
    auto generator = default_generator();
    const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
    state = init::state_of(generator);
  }
  tracer_->handle(op, stack);
  if (state.defined()) note_draws(before, state);
}

void Construction::note_draws(std::size_t first_new_op, const at::Tensor& state) {
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  auto generator = default_generator();
  const auto& ops = tracer_->graph().ops;
  for (std::size_t i = first_new_op; i < ops.size(); ++i) {
    if (!ops[i].is_random) continue;
    require_default_generator(ops[i]);
    require_known_draws(tracer_->graph(), ops[i]);
    const bool reseeded = !same_state(state, last_state_);
    if (drawing_ == Drawing::kAtMaterialisation) {
      draws_[OpId::of(i)] = {reseeded ? state : at::Tensor(), reseeded};
      last_state_ = state;
      continue;
    }
    draws_[OpId::of(i)] = {state, reseeded};
    advance(generator, ops[i]);
    last_state_ = init::state_of(generator);
  }
}

/// Leaves the default generator as the operator would.
void Construction::advance(at::Generator& generator, const OpNode& node) {
  const auto& graph = tracer_->graph();
  if (const auto draws = init::plain_draws(graph, node)) return init::skip_draws(generator, *draws);
  const at::AutoGradMode no_grad(false);
  replay::Environment scratch(graph.values.size());
  for_each_input(node, [&](ValueId value) {
    const auto& info = graph.value(value);
    std::vector<std::int64_t> sizes, strides;
    for (auto size : info.sizes) sizes.push_back(size.fixed);
    for (auto stride : info.strides) strides.push_back(stride.fixed);
    scratch[value.index()] = at::empty_strided(sizes, strides, at::dtype(info.dtype)).zero_();
  });
  const auto id = OpId::of(static_cast<std::size_t>(&node - graph.ops.data()));
  replay::Replayer(graph, {id}, {}, at::kCPU).run(scratch, {});
}

/// The operators that wrote, directly or not, the memory of the tensors.
std::vector<bool> Construction::needed_for(const std::vector<at::Tensor>& tensors) {
  std::vector<ValueId> values;
  for (const auto& tensor : tensors) values.push_back(tracer_->value_of(tensor));
  return trace::ops_behind(tracer_->graph(), values);
}

std::vector<at::Tensor> Construction::run(const std::vector<bool>& needed, const std::vector<at::Tensor>& wanted) {
  const at::AutoGradMode no_grad(false);
  auto& graph = tracer_->graph();
  std::vector<ValueId> values;
  for (const auto& tensor : wanted) values.push_back(tracer_->value_of(tensor));
  std::vector<const Expected*> given;
  auto kept = values;
  for (const auto& expected : expected_) {
    if (!expected.data.defined() || !is_read(expected, needed)) continue;
    given.push_back(&expected);
    kept.push_back(expected.value);
  }
  std::vector<OpId> ops;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i]) ops.push_back(OpId::of(i));
  }
  auto generator = default_generator();
  const auto outer_state = init::state_of(generator);
  replay::Replayer replayer(graph, ops, kept, at::kCPU);
  for (const auto op : ops) {
    const auto draw = draws_.find(op);
    if (draw == draws_.end()) continue;
    replayer.handle(op, [&generator, state = draw->second.state](replay::ReplayCall& call) {
      init::set_state(generator, state);
      call.call_original();
    });
  }
  auto environment = replayer.environment();
  std::size_t done = 0;
  for (const auto* expected : given) {
    const auto place = std::lower_bound(ops.begin(), ops.end(), OpId::of(expected->before)) - ops.begin();
    replayer.run(environment, {}, done, static_cast<std::size_t>(place));
    environment[expected->value.index()].detach().copy_(expected->data);
    done = static_cast<std::size_t>(place);
  }
  replayer.run(environment, {}, done, ops.size());
  init::set_state(generator, outer_state);
  std::vector<at::Tensor> results;
  for (const auto value : values) {
    const auto& info = graph.value(value);
    results.push_back(info.kind == ValueKind::kConstant ? info.constant : environment[value.index()]);
  }
  return results;
}

void Construction::materialise(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  materialised_ = true;
  std::vector<at::Tensor> fakes;
  for (const auto& tensor : tensors) {
    if (!trace::is_fake(tensor)) continue;
    if (!knows(tensor)) {
      throw InvalidArgument("materialise: the recorded construction did not make this tensor: " +
                            trace::fake_tag(tensor)->description);
    }
    fakes.push_back(tensor);
  }
  if (fakes.empty()) return;
  const auto needed = needed_for(fakes);
  if (!states_known(needed)) (void)rebase(initial_state_);
  auto data = filled(fakes);
  std::vector<at::Tensor> others;
  for (std::size_t i = 0; i < fakes.size(); ++i) {
    if (!data[i].defined()) others.push_back(fakes[i]);
  }
  auto made = others.empty() ? others : run(needed_for(others), others);
  for (std::size_t i = 0, next = 0; i < fakes.size(); ++i) {
    if (!data[i].defined()) data[i] = made[next++];
    if (!trace::is_fake(fakes[i])) continue;  // the same tensor twice
    const bool requires_grad = fakes[i].requires_grad();
    fakes[i].set_data(data[i].detach());
    fakes[i].set_requires_grad(requires_grad);
  }
}

// Tensors that share memory are made by operators that share it, too.
std::vector<at::Tensor> Construction::filled(const std::vector<at::Tensor>& fakes) {
  const auto& graph = tracer_->graph();
  std::map<StorageId, int> sharing;
  for (const auto& fake : fakes) ++sharing[graph.value(tracer_->value_of(fake)).storage];
  std::vector<init::ElementFill> fills;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < fakes.size(); ++i) {
    if (sharing.at(graph.value(tracer_->value_of(fakes[i])).storage) > 1) continue;
    const auto needed = needed_for({fakes[i]});
    auto fill = init::ElementFill::of(graph, needed, tracer_->value_of(fakes[i]));
    if (!fill || read_given_data(needed)) continue;
    fills.push_back(std::move(*fill));
    places.push_back(i);
  }
  std::vector<at::Tensor> data(fakes.size());
  const auto made = init::fill_whole(fills, [&](OpId op) { return draws_.at(op).state; });
  for (std::size_t i = 0; i < places.size(); ++i) data[places[i]] = made[i].view(fakes[places[i]].sizes());
  return data;
}

bool Construction::read_given_data(const std::vector<bool>& needed) {
  return std::ranges::any_of(
      expected_, [&](const Expected& expected) { return expected.data.defined() && is_read(expected, needed); });
}

std::optional<at::Tensor> Construction::part(const at::Tensor& fake, std::int64_t blocks, Interval of_each) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  materialised_ = true;
  if (!knows(fake)) {
    throw InvalidArgument("part: the recorded construction did not make this tensor: " +
                          trace::fake_tag(fake)->description);
  }
  const auto needed = needed_for({fake});
  const auto fill = init::ElementFill::of(tracer_->graph(), needed, tracer_->value_of(fake));
  if (!fill || read_given_data(needed)) return std::nullopt;
  if (!states_known(needed)) (void)rebase(initial_state_);
  return fill->part(blocks, of_each, [&](OpId op) { return draws_.at(op).state; });
}

at::Tensor Construction::rebase(const at::Tensor& state) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  auto generator = default_generator();
  const auto outer_state = init::state_of(generator);
  initial_state_ = state.clone();
  init::set_state(generator, state);
  const auto& ops = tracer_->graph().ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto draw = draws_.find(OpId::of(i));
    if (draw == draws_.end()) continue;
    if (draw->second.reseeded)
      init::set_state(generator, draw->second.state);
    else
      draw->second.state = init::state_of(generator);
    advance(generator, ops[i]);
  }
  const auto final_state = init::state_of(generator);
  init::set_state(generator, outer_state);
  last_state_ = drawing_ == Drawing::kAtOnce ? final_state : outer_state;
  return final_state;
}

/// Of the draws among the operators.
bool Construction::states_known(const std::vector<bool>& needed) const {
  return std::all_of(draws_.begin(), draws_.end(),
                     [&](const auto& draw) { return draw.second.state.defined() || !needed[draw.first.index()]; });
}

std::size_t Construction::expect_data(const at::Tensor& fake) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  const auto value = tracer_->value_of(fake);
  expected_.push_back({value, tracer_->graph().ops.size(), {}});
  return expected_.size() - 1;
}

bool Construction::changed_since(std::size_t number, const at::Tensor& fake) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  const auto& expected = expected_.at(number);
  const auto value = tracer_->value_of(fake);
  const auto& graph = tracer_->graph();
  const auto memory = graph.value(expected.value).storage;
  if (graph.value(value).storage != memory) return true;  // set_data
  const auto writes = [&](const OpNode& node) {
    return std::find(node.writes.begin(), node.writes.end(), memory) != node.writes.end();
  };
  return std::any_of(graph.ops.begin() + static_cast<std::ptrdiff_t>(expected.before), graph.ops.end(), writes);
}

std::vector<std::size_t> Construction::expected_behind(const std::vector<at::Tensor>& fakes) {
  const std::lock_guard only_one(trace::generator_use());
  const c10::impl::ExcludeDispatchKeyGuard below(trace::kTraceKey);
  const auto needed = needed_for(fakes);
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (is_read(expected_[i], needed)) numbers.push_back(i);
  }
  return numbers;
}

/// Whether the operators read or write the memory that it fills.
bool Construction::is_read(const Expected& expected, const std::vector<bool>& needed) {
  const auto maker = tracer_->graph().value(expected.value).definer;
  return maker.valid() && needed[maker.index()];
}

void Construction::forget_states() {
  for (auto& [op, draw] : draws_) {
    if (!draw.reseeded) draw.state.reset();
  }
}

bool materialise_constant(const at::Tensor& fake) {
  const auto* tag = trace::fake_tag(fake);
  if (tag == nullptr) return false;
  const auto owner = std::dynamic_pointer_cast<trace::Construction>(tag->owner.lock());
  if (!owner || !owner->knows(fake)) return false;
  owner->materialise({fake});
  return true;
}

}  // namespace trace

InitRecord::InitRecord(std::shared_ptr<trace::Construction> construction) : construction_(std::move(construction)) {}

InitRecord InitRecord::record(const std::function<void()>& construct, Drawing drawing) {
  shapes::install_meta_kernels();
  trace::install_tracer();
  auto construction = trace::Construction::make(drawing);
  construction->record(construct);
  return InitRecord(std::move(construction));
}

void InitRecord::materialise(const std::vector<at::Tensor>& tensors) { construction_->materialise(tensors); }
std::optional<at::Tensor> InitRecord::part(const at::Tensor& fake, std::int64_t blocks, std::int64_t begin,
                                           std::int64_t end) {
  return construction_->part(fake, blocks, {begin, end});
}
std::size_t InitRecord::expect_data(const at::Tensor& fake) { return construction_->expect_data(fake); }
bool InitRecord::changed_since(std::size_t expected, const at::Tensor& fake) const {
  return construction_->changed_since(expected, fake);
}
std::vector<std::size_t> InitRecord::expected_behind(const std::vector<at::Tensor>& fakes) const {
  return construction_->expected_behind(fakes);
}
void InitRecord::give(std::size_t expected, const at::Tensor& data) { construction_->give(expected, data); }
const at::Tensor& InitRecord::generator_state() const { return construction_->initial_state(); }
void InitRecord::forget_states() { construction_->forget_states(); }
at::Tensor InitRecord::rebase(const at::Tensor& generator_state) { return construction_->rebase(generator_state); }

}  // namespace autopar
