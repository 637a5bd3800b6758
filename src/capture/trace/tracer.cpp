#include "capture/trace/tracer.hpp"

#include <algorithm>
#include <iterator>
#include <regex>
#include <string_view>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/graph_task.h>

#include <autopar/core/error.hpp>

#include "capture/ir/ivalues.hpp"
#include "capture/shapes/meta_attention.hpp"
#include "capture/shapes/window_views.hpp"
#include "capture/trace/autocast_rules.hpp"
#include "capture/trace/exact_batch_norm.hpp"
#include "capture/trace/fake_tensor.hpp"
#include "ops/registry.hpp"

namespace autopar::trace {
namespace {

constexpr const char* kDataDependent =
    "its result depends on the values of a tensor, and no values exist while a model is captured. Keep it a tensor "
    "(torch::where instead of if, multiplication by a mask instead of selection), or compute it outside the model and "
    "pass it in";
constexpr const char* kNoDataYet =
    "its result depends on the values of a tensor, and a recorded construction has none yet; construct the module "
    "yourself and pass it instead of the callable";

bool makes_uninitialised(const std::string& op) {
  return op.rfind("aten::empty", 0) == 0 || op.rfind("aten::new_empty", 0) == 0;
}

}  // namespace

/// One operator call: the user's arguments, their twins, and the node that comes of it.
struct Tracer::Call {
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  torch::jit::Stack* stack;
  std::size_t base;
  OpNode node;
  torch::jit::Stack twins{};
  struct Argument {
    at::Tensor user, meta;
    ValueId value;
    bool written;
  };
  std::vector<Argument> arguments{};
  torch::jit::Stack results{};
};

std::string without_batch_size(const std::string& message, std::int64_t batch) {
  const std::regex number("(^|[^0-9.])" + std::to_string(batch) + "(?![0-9.]*[0-9])");
  return std::regex_replace(message, number, "$1batch");
}

Tracer::Tracer(Options options) : options_(std::move(options)) {
  tag_ = c10::make_intrusive<FakeTag>();
  tag_->description = options_.description;
  tag_->owner = options_.owner;
}

void Tracer::refuse(const std::string& op, const std::string& path, const std::string& reason) const {
  throw CaptureError(op, path, reason);
}

void Tracer::handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  last_op_ = schema.name();
  if (torch::autograd::get_current_graph_task_id() != -1) {
    refuse("backward", last_path_, "backward inside the forward cannot be captured; return the loss instead");
  }
  if (at::autocast::is_autocast_enabled(at::kCUDA)) {
    refuse("autocast", last_path_, "CUDA autocast around or inside a captured model is not supported; leave it off");
  }
  if (at::autocast::is_autocast_enabled(at::kCPU) && resolve_autocast(op, stack)) return;

  if (select_by_constants(op, stack)) return;
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    ir::for_each_tensor(*stack, stack->size() - schema.arguments().size(),
                        [&](const at::Tensor& user) { take_replaced(user); });
    if (answer_by_identity(op, stack) || answer_by_data(op, stack) || refer_to_data(op, stack)) return;
    if (read_borrowed(op, stack)) return;
  }
  if (options_.exact_batch_norm && is_training_batch_norm(op, *stack)) return exact_batch_norm(stack);
  if (take_apart(op, stack) || take_windows(op, stack)) return;
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  Call call{op, schema, stack, stack->size() - schema.arguments().size(), OpNode{op}};
  call.node.grad_enabled = at::GradMode::is_enabled();
  collect_arguments(call);
  call.node.is_random = draws_random(op, call.node.args);
  call.node.path = path_of(call);
  check_writes(call);
  check_factors(call);
  run_on_twins(call);
  collect_results(call);
  record(call);
}

/// Under autocast, the casts are recorded as operators of their own: an autocast kernel, run on the fake tensors, calls
/// `to` and the operator with autocast off; a composite is taken apart, because operators inside it are autocast too.
bool Tracer::resolve_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kAutocast = c10::DispatchKey::AutocastCPU, kComposite = c10::DispatchKey::CompositeImplicitAutograd;
  if (options_.compute_type) {
    lower_leaves(op, *stack);
    const auto given = put_on_cpu(op, *stack);
    if (call_low_kernel(op, stack)) return true;
    for (const auto& [position, argument] : given) (*stack)[position] = argument;
    static_cast<void>(cast_as_defined(op, *options_.compute_type, *stack));
    return false;
  }
  if (options_.autocast_device) {
    const auto given = put_on_cpu(op, *stack);
    if (call_autocast_kernel(op, *options_.autocast_device, stack)) return true;
    for (const auto& [position, argument] : given) (*stack)[position] = argument;
    if (cast_as_defined(op, at::autocast::get_autocast_dtype(*options_.autocast_device), *stack)) return false;
  }
  if (is_free_of_autocast(op)) return false;
  for (const auto key : {kAutocast, kComposite}) {
    if (!op.hasKernelForDispatchKey(key) || (options_.autocast_device && key == kAutocast)) continue;
    op.callBoxedForDispatchKey(key, *stack);
    return true;
  }
  return false;
}

/// Casts parameters, buffers and arguments of float32 among the operands. Views and what is written stay: who writes a
/// view of a buffer writes the buffer.
void Tracer::lower_leaves(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack.size() - arguments.size();
  const auto is_alias = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  if (std::ranges::any_of(arguments, is_alias)) return;
  for (std::size_t i = 0; i < lowered_arguments(op); ++i) {
    auto& argument = stack[base + i];
    if (argument.isTensor()) {
      argument = lowered(argument.toTensor());
    } else if (argument.isTensorList()) {
      auto tensors = argument.toTensorVector();
      for (auto& tensor : tensors) tensor = lowered(tensor);
      argument = c10::List<at::Tensor>(tensors);
    }
  }
}

/// The tensor itself if it is none of float32 that comes from a leaf.
at::Tensor Tracer::lowered(const at::Tensor& user) {
  if (!user.defined() || user.scalar_type() != at::kFloat) return user;
  const auto value = [&] {
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    return find(user);
  }();
  if (!value) return user;
  const auto storage = graph_.value(*value).storage;
  const auto kind = storage.valid() ? storage_kind_[storage.index()] : ValueKind::kComputed;
  if (kind == ValueKind::kComputed || kind == ValueKind::kConstant) return user;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (kind == ValueKind::kBuffer) return user.to(*options_.compute_type);  // which may be written in between
  auto& known = lowered_[{*value, at::GradMode::is_enabled()}];
  if (!known.defined()) known = user.to(*options_.compute_type);
  return known;
}

/// The same value as a CPU fake tensor. Parameters and buffers are on the CPU already; this is for constants.
at::Tensor Tracer::on_cpu(const at::Tensor& user) {
  if (!user.defined() || user.device().is_cpu()) return user;
  auto& known = on_cpu_[user.unsafeGetTensorImpl()];
  if (known.defined()) return known;
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  const auto& twin = twin_of(user);
  const auto meta = twin.meta;
  const auto value = twin.value;
  known = fake_over(fake_storage(meta.storage().nbytes(), options_.description), meta, tag_);
  if (meta.requires_grad()) known.set_requires_grad(true);
  bind(known, meta, value);
  return known;
}

/// Autocast kernels are CPU tensors' and pass others by. @return what was replaced: position and argument as given
std::vector<std::pair<std::size_t, c10::IValue>> Tracer::put_on_cpu(const c10::OperatorHandle& op,
                                                                    torch::jit::Stack& stack) {
  std::vector<std::pair<std::size_t, c10::IValue>> given;
  const auto elsewhere = [](const at::Tensor& tensor) { return tensor.defined() && !tensor.device().is_cpu(); };
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    const auto argument = stack[i];
    if (argument.isTensor() && elsewhere(argument.toTensor())) {
      given.emplace_back(i, argument);
      stack[i] = on_cpu(argument.toTensor());
    } else if (argument.isTensorList()) {
      auto tensors = argument.toTensorVector();
      if (std::none_of(tensors.begin(), tensors.end(), elsewhere)) continue;
      for (auto& tensor : tensors) tensor = on_cpu(tensor);
      given.emplace_back(i, argument);
      stack[i] = c10::List<at::Tensor>(tensors);
    }
  }
  return given;
}

/// What has no definition but is written with other operators is recorded as those, so that the batch
/// algebra sees through it.
bool Tracer::take_apart(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kComposite = c10::DispatchKey::CompositeImplicitAutograd;
  if (options_.constructing || ops::definition_of(op).is_known() || !op.hasKernelForDispatchKey(kComposite)) {
    return false;
  }
  op.callBoxedForDispatchKey(kComposite, *stack);
  return true;
}

/// Places in memory are those of a capture alone: what they are views of is recorded instead.
bool Tracer::take_windows(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (options_.constructing || op.schema().name() != "aten::as_strided") return false;
  const auto base = stack->size() - 4;
  const auto x = (*stack)[base].toTensor();
  const auto& offset = (*stack)[base + 3];
  const auto from = offset.isNone() ? 0 : offset.toInt() - x.storage_offset();
  if (from < 0) return false;
  auto view = shapes::as_views(x, (*stack)[base + 1].toIntVector(), (*stack)[base + 2].toIntVector(), from);
  if (!view) return false;
  stack->resize(base);
  stack->emplace_back(view->is_same(x) ? x.alias() : *view);
  return true;
}

/// torch::nn::MultiheadAttention asks torch::equal(query, key) to choose between equivalent paths.
bool Tracer::answer_by_identity(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.schema().name() != "aten::equal") return false;
  const auto base = stack->size() - 2;
  const bool same = (*stack)[base].toTensor().is_same((*stack)[base + 1].toTensor());
  stack->resize(base);
  stack->emplace_back(same);
  return true;
}

const char* Tracer::data_dependent() const { return options_.constructing ? kNoDataYet : kDataDependent; }

void Tracer::collect_arguments(Call& call) {
  const auto& arguments = call.schema.arguments();
  call.node.args.assign(call.stack->begin() + static_cast<std::ptrdiff_t>(call.base), call.stack->end());
  call.twins = call.node.args;
  const auto hidden = unannotated_writes(call.op, call.node.args);

  const auto take = [&](const at::Tensor& user, bool written) {
    if (!user.defined()) return std::pair<ValueId, at::Tensor>{ValueId::none(), at::Tensor()};
    twin_of(user);
    take_raw_writes(user);
    const auto& twin = twin_of(user);
    const auto storage = graph_.value(twin.value).storage;
    insert_sorted(call.node.reads, storage);
    if (written) insert_sorted(call.node.writes, storage);
    call.arguments.push_back({user, twin.meta, twin.value, written});
    return std::pair{twin.value, twin.meta};
  };

  bool any_tensor = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto& argument = call.node.args[i];
    const auto* alias = arguments[i].alias_info();
    const bool written = (alias != nullptr && alias->isWrite()) ||
                         std::find(hidden.begin(), hidden.end(), static_cast<std::int32_t>(i)) != hidden.end();
    if (argument.isStorage()) {
      refuse(call.schema.name(), last_path_,
             "an operator on a storage cannot be captured; use one on the tensor "
             "itself (view, as_strided, copy_)");
    }
    if (argument.isTensor()) {
      auto [value, meta] = take(argument.toTensor(), written);
      call.node.inputs.push_back({static_cast<std::int32_t>(i), SlotKind::kTensor, {value}});
      call.twins[i] = meta;
      any_tensor |= value.valid();
      argument = c10::IValue();
    } else if (ir::is_tensor_list(argument)) {
      const auto list = argument.toList();
      Slot slot{
          static_cast<std::int32_t>(i), ir::is_optional_list(argument) ? SlotKind::kOptionalList : SlotKind::kList, {}};
      c10::impl::GenericList metas(list.elementType());
      metas.reserve(list.size());
      for (std::size_t k = 0; k < list.size(); ++k) {
        const c10::IValue element = list.get(k);
        auto [value, meta] = take(element.isTensor() ? element.toTensor() : at::Tensor(), written);
        slot.values.push_back(value);
        metas.push_back(element.isNone() ? c10::IValue() : c10::IValue(meta));
        any_tensor |= value.valid();
      }
      call.node.inputs.push_back(std::move(slot));
      call.twins[i] = c10::IValue(metas);
      argument = c10::IValue();
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto& twin = call.twins[i];
    const bool is_device = arguments[i].name() == "device";
    if (twin.isDevice() || (twin.isNone() && !any_tensor && is_device)) twin = c10::Device(at::kMeta);
    if (arguments[i].name() == "pin_memory") twin = c10::IValue();
    if (twin.isGenerator()) twin = c10::IValue();
  }
}

std::string Tracer::path_of(const Call& call) {
  const std::string* nearest = nullptr;
  OpId newest;
  for (const auto& argument : call.arguments) {
    const auto& info = graph_.value(argument.value);
    const auto& path = paths_[argument.value.index()];
    if (path.empty()) continue;
    if (info.kind == ValueKind::kParameter || (info.kind == ValueKind::kBuffer && nearest == nullptr)) {
      nearest = &path;
      break;
    }
    if (nearest == nullptr || path_age_[argument.value.index()] > newest) {
      nearest = &path;
      newest = path_age_[argument.value.index()];
    }
  }
  if (nearest != nullptr) last_path_ = *nearest;
  return last_path_;
}

void Tracer::check_writes(const Call& call) const {
  const auto& schema = call.schema;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    const bool returned = std::any_of(schema.returns().begin(), schema.returns().end(), [&](const auto& result) {
      return result.alias_info() != nullptr && result.alias_info()->isWrite();
    });
    if (!returned) {
      refuse(schema.name(), call.node.path,
             "it writes an argument that it does not return; use the operator that "
             "returns what it writes");
    }
  }
  if (options_.constructing) return;
  for (const auto storage : call.node.writes) {
    switch (storage_kind_[storage.index()]) {
      case ValueKind::kInput:
        refuse(schema.name(), call.node.path, "the forward writes into its own argument; work on a copy (x.clone())");
      case ValueKind::kConstant:
        refuse(schema.name(), call.node.path,
               "the forward writes into a tensor that is neither made by it nor a registered buffer; register it with "
               "register_buffer");
      default:
        break;
    }
  }
}

/// libtorch's shape rules of products let factors of two element types pass, its kernels do not.
void Tracer::check_factors(const Call& call) const {
  if (!ops::definition_of(call.op).has(OpTrait::kSharesElementType)) return;
  const bool has_addend = call.schema.argumentIndexWithName("beta").has_value();
  const std::size_t first = has_addend ? 1 : 0;
  const auto a = call.twins[first].toTensor().scalar_type(), b = call.twins[first + 1].toTensor().scalar_type();
  if (a == b) return;
  refuse(call.schema.name(), call.node.path,
         std::string("it multiplies ") + c10::toString(a) + " by " + c10::toString(b) +
             ", and libtorch multiplies tensors of one element type only; cast one of them with to(), or use matmul, " +
             "whose operands autocast casts on every device");
}

/// A form has no history: results are differentiable if an argument is.
void Tracer::form_as_defined(const OpDef& def, Call& call) {
  const auto is_differentiable = [](const at::Tensor& tensor) {
    return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
  };
  bool any = false;
  ir::for_each_tensor(call.twins, 0, [&](const at::Tensor& given) {
    any = any || (is_differentiable(given) && given.requires_grad());
  });
  def.shapes(call.results);
  if (!any || !at::GradMode::is_enabled()) return;
  ir::for_each_tensor(call.results, 0, [&](const at::Tensor& result) {
    if (is_differentiable(result)) result.set_requires_grad(true);
  });
}

void Tracer::run_on_twins(Call& call) {
  call.results = call.twins;
  try {
    const auto& def = ops::definition_of(call.op);
    auto form = options_.device == c10::DeviceType::CUDA ? shapes::form_on_cuda(call.op, call.twins) : std::nullopt;
    if (form)
      call.results.assign(1, std::move(*form));
    else if (def.shapes)
      form_as_defined(def, call);
    else
      call.op.callBoxed(&call.results);
  } catch (const c10::NotImplementedError&) {
    try_on_zeros(call);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    const bool reads =
        message.find("on meta tensors") != std::string::npos || message.find("on a meta tensor") != std::string::npos;
    if (reads) refuse(call.schema.name(), call.node.path, data_dependent());
    if (is_given_without_elements(call)) return;
    throw ForwardFailed(call.schema.name(), call.node.path, without_batch_size(message, options_.batch));
  }
}

/// Shape rules of libtorch look into tensors without elements where its kernels do not (index_add, index_reduce).
bool Tracer::is_given_without_elements(Call& call) const {
  bool any = false;
  ir::for_each_tensor(call.twins, 0,
                      [&](const at::Tensor& tensor) { any = any || (tensor.defined() && tensor.numel() == 0); });
  if (!any) return false;
  if (!may_be_probed(call.twins)) return take_solved_form(call);
  call.results = call.twins;
  try {
    return probe_on_cpu(call.op, &call.results);
  } catch (const c10::Error&) {
    return false;
  }
}

/// For an operator without a shape rule. What the batch sizes of a capture are too small to show is shown by a run at
/// the batch that is trained, where it is small enough too.
void Tracer::try_on_zeros(Call& call) {
  call.results = call.twins;
  const auto& name = call.schema.name();
  const auto colon = name.find("::");
  const std::string way_out = "Register its shape rule: TORCH_LIBRARY_IMPL(" + name.substr(0, colon) +
                              ", Meta, m) { m.impl(\"" + name.substr(colon + 2) +
                              "\", ...); } with a function that returns at::empty(sizes, options) "
                              "of its arguments";
  if (!may_be_probed(call.twins)) {
    if (take_solved_form(call)) return;
    refuse(name, call.node.path,
           "libtorch has no shape rule for it in C++, and its arguments are too large to try it on "
           "zeros (at most 16 MiB, and a million elements). " +
               way_out);
  }
  try {
    if (!probe_on_cpu(call.op, &call.results)) refuse(name, call.node.path, data_dependent());
  } catch (const c10::Error& failure) {
    refuse(name, call.node.path,
           std::string("libtorch has no shape rule for it in C++, and it failed on zeros: ") +
               failure.what_without_backtrace() + ". " + way_out);
  }
}

/// The results as the captures at small batch sizes tell them; not of operators that give views.
bool Tracer::take_solved_form(Call& call) const {
  if (options_.solved == nullptr || graph_.ops.size() >= options_.solved->ops.size()) return false;
  const auto& node = options_.solved->ops[graph_.ops.size()];
  if (!(node.op == call.op)) return false;
  torch::jit::Stack results;
  for (const auto& slot : node.outputs) {
    if (slot.kind != SlotKind::kTensor || !slot.values.front().valid()) return false;
    const auto value = slot.values.front();
    const auto& info = options_.solved->value(value);
    if (std::binary_search(node.reads.begin(), node.reads.end(), info.storage)) return false;
    std::vector<std::int64_t> sizes, strides;
    for (const auto size : info.sizes) sizes.push_back(size.at(options_.batch));
    for (const auto stride : info.strides) strides.push_back(stride.at(options_.batch));
    auto form = at::empty_strided(sizes, strides, at::dtype(info.dtype).device(at::kMeta));
    results.emplace_back(info.requires_grad ? form.set_requires_grad(true).clone() : form);
  }
  if (results.size() != call.schema.returns().size()) return false;
  call.results = std::move(results);
  return true;
}

// NOLINTNEXTLINE(readability-function-size): `take` needs all that is known of the call.
void Tracer::collect_results(Call& call) {
  const auto& returns = call.schema.returns();
  const auto definer = OpId::of(graph_.ops.size());
  const bool uninitialised = makes_uninitialised(call.schema.name());
  call.stack->resize(call.base);

  const auto take = [&](const at::Tensor& meta, bool written) -> std::pair<ValueId, at::Tensor> {
    if (!meta.defined()) return {ValueId::none(), meta};
    if (meta.layout() != at::kStrided) {
      refuse(call.schema.name(), call.node.path,
             "it makes a tensor of type " + meta.toString() +
                 ", and only dense strided tensors can be captured; compute with dense ones (a mask, index_add into "
                 "zeros)");
    }
    if (!meta.is_meta())
      refuse(call.schema.name(), call.node.path, "its result is not computed from the captured tensors");
    const auto self = std::find_if(call.arguments.begin(), call.arguments.end(), [&](const auto& argument) {
      return argument.written && argument.meta.is_same(meta);
    });
    if (written && self != call.arguments.end()) {
      auto* impl = self->user.unsafeGetTensorImpl();
      if (self->user.sizes() != meta.sizes() || self->user.strides() != meta.strides()) {
        if (fake_tag(self->user) == nullptr) {
          refuse(call.schema.name(), call.node.path,
                 "it changes the sizes of a parameter, buffer or constant in "
                 "place; work on a copy (clone())");
        }
        impl->set_allow_tensor_metadata_change(true);
        impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
      }
      if (self->user.requires_grad() != meta.requires_grad()) self->user.set_requires_grad(meta.requires_grad());
      const auto value = new_value(meta, definer);
      graph_.value(value).previous = self->value;
      bind(self->user, meta, value);
      return {value, self->user};
    }
    const bool is_new_storage = !storage_ids_.contains(storage_of(meta));
    auto fake = wrap(meta, uninitialised);
    const auto value = new_value(meta, definer);
    if (is_new_storage) insert_sorted(call.node.writes, graph_.value(value).storage);
    bind(fake, meta, value);
    return {value, fake};
  };

  for (std::size_t i = 0; i < returns.size(); ++i) {
    auto& result = call.results[call.results.size() - returns.size() + i];
    const bool written = returns[i].alias_info() != nullptr && returns[i].alias_info()->isWrite();
    if (result.isTensor()) {
      auto [value, user] = take(result.toTensor(), written);
      call.node.outputs.push_back({static_cast<std::int32_t>(i), SlotKind::kTensor, {value}});
      call.stack->emplace_back(std::move(user));
    } else if (result.isTensorList()) {
      Slot slot{static_cast<std::int32_t>(i), SlotKind::kList, {}};
      c10::List<at::Tensor> users;
      for (const at::Tensor& meta : result.toTensorVector()) {
        auto [value, user] = take(meta, written);
        slot.values.push_back(value);
        users.push_back(std::move(user));
      }
      call.node.outputs.push_back(std::move(slot));
      call.stack->emplace_back(std::move(users));
    } else {
      call.stack->push_back(std::move(result));
    }
  }
}

void Tracer::record(Call& call) {
  const auto id = OpId::of(graph_.ops.size());
  if (call.node.outputs.empty() && call.node.writes.empty()) return;
  bool has_parameter = false;
  OpId age;
  for (const auto& argument : call.arguments) {
    has_parameter |= graph_.value(argument.value).kind == ValueKind::kParameter;
    age = std::max(age, path_age_[argument.value.index()]);
  }
  for_each_output(call.node, [&](ValueId value) {
    paths_[value.index()] = call.node.path;
    path_age_[value.index()] = has_parameter ? id : age;
  });
  graph_.ops.push_back(std::move(call.node));
}

}  // namespace autopar::trace
