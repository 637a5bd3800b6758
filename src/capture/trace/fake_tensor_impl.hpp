#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

namespace autopar::trace {

/// Fake tensors carry this key and captures include it, so that operators reach the tracer before autograd.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Handles operators on a fake tensor outside a capture, such as a construction in progress.
class OperatorSink {
 public:
  virtual ~OperatorSink() = default;
  virtual void handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

/// Metadata in the TensorImpl of a fake tensor; shallow copies share it.
struct FakeTag : c10::BackendMeta {
  std::string description;
  std::weak_ptr<OperatorSink> owner;
};

[[nodiscard]] FakeTag* fake_tag(const at::Tensor& tensor);

/// Error message when the data of a fake tensor is read.
[[nodiscard]] inline std::string no_data_message(const std::string& description) {
  return "autopar: there is no data to read here: " + description;
}

/// Storage of `bytes` without memory; reading it throws with `description`.
[[nodiscard]] c10::Storage fake_storage(std::size_t bytes, const std::string& description);

/// A tensor over any storage that looks like `layout` (sizes, strides, offset, type) and carries `tag`.
[[nodiscard]] at::Tensor fake_over(c10::Storage storage, const at::Tensor& layout, c10::intrusive_ptr<FakeTag> tag);

}  // namespace autopar::trace
