#include "torch/fused/table_gradient.hpp"

#include <limits>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "kernels/table_gradient_source.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using TableShape = kernels::TableGradientShape;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

kernels::LaunchShape shape_of(std::int64_t packs, std::int64_t parts) {
  return {static_cast<unsigned>(detail::parts_for(packs, TableShape::kPacks)),
          static_cast<unsigned>(detail::parts_for(parts, TableShape::kParts)), TableShape::kPacks, TableShape::kParts};
}

}  // namespace

bool has_table_kernels(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries) {
  if (!rows.is_cuda() || detail::kernel_type(rows.scalar_type()) == nullptr || rows.numel() == 0) return false;
  constexpr std::int64_t kMostBlocks = 65535;  // the grid's limit in y
  const auto columns = rows.size(-1);
  const bool fits = indices.device() == rows.device() && c10::isIntegralType(indices.scalar_type(), false) &&
                    indices.numel() * columns == rows.numel() && entries <= kMost &&
                    indices.numel() <= kMostBlocks * TableShape::kParts * TableShape::kOfPart && columns <= kMost;
  return fits && columns * rows.element_size() % detail::kPackBytes == 0 &&
         devices::context_of(rows.device().type()).has_kernels(kernels::kTableGradientKernels, rows.device().index());
}

at::Tensor table_gradient(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries,
                          std::int64_t padding) {
  const auto columns = rows.size(-1), count = indices.numel();
  const auto dense = detail::dense_in_packs(rows);
  const auto [sorted, order] = at::sort(indices.reshape({-1}).to(at::kInt), /*stable=*/true, 0, /*descending=*/false);
  const auto parts = detail::parts_for(count, TableShape::kOfPart);
  const auto single = rows.options().dtype(at::kFloat);
  const auto table = at::zeros({entries, columns}, single), partial = at::empty({parts, 2, columns}, single);
  const auto of_pack = detail::kPackBytes / dense.element_size(), of_single = detail::kPackBytes / table.element_size();
  const auto kernel = std::string("add_rows_") + detail::kernel_type(dense.scalar_type());
  detail::launch(dense, kernels::kTableGradientKernels, kernel.c_str(), shape_of(columns / of_pack, parts),
                 detail::data_of(dense), detail::data_of(sorted), detail::data_of(order), detail::memory_of(table),
                 detail::memory_of(partial), static_cast<int>(count), static_cast<int>(columns / of_pack),
                 static_cast<int>(padding));
  if (parts > 1) {
    detail::launch(dense, kernels::kTableGradientKernels, "add_parts_f32", shape_of(columns / of_single, parts - 1),
                   detail::data_of(sorted), detail::memory_of(table), detail::memory_of(partial),
                   static_cast<int>(count), static_cast<int>(columns / of_single), static_cast<int>(padding));
  }
  return table;
}

}  // namespace autopar::fused
