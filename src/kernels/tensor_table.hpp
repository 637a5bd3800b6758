#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Tensors of one launch, as an argument of the kernel: launches take at most 4 KiB. Each block has a stretch of one
/// tensor.
struct TensorTable {
  static constexpr std::size_t kMost = 200;
  static constexpr long long kElementsOfBlock = 65536;
  static constexpr unsigned kThreads = 512;
  void* data[kMost];
  long long size[kMost];  ///< in elements
  int first_block[kMost];
  int count, blocks;

  [[nodiscard]] LaunchShape shape() const { return {static_cast<unsigned>(blocks), 1, kThreads, 1}; }
};

struct TensorMemory {
  void* data = nullptr;
  long long elements = 0;
};

/// As few tables as these tensors need, in their order. Tensors without elements are left out.
[[nodiscard]] inline std::vector<TensorTable> tables_of(const std::vector<TensorMemory>& tensors) {
  std::vector<TensorTable> tables;
  for (const auto& [data, elements] : tensors) {
    if (elements == 0) continue;
    if (tables.empty() || static_cast<std::size_t>(tables.back().count) == TensorTable::kMost) tables.push_back({});
    auto& table = tables.back();
    table.data[table.count] = data;
    table.size[table.count] = elements;
    table.first_block[table.count] = table.blocks;
    table.blocks += static_cast<int>((elements + TensorTable::kElementsOfBlock - 1) / TensorTable::kElementsOfBlock);
    ++table.count;
  }
  return tables;
}

}  // namespace autopar::kernels
