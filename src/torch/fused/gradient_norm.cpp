#include "torch/fused/gradient_norm.hpp"

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>

#include "kernels/gradient_norm_source.hpp"
#include "kernels/tensor_table.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

constexpr kernels::LaunchShape kOneBlock{1, 1, kernels::TensorTable::kThreads, 1};

int order_of(double p) {
  if (std::isinf(p)) return kernels::kLargestOrder;
  return p == 1 ? kernels::kSumOrder : kernels::kSquaresOrder;
}

/// Null for types that have no kernels.
const char* type_of_norm(c10::ScalarType type) { return type == at::kDouble ? "f64" : detail::kernel_type(type); }

at::Tensor doubles_on(c10::Device device, std::int64_t count) {
  return at::empty({count}, at::TensorOptions(at::kDouble).device(device));
}

}  // namespace

bool has_norm_kernels(c10::Device device, double p) {
  const bool has_order = p == 1 || p == 2 || std::isinf(p);
  return has_order && devices::context_of(device.type()).has_kernels(kernels::kGradientNormKernels, device.index());
}

bool takes_norm(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device && type_of_norm(tensor.scalar_type()) != nullptr &&
         tensor.is_non_overlapping_and_dense();
}

at::Tensor piecewise_norms(const std::vector<at::Tensor>& tensors, double p) {
  std::map<c10::ScalarType, std::vector<kernels::TensorMemory>> by_type;
  for (const auto& tensor : tensors) by_type[tensor.scalar_type()].push_back({tensor.data_ptr(), tensor.numel()});
  std::vector<std::pair<std::string, kernels::TensorTable>> launches;
  std::int64_t pieces = 0;
  for (const auto& [type, memory] : by_type) {
    for (const auto& table : kernels::tables_of(memory)) {
      launches.emplace_back(std::string("norms_") + type_of_norm(type), table);
      pieces += table.blocks;
    }
  }
  const auto norms = doubles_on(tensors.front().device(), pieces);
  auto* to = norms.mutable_data_ptr<double>();
  for (const auto& [kernel, table] : launches) {
    detail::launch(norms, kernels::kGradientNormKernels, kernel.c_str(), table.shape(), table, to, order_of(p));
    to += table.blocks;
  }
  return norms;
}

at::Tensor norm_by_rank(const at::Tensor& norms, double p, int ranks, int rank) {
  const auto by_rank = doubles_on(norms.device(), ranks);
  detail::launch(norms, kernels::kGradientNormKernels, "norm_by_rank", kOneBlock, detail::data_of(norms),
                 static_cast<int>(norms.numel()), order_of(p), detail::memory_of(by_rank), ranks, rank);
  return by_rank;
}

ClippedNorm clip_by_norm(const at::Tensor& norms, double p, double max_norm, c10::ScalarType type) {
  const auto made = doubles_on(norms.device(), 2);
  const auto given = at::empty({}, made.options().dtype(type_of_norm(type) != nullptr ? type : at::kDouble));
  const auto kernel = std::string("clip_") + type_of_norm(given.scalar_type());
  detail::launch(norms, kernels::kGradientNormKernels, kernel.c_str(), kOneBlock, detail::data_of(norms),
                 static_cast<int>(norms.numel()), order_of(p), max_norm, detail::memory_of(made),
                 detail::memory_of(given));
  return {made.select(0, 0), made.select(0, 1), given.to(type)};
}

}  // namespace autopar::fused
