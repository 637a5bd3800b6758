#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>

/// Bytes of tensors that live on the CPU, as far as they were made while this is installed in the thread.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, peak = 0;
};
