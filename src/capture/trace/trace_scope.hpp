#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "capture/trace/phantom_impl.hpp"

namespace autopar::detail {

/// Makes `sink` the one that operators of this thread reach, for its lifetime.
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

}  // namespace autopar::detail
