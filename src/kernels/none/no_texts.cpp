// In place of the other files of this layer where AUTOPAR_KERNELS is off: no device has kernels of these names.
#include "kernels/batch_norm_source.hpp"
#include "kernels/channels_last_copy_source.hpp"
#include "kernels/class_loss_source.hpp"
#include "kernels/column_sums_source.hpp"
#include "kernels/gelu_gradient_source.hpp"
#include "kernels/gelu_source.hpp"
#include "kernels/joined_parts_source.hpp"
#include "kernels/layer_norm_source.hpp"
#include "kernels/max_pool_source.hpp"
#include "kernels/strided_copy_source.hpp"
#include "kernels/table_gradient_source.hpp"
#include "kernels/update_source.hpp"

namespace autopar {

const KernelSource kBatchNormKernels{"batch_norm.cu"};
const KernelSource kChannelsLastCopyKernels{"channels_last_copy.cu"};
const KernelSource kClassLossKernels{"class_loss.cu"};
const KernelSource kColumnSumsKernels{"column_sums.cu"};
const KernelSource kGeluGradientKernels{"gelu_gradient.cu"};
const KernelSource kGeluKernels{"gelu.cu"};
const KernelSource kJoinedPartsKernels{"joined_parts.cu"};
const KernelSource kLayerNormKernels{"layer_norm.cu"};
const KernelSource kMaxPoolKernels{"max_pool.cu"};
const KernelSource kStridedCopyKernels{"strided_copy.cu"};
const KernelSource kTableGradientKernels{"table_gradient.cu"};
const KernelSource kUpdateKernels{"update.cu"};

}  // namespace autopar
