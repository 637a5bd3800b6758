// What follows from constants alone, and constants whose memory belongs to somebody else.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <c10/core/CPUAllocator.h>

#include <autopar/core/error.hpp>

#include "capture/ir/ivalues.hpp"
#include "capture/trace/evaluation.hpp"
#include "capture/trace/tracer.hpp"

namespace autopar::trace {
namespace {

constexpr const char* kFlagBuffer =
    ". A flag or a number that the program sets itself is best a plain member of the module (bool, double) instead of "
    "a "
    "buffer: the capture has what it is, and is made again when it changes (Options::verify_capture)";

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

/// A tensor like `look` over another storage with the same contents.
at::Tensor over(const c10::Storage& storage, const at::Tensor& look) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), look.key_set(), look.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes(), look.strides(), look.storage_offset());
  return made;
}

/// Whether a storage has no memory although it has bytes.
bool is_without_memory(const c10::Storage& storage) {
  return storage.nbytes() > 0 && storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto options = at::dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

}  // namespace

// ---------------------------------------------------------------- what follows from constants

std::optional<at::Tensor> Tracer::constant_data(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  if (!find(tensor)) {
    if (fake_tag(tensor) == nullptr) return tensor;
    if (fake_tag(tensor) == tag_.get() || !options_.make_real || !options_.make_real(tensor)) return std::nullopt;
    return tensor;
  }
  const auto value = value_of(tensor);
  if (fake_tag(tensor) == nullptr) {
    if (graph_.value(value).kind == ValueKind::kConstant) return tensor;
    return std::nullopt;
  }
  auto data = evaluate_constants(graph_, {value});
  if (!data) return std::nullopt;
  return data->front();
}

/// Reading data: allowed where it follows from constants of the model.
bool Tracer::answer_by_data(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (!reads_data(op, *stack)) return false;
  const auto base = stack->size() - schema.arguments().size();
  bool gives_tensors = false;
  for (const auto& result : schema.returns()) gives_tensors |= result.type()->kind() == c10::TypeKind::TensorType;
  const auto data_of = [&](const at::Tensor& tensor) -> at::Tensor {
    if (const auto known = find(tensor)) {
      const auto& info = graph_.value(*known);
      if (info.is_leaf() && !info.name.empty())
        last_path_ = info.name;
      else if (!paths_[known->index()].empty())
        last_path_ = paths_[known->index()];
    }
    if (auto data = constant_data(tensor)) return *data;
    const auto known = find(tensor);
    const bool is_flag = !gives_tensors && known && graph_.value(*known).kind == ValueKind::kBuffer;
    refuse(schema.name(), last_path_, data_dependent() + std::string(is_flag ? kFlagBuffer : ""));
  };
  for (std::size_t i = base; i < stack->size(); ++i) {
    auto& argument = (*stack)[i];
    if (argument.isTensor() && argument.toTensor().defined()) {
      argument = data_of(argument.toTensor());
    } else if (ir::is_tensor_list(argument)) {
      const auto list = argument.toList();
      c10::impl::GenericList data(list.elementType());
      for (std::size_t k = 0; k < list.size(); ++k) {
        const c10::IValue element = list.get(k);
        const bool is_tensor = element.isTensor() && element.toTensor().defined();
        data.push_back(is_tensor ? c10::IValue(data_of(element.toTensor())) : element);
      }
      argument = c10::IValue(data);
    }
  }
  op.callBoxed(stack);
  return true;
}

/// Which elements a constant mask selects is known: it becomes indices. Where it does not, the stack stays.
bool Tracer::select_by_constants(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  if (options_.constructing || (name != "aten::index" && name != "aten::masked_select") || !reads_data(op, *stack))
    return false;
  const auto base = stack->size() - 2;
  const auto self = (*stack)[base].toTensor();
  if (name == "aten::masked_select") {
    const auto mask = (*stack)[base + 1].toTensor();
    if (constant_data(self) || !constant_data(mask)) return false;
    const auto sizes = at::infer_size(self.sizes(), mask.sizes());
    auto selected = at::index(self.expand(sizes), {mask.expand(sizes)});
    stack->resize(base);
    stack->emplace_back(std::move(selected));
    return true;
  }
  if (constant_data(self)) return false;
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& index : (*stack)[base + 1].toListRef()) {
    if (!index.isTensor() || !is_mask(index.toTensor())) {
      indices.push_back(index.isTensor() ? std::optional(index.toTensor()) : std::nullopt);
      continue;
    }
    const auto mask = constant_data(index.toTensor());
    if (!mask) return false;
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    for (const auto& places : mask->nonzero().unbind(1)) indices.push_back(places.contiguous());
  }
  (*stack)[base + 1] = std::move(indices);
  return false;
}

/// What is made of memory that others own is made at once: later it may hold something else.
bool Tracer::read_borrowed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  bool any_borrowed = false, any_other = false;
  ir::for_each_tensor(*stack, stack->size() - schema.arguments().size(), [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto known = find(tensor);
    any_other |= fake_tag(tensor) != nullptr || (known && graph_.value(*known).kind != ValueKind::kConstant);
    any_borrowed |= is_borrowed(tensor);
  });
  const bool draws = schema.argumentIndexWithName("generator") || op.hasTag(at::Tag::nondeterministic_seeded);
  if (!any_borrowed || any_other || draws || schema.is_mutable()) return false;
  op.callBoxed(stack);
  return true;
}

bool Tracer::settle_constants() {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  take_replaced();
  std::vector<at::Tensor> kept;
  std::vector<ValueId> values;
  for (const auto& [impl, twin] : twins_) {
    if (graph_.value(twin.value).kind != ValueKind::kComputed) continue;
    auto alive = twin.user.lock();
    if (!alive || twin.storage != storage_of(at::Tensor(alive))) continue;
    at::Tensor user(std::move(alive));
    if (fake_tag(user) == nullptr || !evaluate_constants(graph_, {twin.value})) continue;
    kept.push_back(std::move(user));
    values.push_back(twin.value);
  }
  if (kept.empty()) return false;
  const auto data = evaluate_constants(graph_, values);  // at once: views share their memory
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i].set_data((*data)[i]);
  return true;
}

// ---------------------------------------------------------------- whose memory it is

bool is_borrowed(const at::Tensor& tensor) {
  if (!tensor.has_storage() || fake_tag(tensor) != nullptr) return false;
  const auto& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage.device_type() != at::kCPU || storage.allocator() != nullptr || storage.nbytes() == 0) return false;
  // What torch::load reads has no allocator either, but memory of libtorch's.
  return storage.data_ptr().get_deleter() != c10::GetCPUAllocator()->raw_deleter();
}

at::Tensor Tracer::copy_of_borrowed(const at::Tensor& user) {
  const at::AutoGradMode no_grad(false);
  auto& copy = borrowed_[storage_of(user)];
  if (!copy) copy = bytes_of(user.storage()).clone().storage();
  return over(copy, user);
}

/// What is behind a handle of from_blob may have changed since it was read last; then it is another constant.
void Tracer::look_at_borrowed(const at::Tensor& user) {
  if (borrowed_.empty()) return;
  const auto* storage = storage_of(user);
  const auto known = borrowed_.find(storage);
  if (known == borrowed_.end()) return;
  if (std::memcmp(storage->data(), known->second.data(), storage->nbytes()) == 0) return;
  forget(storage);
}

void Tracer::keep_before_write(const at::Tensor& constant) {
  const auto* storage = storage_of(constant);
  const auto known = by_storage_.find(storage);
  if (known == by_storage_.end()) return;
  const at::AutoGradMode no_grad(false);
  const auto copy = bytes_of(constant.storage()).clone().storage();
  for (const auto value : known->second) {
    auto& info = graph_.value(value);
    if (info.kind == ValueKind::kConstant) info.constant = over(copy, info.constant);
  }
  forget(storage);
}

/// The next tensor of this storage is another constant.
void Tracer::forget(const c10::StorageImpl* storage) {
  const auto values = by_storage_.extract(storage);
  for (const auto value : values.mapped()) {
    if (graph_.value(value).kind == ValueKind::kConstant) continue;
    refuse(last_op_, last_path_,
           "memory of which it holds a view was written without an operator, or before the "
           "operators that read the view have run; read a copy of it: torch::from_blob(...).clone()");
  }
  std::erase_if(twins_, [&](const auto& entry) { return entry.second.storage == storage; });
  meta_storage_of_.erase(storage);
  borrowed_.erase(storage);
}

/// A tensor that the run made and whose storage was replaced by one with data, without an operator (libtorch's
/// unpickler does that), is an ordinary tensor.
void Tracer::take_replaced(const at::Tensor& user) {
  if (fake_tag(user) == nullptr || !user.has_storage()) return;
  if (is_without_memory(user.storage()) || meta_storage_of_.contains(storage_of(user))) return;
  const bool requires_grad = user.requires_grad();
  auto real = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(user.storage()),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), user.dtype());
  real.unsafeGetTensorImpl()->set_sizes_and_strides(user.sizes(), user.strides(), user.storage_offset());
  user.set_data(real);
  user.set_requires_grad(requires_grad);
}

void Tracer::take_replaced() {
  const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
  for (const auto& [impl, twin] : twins_) {
    if (auto alive = twin.user.lock()) take_replaced(at::Tensor(std::move(alive)));
  }
}

/// set_ with data that is there, as torch::load does: the tensor is no value of the program but refers to that data.
bool Tracer::refer_to_data(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.schema().name() != "aten::set_" || op.schema().arguments().size() < 2) return false;
  const auto base = stack->size() - op.schema().arguments().size();
  const auto& source = (*stack)[base + 1];
  const auto storage = source.isStorage() ? source.toStorage() : source.toTensor().storage();
  if (is_without_memory(storage)) return false;
  auto self = (*stack)[base].toTensor();
  const auto known = find(self);
  const bool is_own = known && graph_.value(*known).kind == ValueKind::kComputed;
  if (!options_.constructing && (fake_tag(self) == nullptr || !is_own)) {
    if (known && graph_.value(*known).is_leaf()) last_path_ = graph_.value(*known).name;
    refuse(op.schema().name(), last_path_,
           "the forward gives other memory to a tensor that it did not make; do that in "
           "the constructor, or before the model is wrapped, or copy the values (copy_) into a registered buffer");
  }
  const at::AutoGradMode no_grad(false);
  if (fake_tag(self) == nullptr) {
    op.callBoxed(stack);
    return true;
  }
  const bool requires_grad = self.requires_grad();
  (*stack)[base] = at::empty({0}, at::dtype(self.scalar_type()).device(storage.device()));
  op.callBoxed(stack);
  self.set_data(stack->back().toTensor());
  self.set_requires_grad(requires_grad);
  stack->back() = self;
  return true;
}

}  // namespace autopar::trace
