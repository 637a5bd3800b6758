#pragma once

#include <cstdint>

#include <autopar/plan/request.hpp>

namespace autopar::test {

/// Whatever the runtime can do, on all memory of the devices.
inline PlanRequest whole_memory_request(std::int64_t batch) {
  PlanRequest request;
  request.batch = batch;
  request.runtime = runtime_capabilities();
  request.options.memory_margin = 0;
  return request;
}

}  // namespace autopar::test
