#include "capture/trace/trace_scope.hpp"

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <autopar/core/error.hpp>

#include "capture/ir/ivalues.hpp"
#include "capture/trace/fake_tensor.hpp"
#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {
namespace {

thread_local OperatorSink* current_sink = nullptr;

std::shared_ptr<OperatorSink> owner_of(const torch::jit::Stack& stack, std::size_t base, std::string* description) {
  std::shared_ptr<OperatorSink> owner;
  ir::for_each_tensor(stack, base, [&](const at::Tensor& tensor) {
    if (const auto* tag = fake_tag(tensor); tag != nullptr) {
      *description = tag->description;
      if (!owner) owner = tag->owner.lock();
    }
  });
  return owner;
}

/// Asked by set_data, about types only.
bool reads_types_only(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::_has_compatible_shallow_copy_type";
}

/// Optimizers make state like their parameters, some of them when they are made: of what another rank holds, too.
bool makes_one_like_it(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name == "aten::full_like" || name == "aten::zeros_like" || name == "aten::ones_like" ||
         name == "aten::empty_like";
}

void make_state_fake(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& description) {
  const auto arguments = op.schema().arguments().size();
  const auto like = stack->at(stack->size() - arguments).toTensor();
  auto made = make_fake(like.sizes(), like.scalar_type(), false, "the state of an optimizer for it: " + description);
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
  if (!description.empty() && makes_one_like_it(op)) return make_state_fake(op, stack, description);
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

}  // namespace autopar::trace
