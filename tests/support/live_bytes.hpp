#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include <c10/core/Allocator.h>

/// Bytes of tensors that live on the CPU, of those that were made while this is installed in the thread. Blocks are told
/// apart here: libtorch reports the end of one made before with whatever size its address had when it was last recorded.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    if (const auto known = blocks_.find(block); known != blocks_.end()) {
      now -= known->second;
      blocks_.erase(known);
    }
    if (size <= 0) return;
    blocks_[block] = size;
    now += size;
    peak = std::max(peak, now);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, peak = 0;

 private:
  std::map<void*, std::int64_t> blocks_;
};
