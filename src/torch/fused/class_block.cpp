// Kernels for a block of classes of a cross-entropy that ranks share, see shard/softmax_block.hpp.
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "kernels/class_loss_source.hpp"
#include "torch/fused/class_loss.hpp"
#include "torch/fused/launch.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::fused {

namespace {

using at::Tensor;

constexpr std::int64_t kIgnored = -1;

bool is_single(const Tensor& numbers) { return numbers.scalar_type() == at::kFloat && numbers.is_contiguous(); }

bool block_statistics(const Tensor& logits, const Tensor& target, std::int64_t first_class, const Tensor& made) {
  if (!has_class_loss_kernels(logits, target, std::nullopt) || !is_single(made)) return false;
  detail::launch(logits, kernels::kClassLossKernels, detail::class_loss_kernel("statistics", logits).c_str(),
                 detail::class_loss_shape(logits), detail::data_of(logits), detail::data_of(target), first_class,
                 detail::memory_of(made), static_cast<int>(logits.size(1)), logits.stride(0));
  return true;
}

bool block_gradient(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                    const Tensor& log_sums, const Tensor& gradient, std::int64_t first_class, std::int64_t classes,
                    const Tensor& made) {
  const bool is_alike = made.scalar_type() == logits.scalar_type() && detail::is_aligned(made) && made.stride(1) == 1 &&
                        made.stride(0) >= made.size(1);
  const bool are_single =
      is_single(log_sums) && gradient.scalar_type() == at::kFloat && is_single(weight.value_or(log_sums));
  if (!has_class_loss_kernels(logits, target, std::nullopt) || !is_alike || !are_single) return false;
  const auto given = gradient.stride(0) == 0 ? gradient : gradient.contiguous();
  detail::launch(logits, kernels::kClassLossKernels, detail::class_loss_kernel("gradients", logits).c_str(),
                 detail::class_loss_shape(logits), detail::data_of(logits), detail::data_of(target),
                 detail::data_of(weight.value_or(Tensor())), kIgnored, detail::data_of(log_sums),
                 detail::data_of(given), given.stride(0) == 0 ? 0 : 1, detail::memory_of(made),
                 static_cast<int>(logits.size(1)), logits.stride(0), made.stride(0),
                 static_cast<int>(padding_behind_rows(made)), first_class, classes);
  return true;
}

}  // namespace

TORCH_LIBRARY_IMPL(autopar, CUDA, library) {
  library.impl("class_block_statistics", block_statistics);
  library.impl("class_block_gradient", block_gradient);
}

}  // namespace autopar::fused
