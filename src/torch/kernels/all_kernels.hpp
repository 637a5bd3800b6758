#pragma once

#include <vector>

#include "torch/device/kernel_source.hpp"
#include "torch/kernels/batch_norm_source.hpp"
#include "torch/kernels/channels_last_copy_source.hpp"
#include "torch/kernels/class_loss_source.hpp"
#include "torch/kernels/column_sums_source.hpp"
#include "torch/kernels/gelu_gradient_source.hpp"
#include "torch/kernels/gelu_source.hpp"
#include "torch/kernels/joined_parts_source.hpp"
#include "torch/kernels/layer_norm_source.hpp"
#include "torch/kernels/max_pool_source.hpp"
#include "torch/kernels/strided_copy_source.hpp"
#include "torch/kernels/table_gradient_source.hpp"
#include "torch/kernels/update_source.hpp"

namespace autopar {

/// The kernels of this room, but for those of point-wise groups. What compiles for long comes first.
[[nodiscard]] inline std::vector<KernelSource> all_kernels() {
  return {kLayerNormKernels, kBatchNormKernels,   kMaxPoolKernels,          kGeluGradientKernels,
          kGeluKernels,      kUpdateKernels,      kChannelsLastCopyKernels, kColumnSumsKernels,
          kClassLossKernels, kJoinedPartsKernels, kStridedCopyKernels,      kTableGradientKernels};
}

}  // namespace autopar
