#include "torch/capture/tracer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/op_table.hpp>
#include <autopar/torch/phantom.hpp>

#include "torch/capture/autocast_rules.hpp"
#include "torch/capture/norm_by_totals.hpp"

namespace autopar::detail {
namespace {

constexpr std::size_t kRawMemoryLimit = std::size_t{1} << 16;
constexpr char kUnwritten = static_cast<char>(0xA5);

bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto kind = value.toList().elementType()->kind();
  if (kind == c10::TypeKind::TensorType) return true;
  return kind == c10::TypeKind::OptionalType &&
         value.toList().elementType()->castRaw<c10::OptionalType>()->getElementType()->kind() ==
             c10::TypeKind::TensorType;
}

bool is_optional_list(const c10::IValue& list) {
  return list.toList().elementType()->kind() == c10::TypeKind::OptionalType;
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type();
}

void insert_sorted(std::vector<StorageId>& set, StorageId id) {
  if (!id.valid()) return;
  const auto place = std::lower_bound(set.begin(), set.end(), id);
  if (place == set.end() || *place != id) set.insert(place, id);
}

std::vector<SizeExpr> fixed(c10::IntArrayRef sizes) {
  std::vector<SizeExpr> result;
  result.reserve(sizes.size());
  for (auto size : sizes) result.push_back({0, size});
  return result;
}

bool has_hooks(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && (!meta->hooks_.empty() || meta->post_acc_grad_hooks_ != nullptr);
}

constexpr const char* kDataDependent =
    "its result depends on the values of a tensor, and no values exist while a model is captured. Keep it a tensor "
    "(torch::where instead of if, multiplication by a mask instead of selection), or compute it outside the model and "
    "pass it in";

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

Tracer::Tracer(Options options) : options_(std::move(options)) {
  tag_ = c10::make_intrusive<PhantomTag>();
  tag_->description = options_.description;
  tag_->owner = options_.owner;
}

void Tracer::refuse(const std::string& op, const std::string& path, const std::string& reason) const {
  throw CaptureError(op, path, reason);
}

// ---------------------------------------------------------------- leaves

StorageId Tracer::storage_id(const at::Tensor& meta) {
  const auto* storage = storage_of(meta);
  if (storage == nullptr) return StorageId::none();
  const auto [place, is_new] = storage_ids_.try_emplace(storage, StorageId(graph_.storage_count));
  if (is_new) {
    ++graph_.storage_count;
    storage_kind_.push_back(ValueKind::kComputed);
  }
  return place->second;
}

ValueId Tracer::new_value(const at::Tensor& meta, OpId definer) {
  ValueInfo info;
  info.kind = ValueKind::kComputed;
  info.dtype = meta.scalar_type();
  info.sizes = fixed(meta.sizes());
  info.strides = fixed(meta.strides());
  info.requires_grad = meta.requires_grad();
  info.storage = storage_id(meta);
  info.definer = definer;
  graph_.values.push_back(std::move(info));
  metas_.push_back(meta);
  paths_.emplace_back();
  path_age_.push_back(definer);
  return ValueId::of(graph_.values.size() - 1);
}

Tracer::Twin& Tracer::bind(const at::Tensor& user, const at::Tensor& meta, ValueId value) {
  auto* impl = user.unsafeGetTensorImpl();
  auto place = twins_.find(impl);
  if (place == twins_.end()) place = twins_.emplace(impl, Twin{WeakTensor(user.getIntrusivePtr()), {}, {}, nullptr}).first;
  place->second.meta = meta;
  place->second.value = value;
  place->second.storage = storage_of(user);
  if (place->second.storage != nullptr) {
    auto& values = by_storage_[place->second.storage];
    if (values.empty() || values.back() != value) values.push_back(value);
    if (const auto* twin = storage_of(meta); twin != nullptr) {
      meta_storage_of_.insert_or_assign(place->second.storage, meta.storage());
      user_storage_of_.insert_or_assign(twin, user.unsafeGetTensorImpl()->unsafe_storage());
    }
  }
  return place->second;
}

at::Tensor Tracer::meta_leaf(const at::Tensor& user) {
  const auto* storage = storage_of(user);
  if (storage == nullptr || user.layout() != at::kStrided) {
    refuse(last_op_, last_path_, "a tensor of type " + user.toString() +
           " cannot be captured; only dense strided tensors can");
  }
  at::Tensor meta;
  if (const auto known = meta_storage_of_.find(storage); known != meta_storage_of_.end()) {
    meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(known->second),
                                                    c10::DispatchKeySet(c10::DispatchKey::Meta), user.dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(user.sizes(), user.strides(), user.storage_offset());
  } else {
    const at::AutoGradMode no_grad(false);
    const auto elements = static_cast<std::int64_t>(
        user.unsafeGetTensorImpl()->unsafe_storage().nbytes() / std::max<std::size_t>(user.element_size(), 1));
    const auto whole = at::empty({elements}, at::dtype(user.scalar_type()).device(at::kMeta));
    meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole.storage()),
                                                    c10::DispatchKeySet(c10::DispatchKey::Meta), user.dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(user.sizes(), user.strides(), user.storage_offset());
  }
  if (user.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (user.requires_grad()) meta.set_requires_grad(true);
  return meta;
}

ValueId Tracer::add_state(ValueKind kind, const std::string& name, const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  auto& names = kind == ValueKind::kParameter ? graph_.parameters : graph_.buffers;
  if (const auto known = find(tensor)) {
    names.push_back({name, *known});
    return *known;
  }
  if (has_hooks(tensor)) {
    refuse("register_hook", name, "hooks on parameters and buffers would not run on the parts of a pipeline; "
           "change the gradients after backward instead");
  }
  const auto meta = meta_leaf(tensor);
  const auto value = new_value(meta, OpId::none());
  auto& info = graph_.value(value);
  info.kind = kind;
  info.name = name;
  paths_[value.index()] = name;
  storage_kind_[info.storage.index()] = kind;
  bind(tensor, meta, value);
  names.push_back({name, value});
  return value;
}

at::Tensor Tracer::add_input(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad) {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  auto meta = at::empty(sizes, at::dtype(dtype).device(at::kMeta));
  if (requires_grad) meta.set_requires_grad(true);
  auto phantom = wrap(meta, false);
  const auto value = new_value(meta, OpId::none());
  auto& info = graph_.value(value);
  info.kind = ValueKind::kInput;
  info.position = static_cast<std::int32_t>(graph_.inputs.size());
  paths_[value.index()] = "argument " + std::to_string(info.position);
  storage_kind_[info.storage.index()] = ValueKind::kInput;
  bind(phantom, meta, value);
  graph_.inputs.push_back(value);
  return phantom;
}

// ---------------------------------------------------------------- tensors the traced code holds

at::Tensor Tracer::wrap(const at::Tensor& meta, bool may_have_memory) {
  const auto* storage = storage_of(meta);
  auto known = user_storage_of_.find(storage);
  if (known == user_storage_of_.end()) {
    const auto bytes = meta.storage().nbytes();
    c10::Storage made;
    if (may_have_memory && bytes > 0 && bytes <= kRawMemoryLimit) {
      made = c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), false);
      std::memset(made.mutable_data(), kUnwritten, bytes);
      raw_[made.unsafeGetStorageImpl()] = {made, std::vector<char>(bytes, kUnwritten)};
    } else {
      made = phantom_storage(bytes, options_.description);
    }
    meta_storage_of_.insert_or_assign(made.unsafeGetStorageImpl(), meta.storage());
    known = user_storage_of_.insert_or_assign(storage, made).first;
  }
  auto phantom = phantom_over(known->second, meta, tag_);
  if (meta.requires_grad()) phantom.set_requires_grad(true);
  return phantom;
}

void Tracer::check_phantom(const at::Tensor& user, const at::Tensor& meta) const {
  if (const auto& node = user.grad_fn(); phantom_tag(user) != nullptr && node != nullptr) {
    refuse(node->name(), last_path_, "a custom torch::autograd::Function cannot be captured: its C++ backward is not an "
           "operator. Register it as an operator with TORCH_LIBRARY and an Autograd kernel, or write it with operators");
  }
  if (phantom_tag(user) != nullptr) {
    if (has_hooks(user)) {
      refuse("register_hook", last_path_, "a hook on a tensor inside the model would not run when the model is replayed; "
             "use operators (for gradient scaling: x * s + (x * (1 - s)).detach())");
    }
    if (user.grad().defined()) {
      refuse("backward", last_path_, "backward inside the forward cannot be captured; return the loss instead");
    }
  }
  if (user.requires_grad() != meta.requires_grad()) {
    // An operator wrote something differentiable into a view of it.
    if (meta.requires_grad() && !meta.is_leaf() && phantom_tag(user) != nullptr) {
      at::Tensor(user).set_requires_grad(true);
      return;
    }
    if (options_.constructing && meta.is_leaf()) {  // register_parameter
      at::Tensor(meta).set_requires_grad(user.requires_grad());
      return;
    }
    refuse("requires_grad_", last_path_, "requires_grad was changed inside the forward; use detach(), or change it before "
           "the call");
  }
  if (user.sizes() != meta.sizes()) {
    refuse(last_op_, last_path_, "a tensor was reshaped in place through another handle; reshape it out of place");
  }
}

std::optional<ValueId> Tracer::alias_of(const at::Tensor& user) const {
  const auto known = by_storage_.find(storage_of(user));
  if (known == by_storage_.end()) return std::nullopt;
  for (auto candidate = known->second.rbegin(); candidate != known->second.rend(); ++candidate) {
    if (same_layout(user, metas_[candidate->index()])) return *candidate;
  }
  return std::nullopt;
}

std::optional<ValueId> Tracer::find(const at::Tensor& tensor) {
  const auto known = twins_.find(tensor.unsafeGetTensorImpl());
  if (known != twins_.end() && known->second.storage == storage_of(tensor)) return known->second.value;
  return alias_of(tensor);
}

/// A TensorImpl that no operator returned, over a storage that we know: make_variable()'s shallow copy, x.data(), or a
/// parameter after set_data.
Tracer::Twin& Tracer::adopt_alias(const at::Tensor& user, ValueId base) {
  const auto& meta = metas_[base.index()];
  if (meta.requires_grad() == user.requires_grad()) return bind(user, meta, base);
  if (user.requires_grad()) {  // a new leaf over old data: Module::to, torch::tensor(…, requires_grad)
    if (!options_.constructing) {
      refuse("requires_grad_", last_path_, "a tensor made inside the forward was set to require a gradient");
    }
    auto leaf = meta.detach();
    leaf.set_requires_grad(true);
    return bind(user, leaf, base);
  }
  OpNode node{c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", ""), {c10::IValue()},
              {Slot{0, SlotKind::kTensor, {base}}}, {}, {}, at::GradMode::is_enabled(), false, {}, {},
              paths_[base.index()]};
  const auto detached = meta.detach();
  const auto value = new_value(detached, OpId::of(graph_.ops.size()));
  node.outputs.push_back({0, SlotKind::kTensor, {value}});
  insert_sorted(node.reads, graph_.value(base).storage);
  paths_[value.index()] = paths_[base.index()];
  graph_.ops.push_back(std::move(node));
  return bind(user, detached, value);
}

Tracer::Twin& Tracer::adopt_unknown(const at::Tensor& user) {
  if (const auto* tag = phantom_tag(user); tag != nullptr) {
    if (tag == tag_.get() || !options_.make_real || !options_.make_real(user)) {
      refuse(last_op_, last_path_,
             tag->description + "; a tensor kept from an earlier forward, or of a module that is not registered, cannot "
             "be used. Register it as a buffer, or compute it in this forward");
    }
  }
  const auto meta = meta_leaf(user);
  const auto value = new_value(meta, OpId::none());
  auto& info = graph_.value(value);
  info.kind = ValueKind::kConstant;
  info.constant = user;
  const auto& storage = info.storage;
  if (storage_kind_[storage.index()] == ValueKind::kComputed) storage_kind_[storage.index()] = ValueKind::kConstant;
  return bind(user, meta, value);
}

Tracer::Twin& Tracer::twin_of(const at::Tensor& user) {
  const auto known = twins_.find(user.unsafeGetTensorImpl());
  if (known != twins_.end() && known->second.storage == storage_of(user)) {
    check_phantom(user, known->second.meta);
    if (known->second.meta.requires_grad()) graph_.value(known->second.value).requires_grad = true;
    return known->second;
  }
  if (const auto alias = alias_of(user)) return adopt_alias(user, *alias);
  return adopt_unknown(user);
}

/// What was written into a small `empty` without an operator becomes a constant of the program, cloned at each run.
void Tracer::take_raw_writes(const at::Tensor& user) {
  const auto known = raw_.find(storage_of(user));
  if (known == raw_.end()) return;
  auto& raw = known->second;
  const auto* memory = static_cast<const char*>(raw.storage.data());
  if (std::memcmp(memory, raw.seen.data(), raw.seen.size()) == 0) return;
  raw.seen.assign(memory, memory + raw.seen.size());

  const at::AutoGradMode no_grad(false);
  auto constant = at::empty_strided(user.sizes(), user.strides(), at::dtype(user.scalar_type()));
  const auto offset = static_cast<std::size_t>(user.storage_offset()) * user.element_size();
  std::memcpy(constant.mutable_data_ptr(), memory + offset,
              std::min(constant.storage().nbytes(), raw.seen.size() - offset));
  const bool requires_grad = user.requires_grad();
  const auto leaf_meta = at::empty_strided(user.sizes(), user.strides(), at::dtype(user.scalar_type()).device(at::kMeta));
  const auto leaf = new_value(leaf_meta, OpId::none());
  graph_.value(leaf).kind = ValueKind::kConstant;
  graph_.value(leaf).constant = constant;
  auto meta = at::empty_strided(user.sizes(), user.strides(), at::dtype(user.scalar_type()).device(at::kMeta));
  if (requires_grad) meta.set_requires_grad(true);
  OpNode node{c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", ""), {c10::IValue(), c10::IValue()},
              {Slot{0, SlotKind::kTensor, {leaf}}}, {}, {}, false, false, {}, {}, last_path_};
  const auto value = new_value(meta, OpId::of(graph_.ops.size()));
  node.outputs.push_back({0, SlotKind::kTensor, {value}});
  insert_sorted(node.reads, graph_.value(leaf).storage);
  insert_sorted(node.writes, graph_.value(value).storage);
  graph_.ops.push_back(std::move(node));
  bind(user, meta, value);
}

ValueId Tracer::value_of(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  twin_of(tensor);
  take_raw_writes(tensor);
  return twin_of(tensor).value;
}

// ---------------------------------------------------------------- one operator

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

  {
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    if (answer_by_identity(op, stack) || answer_by_data(op, stack)) return;
  }
  if (options_.batch_norm_by_totals && is_training_batch_norm(op, *stack)) return norm_by_totals(stack);
  if (take_apart(op, stack)) return;
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  Call call{op, schema, stack, stack->size() - schema.arguments().size(), OpNode{op}};
  call.node.grad_enabled = at::GradMode::is_enabled();
  collect_arguments(call);
  call.node.is_random = draws_random(op, call.node.args);
  call.node.path = path_of(call);
  check_writes(call);
  run_on_twins(call);
  collect_results(call);
  record(call);
}

/// Under autocast, the casts are recorded as operators of their own: an autocast kernel, run on the phantoms, calls
/// `to` and the operator with autocast off; a composite is taken apart, because operators inside it are autocast too.
bool Tracer::resolve_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kAutocast = c10::DispatchKey::AutocastCPU, kComposite = c10::DispatchKey::CompositeImplicitAutograd;
  if (options_.autocast_device) {
    const auto given = put_on_cpu(op, *stack);
    if (call_autocast_kernel(op, *options_.autocast_device, stack)) return true;
    for (const auto& [position, argument] : given) (*stack)[position] = argument;
  }
  if (is_free_of_autocast(op)) return false;
  for (const auto key : {kAutocast, kComposite}) {
    if (!op.hasKernelForDispatchKey(key) || (options_.autocast_device && key == kAutocast)) continue;
    op.callBoxedForDispatchKey(key, *stack);
    return true;
  }
  return false;
}

/// The same value as a CPU phantom. Parameters and buffers are on the CPU already; this is for constants.
at::Tensor Tracer::on_cpu(const at::Tensor& user) {
  if (!user.defined() || user.device().is_cpu()) return user;
  auto& known = on_cpu_[user.unsafeGetTensorImpl()];
  if (known.defined()) return known;
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  const auto& twin = twin_of(user);
  const auto meta = twin.meta;
  const auto value = twin.value;
  known = phantom_over(phantom_storage(meta.storage().nbytes(), options_.description), meta, tag_);
  if (meta.requires_grad()) known.set_requires_grad(true);
  bind(known, meta, value);
  return known;
}

/// Autocast kernels are CPU tensors' and pass others by. @return what was replaced: position and argument as given
std::vector<std::pair<std::size_t, c10::IValue>> Tracer::put_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
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

/// What the operator table does not know but is written with other operators is recorded as those, so that the batch
/// algebra sees through it.
bool Tracer::take_apart(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kComposite = c10::DispatchKey::CompositeImplicitAutograd;
  if (options_.constructing || traits_of(op).family != OpFamily::kUnknown || !op.hasKernelForDispatchKey(kComposite)) {
    return false;
  }
  op.callBoxedForDispatchKey(kComposite, *stack);
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

/// Reading a number out of a tensor: allowed where it is a constant of the model.
bool Tracer::answer_by_data(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto base = stack->size() - schema.arguments().size();
  if (!reads_data(op, *stack)) return false;
  bool all_constant = true;
  for (std::size_t i = base; i < stack->size(); ++i) {
    const auto& argument = (*stack)[i];
    if (is_tensor_list(argument)) all_constant = false;
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const auto& tensor = argument.toTensor();
    const auto known = find(tensor);
    if (known && graph_.value(*known).is_leaf() && !graph_.value(*known).name.empty()) last_path_ = graph_.value(*known).name;
    else if (known && !paths_[known->index()].empty()) last_path_ = paths_[known->index()];
    all_constant &= phantom_tag(tensor) == nullptr && (!known || graph_.value(*known).kind == ValueKind::kConstant);
  }
  bool gives_tensors = false;
  for (const auto& result : schema.returns()) gives_tensors |= result.type()->kind() == c10::TypeKind::TensorType;
  if (!all_constant || gives_tensors) refuse(schema.name(), last_path_, kDataDependent);
  op.callBoxed(stack);
  return true;
}

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
    if (argument.isStorage()) refuse(call.schema.name(), last_path_, "an operator on a storage cannot be captured");
    if (argument.isTensor()) {
      auto [value, meta] = take(argument.toTensor(), written);
      call.node.inputs.push_back({static_cast<std::int32_t>(i), SlotKind::kTensor, {value}});
      call.twins[i] = meta;
      any_tensor |= value.valid();
      argument = c10::IValue();
    } else if (is_tensor_list(argument)) {
      const auto list = argument.toList();
      Slot slot{static_cast<std::int32_t>(i), is_optional_list(argument) ? SlotKind::kOptionalList : SlotKind::kList, {}};
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
      call.twins[i] = std::move(metas);
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
      refuse(schema.name(), call.node.path, "it writes an argument that it does not return; use the operator that "
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
      default: break;
    }
  }
}

void Tracer::run_on_twins(Call& call) {
  call.results = call.twins;
  try {
    call.op.callBoxed(&call.results);
  } catch (const c10::NotImplementedError&) {
    call.results = call.twins;
    try {
      if (!probe_on_cpu(call.op, &call.results)) refuse(call.schema.name(), call.node.path, kDataDependent);
    } catch (const c10::Error& failure) {
      refuse(call.schema.name(), call.node.path,
             std::string("libtorch has no shape rule for it in C++, and it failed on zeros: ") +
                 failure.what_without_backtrace());
    }
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    const bool reads = message.find("on meta tensors") != std::string::npos ||
                       message.find("on a meta tensor") != std::string::npos;
    refuse(call.schema.name(), call.node.path, reads ? std::string(kDataDependent) : message);
  }
}

void Tracer::collect_results(Call& call) {
  const auto& returns = call.schema.returns();
  const auto definer = OpId::of(graph_.ops.size());
  const bool uninitialised = makes_uninitialised(call.schema.name());
  call.stack->resize(call.base);

  const auto take = [&](const at::Tensor& meta, bool written) -> std::pair<ValueId, at::Tensor> {
    if (!meta.defined()) return {ValueId::none(), meta};
    if (!meta.is_meta()) refuse(call.schema.name(), call.node.path, "its result is not computed from the captured tensors");
    const auto self = std::find_if(call.arguments.begin(), call.arguments.end(), [&](const auto& argument) {
      return argument.written && argument.meta.is_same(meta);
    });
    if (written && self != call.arguments.end()) {
      auto* impl = self->user.unsafeGetTensorImpl();
      if (self->user.sizes() != meta.sizes() || self->user.strides() != meta.strides()) {
        if (phantom_tag(self->user) == nullptr) {
          refuse(call.schema.name(), call.node.path, "it changes the sizes of a parameter, buffer or constant in place");
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
    auto phantom = wrap(meta, uninitialised);
    const auto value = new_value(meta, definer);
    if (is_new_storage) insert_sorted(call.node.writes, graph_.value(value).storage);
    bind(phantom, meta, value);
    return {value, phantom};
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

void Tracer::release_raw_memory() {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  std::vector<at::Tensor> holders;
  for (const auto& [impl, twin] : twins_) {
    if (!raw_.contains(twin.storage)) continue;
    if (auto alive = twin.user.lock()) holders.emplace_back(std::move(alive));
  }
  for (const auto& holder : holders) take_raw_writes(holder);
  for (auto& [impl, raw] : raw_) {
    raw.storage.set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    raw.storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(no_data_message(options_.description));
  }
  raw_.clear();
}

void Tracer::finish() {
  for (const auto& [impl, twin] : twins_) {
    auto alive = twin.user.lock();
    if (!alive) continue;
    const at::Tensor user(std::move(alive));
    if (phantom_tag(user) != nullptr && twin.storage == storage_of(user)) check_phantom(user, twin.meta);
  }
}

// ---------------------------------------------------------------- the dispatcher's side

namespace {

thread_local OperatorSink* current_sink = nullptr;

std::shared_ptr<OperatorSink> owner_of(const torch::jit::Stack& stack, std::size_t base, std::string* description) {
  std::shared_ptr<OperatorSink> owner;
  const auto look = [&](const c10::IValue& value) {
    if (!value.isTensor()) return;
    if (const auto* tag = phantom_tag(value.toTensor()); tag != nullptr) {
      *description = tag->description;
      if (!owner) owner = tag->owner.lock();
    }
  };
  for (std::size_t i = base; i < stack.size(); ++i) {
    if (is_tensor_list(stack[i])) {
      for (const c10::IValue& element : stack[i].toListRef()) look(element);
    } else {
      look(stack[i]);
    }
  }
  return owner;
}

/// Asked by set_data, about types only.
bool reads_types_only(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::_has_compatible_shallow_copy_type";
}

/// Optimizers make state like their parameters, some of them when they are made: of what another rank holds, too.
bool makes_one_like_it(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name == "aten::full_like" || name == "aten::zeros_like" || name == "aten::ones_like" || name == "aten::empty_like";
}

void make_state_phantom(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& description) {
  const auto arguments = op.schema().arguments().size();
  const auto like = stack->at(stack->size() - arguments).toTensor();
  auto made = make_phantom(like.sizes(), like.scalar_type(), false, "the state of an optimizer for it: " + description);
  stack->resize(stack->size() - arguments);
  stack->emplace_back(std::move(made));
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (reads_types_only(op)) {
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    return op.callBoxed(stack);
  }
  if (current_sink != nullptr) return current_sink->handle(op, stack);
  std::string description;
  const auto owner = owner_of(*stack, stack->size() - op.schema().arguments().size(), &description);
  if (owner) return owner->handle(op, stack);
  if (!description.empty() && makes_one_like_it(op)) return make_state_phantom(op, stack, description);
  if (!description.empty()) {
    throw InvalidArgument(op.schema().name() + " on a tensor without data: " + description);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  op.callBoxed(stack);
}

}  // namespace

TraceScope::TraceScope(OperatorSink& sink) : outer_(current_sink), include_(kTraceKey) { current_sink = &sink; }
TraceScope::~TraceScope() { current_sink = outer_; }

void install_tracer() {
  static const bool installed = [] {
    static torch::Library library(torch::Library::IMPL, "_", c10::make_optional(kTraceKey), __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
    return true;
  }();
  (void)installed;
}

}  // namespace autopar::detail
