#pragma once

#include <algorithm>
#include <vector>

#include <c10/core/Device.h>

#include "torch/device/device_context.hpp"
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
#include "torch/kernels/update_source.hpp"

namespace autopar {

/// The kernels of this room, but for those of point-wise groups. What compiles for long comes first.
[[nodiscard]] inline std::vector<KernelSource> all_kernels() {
  return {kLayerNormKernels, kBatchNormKernels,   kMaxPoolKernels,          kGeluGradientKernels,
          kGeluKernels,      kUpdateKernels,      kChannelsLastCopyKernels, kColumnSumsKernels,
          kClassLossKernels, kJoinedPartsKernels, kStridedCopyKernels};
}

/// Whether the device takes all of them. The first question compiles those that a `KernelCompilation` has not (or reads
/// what an earlier process left), so that no step does.
[[nodiscard]] inline bool has_all_kernels(c10::Device device) {
  const auto& context = context_of(device.type());
  return std::ranges::all_of(all_kernels(),
                             [&](const KernelSource& source) { return context.has_kernels(source, device.index()); });
}

}  // namespace autopar
