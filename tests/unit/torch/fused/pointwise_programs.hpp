#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "unit/torch/fused/random_program.hpp"

namespace autopar::test {

using torch::Tensor;

/// How an input lies in memory, and what of the results' sizes it has.
enum class InputForm { kFull, kTransposed, kChannelsLast, kEverySecond, kRow, kColumn, kChannels, kNumber };

/// Of sizes [samples, 4, 3, 8].
inline Tensor input_of(InputForm form, std::int64_t samples, at::TensorOptions options) {
  const auto drawn = [&](std::vector<std::int64_t> sizes) {  // kinks and ties are hit
    return torch::randn(sizes, torch::kDouble).mul(4).round().div(4).to(options);
  };
  switch (form) {
    case InputForm::kFull:
      return drawn({samples, 4, 3, 8});
    case InputForm::kTransposed:
      return drawn({8, 4, 3, samples}).transpose(0, 3);
    case InputForm::kChannelsLast:
      return drawn({samples, 4, 3, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    case InputForm::kEverySecond:
      return drawn({samples, 4, 3, 16}).slice(3, 0, 16, 2);
    case InputForm::kRow:
      return drawn({8});
    case InputForm::kColumn:
      return drawn({samples, 1, 1, 1});
    case InputForm::kChannels:
      return drawn({4, 1, 1});
    case InputForm::kNumber:
      return drawn({});
  }
  return {};
}

}  // namespace autopar::test
