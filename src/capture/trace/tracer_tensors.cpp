// The tensors that traced code holds, and their twins on the meta device.
#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "capture/trace/own_hook.hpp"
#include "capture/trace/tracer.hpp"

namespace autopar::trace {
namespace {

constexpr std::size_t kRawMemoryLimit = std::size_t{1} << 16;
constexpr char kUnwritten = static_cast<char>(0xA5);

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

/// Of a conjugate, and of the imaginary part of one, libtorch keeps the memory and a bit.
void copy_lazy_bits(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
}

std::vector<SizeExpr> fixed(c10::IntArrayRef sizes) {
  std::vector<SizeExpr> result;
  result.reserve(sizes.size());
  for (auto size : sizes) result.push_back({0, size});
  return result;
}

}  // namespace

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
  if (place == twins_.end()) {
    place = twins_.emplace(impl, Twin{WeakTensor(user.getIntrusivePtr()), {}, {}, false, nullptr}).first;
  }
  place->second.meta = meta;
  place->second.value = value;
  place->second.requires_grad = user.requires_grad();
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
    refuse(last_op_, last_path_,
           "a tensor of type " + user.toString() +
               " cannot be captured; only dense strided tensors can: make it dense, to_dense(), outside forward");
  }
  at::Tensor meta;
  if (const auto known = meta_storage_of_.find(storage); known != meta_storage_of_.end()) {
    meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(known->second),
                                                    c10::DispatchKeySet(c10::DispatchKey::Meta), user.dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(user.sizes(), user.strides(), user.storage_offset());
  } else {
    const at::AutoGradMode no_grad(false);
    const auto elements = static_cast<std::int64_t>(user.unsafeGetTensorImpl()->unsafe_storage().nbytes() /
                                                    std::max<std::size_t>(user.element_size(), 1));
    const auto whole = at::empty({elements}, at::dtype(user.scalar_type()).device(at::kMeta));
    meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole.storage()),
                                                    c10::DispatchKeySet(c10::DispatchKey::Meta), user.dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(user.sizes(), user.strides(), user.storage_offset());
  }
  if (user.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  copy_lazy_bits(user, meta);
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
  if (has_hooks_of_user(tensor)) {
    refuse("register_hook", name,
           "hooks on parameters and buffers would not run on the parts of a pipeline; "
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

at::Tensor Tracer::add_input(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                             at::MemoryFormat format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  auto meta = at::empty(sizes, at::dtype(dtype).device(at::kMeta), format);
  if (requires_grad) meta.set_requires_grad(true);
  auto fake = wrap(meta, false);
  const auto value = new_value(meta, OpId::none());
  auto& info = graph_.value(value);
  info.kind = ValueKind::kInput;
  info.position = static_cast<std::int32_t>(graph_.inputs.size());
  paths_[value.index()] = "argument " + std::to_string(info.position);
  storage_kind_[info.storage.index()] = ValueKind::kInput;
  bind(fake, meta, value);
  graph_.inputs.push_back(value);
  return fake;
}

// ---------------------------------------------------------------- what the traced code holds

at::Tensor Tracer::wrap(const at::Tensor& meta, bool may_have_memory) {
  const auto* storage = storage_of(meta);
  auto known = user_storage_of_.find(storage);
  if (known == user_storage_of_.end()) {
    const auto bytes = meta.storage().nbytes();
    c10::Storage made;
    if (may_have_memory && bytes > 0 && bytes <= kRawMemoryLimit) {
      made = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::int64_t>(bytes), c10::GetCPUAllocator(),
                          false);
      std::memset(made.mutable_data(), kUnwritten, bytes);
      raw_[made.unsafeGetStorageImpl()] = {made, std::vector<char>(bytes, kUnwritten)};
    } else {
      made = fake_storage(bytes, options_.description);
    }
    meta_storage_of_.insert_or_assign(made.unsafeGetStorageImpl(), meta.storage());
    known = user_storage_of_.insert_or_assign(storage, made).first;
  }
  auto fake = fake_over(known->second, meta, tag_);
  copy_lazy_bits(meta, fake);
  if (meta.requires_grad()) fake.set_requires_grad(true);
  return fake;
}

void Tracer::check_fake(const at::Tensor& user, Twin& twin) const {
  const auto& meta = twin.meta;
  if (const auto& node = user.grad_fn(); fake_tag(user) != nullptr && node != nullptr) {
    refuse(
        node->name(), last_path_,
        "a custom torch::autograd::Function cannot be captured: its C++ backward is not an "
        "operator. Register it as an operator with TORCH_LIBRARY and an Autograd kernel, or write it with operators");
  }
  if (fake_tag(user) != nullptr) {
    if (has_hooks_of_user(user)) {
      refuse("register_hook", last_path_,
             "a hook on a tensor inside the model would not run when the model is replayed; "
             "use operators (for gradient scaling: x * s + (x * (1 - s)).detach())");
    }
    if (user.grad().defined()) {
      refuse("backward", last_path_, "backward inside the forward cannot be captured; return the loss instead");
    }
  }
  if (user.requires_grad() != meta.requires_grad()) {
    // An operator wrote something differentiable into a view of it.
    if (meta.requires_grad() && !meta.is_leaf() && !twin.requires_grad && fake_tag(user) != nullptr) {
      at::Tensor(user).set_requires_grad(true);
      twin.requires_grad = true;
      return;
    }
    if (options_.constructing && meta.is_leaf()) {  // register_parameter
      at::Tensor(meta).set_requires_grad(user.requires_grad());
      return;
    }
    refuse("requires_grad_", last_path_,
           "requires_grad was changed inside the forward; use detach(), change it before "
           "the call, or make the tensor without it. Gradients are not taken inside a captured forward "
           "(torch::autograd::grad, gradient penalties)");
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
      refuse("requires_grad_", last_path_,
             "a tensor made inside the forward was set to require a gradient; "
             "make it without, or register it as a parameter");
    }
    auto leaf = meta.detach();
    leaf.set_requires_grad(true);
    return bind(user, leaf, base);
  }
  OpNode node{c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", ""),
              {c10::IValue()},
              {Slot{0, SlotKind::kTensor, {base}}},
              {},
              {},
              at::GradMode::is_enabled(),
              false,
              {},
              {},
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
  if (const auto* tag = fake_tag(user); tag != nullptr) {
    if (tag == tag_.get() || !options_.make_real || !options_.make_real(user)) {
      refuse(last_op_, last_path_,
             tag->description +
                 "; a tensor kept from an earlier forward, or of a module that is not registered, cannot "
                 "be used. Register it as a buffer, or compute it in this forward");
    }
  }
  if (options_.on_constant) options_.on_constant(user);
  const auto meta = meta_leaf(user);
  const auto value = new_value(meta, OpId::none());
  auto& info = graph_.value(value);
  info.kind = ValueKind::kConstant;
  info.constant = is_borrowed(user) ? copy_of_borrowed(user) : user;
  const auto& storage = info.storage;
  if (storage_kind_[storage.index()] == ValueKind::kComputed) storage_kind_[storage.index()] = ValueKind::kConstant;
  return bind(user, meta, value);
}

Tracer::Twin& Tracer::twin_of(const at::Tensor& user) {
  look_at_borrowed(user);
  const auto known = twins_.find(user.unsafeGetTensorImpl());
  if (known != twins_.end() && known->second.storage == storage_of(user)) {
    check_fake(user, known->second);
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
  const auto leaf_meta =
      at::empty_strided(user.sizes(), user.strides(), at::dtype(user.scalar_type()).device(at::kMeta));
  const auto leaf = new_value(leaf_meta, OpId::none());
  graph_.value(leaf).kind = ValueKind::kConstant;
  graph_.value(leaf).constant = constant;
  auto meta = at::empty_strided(user.sizes(), user.strides(), at::dtype(user.scalar_type()).device(at::kMeta));
  if (requires_grad) meta.set_requires_grad(true);
  OpNode node{c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", ""),
              {c10::IValue(), c10::IValue()},
              {Slot{0, SlotKind::kTensor, {leaf}}},
              {},
              {},
              false,
              false,
              {},
              {},
              last_path_};
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
    raw.storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        no_data_message(options_.description));
  }
  raw_.clear();
}

void Tracer::finish() {
  lowered_.clear();
  for (auto& [impl, twin] : twins_) {
    auto alive = twin.user.lock();
    if (!alive) continue;
    const at::Tensor user(std::move(alive));
    if (fake_tag(user) != nullptr && twin.storage == storage_of(user)) check_fake(user, twin);
  }
}

bool Tracer::keeps_values() const {
  return std::any_of(twins_.begin(), twins_.end(), [this](const auto& entry) {
    const Twin& twin = entry.second;
    const auto alive = twin.user.lock();
    if (!alive || twin.storage != storage_of(at::Tensor(alive))) return false;
    return graph_.value(twin.value).kind == ValueKind::kComputed;
  });
}

}  // namespace autopar::trace
