#pragma once

#include <vector>

#include "kernels/addends_source.hpp"
#include "kernels/batch_norm_source.hpp"
#include "kernels/channels_last_copy_source.hpp"
#include "kernels/class_loss_source.hpp"
#include "kernels/column_sums_source.hpp"
#include "kernels/fp8_cast_source.hpp"
#include "kernels/gelu_gradient_source.hpp"
#include "kernels/gelu_source.hpp"
#include "kernels/gradient_norm_source.hpp"
#include "kernels/joined_parts_source.hpp"
#include "kernels/kernel_source.hpp"
#include "kernels/layer_norm_source.hpp"
#include "kernels/max_pool_source.hpp"
#include "kernels/running_statistics_source.hpp"
#include "kernels/strided_copy_source.hpp"
#include "kernels/table_gradient_source.hpp"
#include "kernels/update_source.hpp"

namespace autopar::kernels {

/// All kernels of this layer except point-wise groups. The kernels that compile longest come first.
[[nodiscard]] inline std::vector<KernelSource> all_kernels() {
  return {kLayerNormKernels,
          kBatchNormKernels,
          kMaxPoolKernels,
          kGeluGradientKernels,
          kGeluKernels,
          kUpdateKernels,
          kChannelsLastCopyKernels,
          kColumnSumsKernels,
          kClassLossKernels,
          kJoinedPartsKernels,
          kStridedCopyKernels,
          kTableGradientKernels,
          kGradientNormKernels,
          kRunningStatisticsKernels,
          kFp8CastKernels,
          kAddendsKernels};
}

}  // namespace autopar::kernels
