#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {

/// Sends operators of this thread to `sink` during its lifetime.
class TraceScope {
 public:
  explicit TraceScope(OperatorSink& sink);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  OperatorSink* outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// Registers the dispatcher's fallback for kTraceKey, once.
void install_tracer();

}  // namespace autopar::trace
