#include "torch/fused/column_sums.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "kernels/column_sums_source.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using SumsShape = kernels::ColumnSumsShape;

bool takes(const at::Tensor& rows, c10::ScalarType type) {
  const bool has_type = detail::kernel_type(rows.scalar_type()) != nullptr && detail::kernel_type(type) != nullptr;
  if (!rows.is_cuda() || !has_type || rows.dim() != 2 || rows.numel() == 0 || rows.stride(1) != 1) return false;
  const auto is_whole = [&](std::int64_t elements) { return elements * rows.element_size() % detail::kPackBytes == 0; };
  const bool in_packs = is_whole(rows.size(1)) && is_whole(rows.stride(0)) && detail::is_aligned(rows);
  return in_packs && rows.size(1) <= std::numeric_limits<std::int32_t>::max() && has_column_sums(rows.device());
}

/// Writes the sums over rows to `sum`. @param adds  adds to its contents instead
void sum_in_kernels(const at::Tensor& rows, const at::Tensor& sum, bool adds) {
  constexpr std::int64_t kBlocks = 528;  // four per multiprocessor of a large GPU, all resident at once
  const auto count = rows.size(0), columns = rows.size(1), of_pack = detail::kPackBytes / rows.element_size();
  const auto packs = columns / of_pack;
  const auto blocks = blocks_of_rows(count, packs, SumsShape::kRows, kBlocks);
  const auto partial = at::empty({blocks.down, columns}, rows.options().dtype(at::kFloat));
  const auto first = std::string("column_sums_") + detail::kernel_type(rows.scalar_type());
  detail::launch(
      rows, kernels::kColumnSumsKernels, first.c_str(),
      {static_cast<unsigned>(blocks.across), static_cast<unsigned>(blocks.down), SumsShape::kPacks, SumsShape::kRows},
      detail::data_of(rows), detail::memory_of(partial), count, rows.stride(0) / of_pack, static_cast<int>(packs),
      static_cast<int>(blocks.rows));
  add_up_columns(partial, sum, adds);
}

}  // namespace

BlocksOfRows blocks_of_rows(std::int64_t rows, std::int64_t packs, std::int64_t at_a_time, std::int64_t most) {
  const auto across = detail::parts_for(packs, SumsShape::kPacks), down = std::max<std::int64_t>(most / across, 1);
  const auto of_block = detail::parts_for(detail::parts_for(rows, down), at_a_time) * at_a_time;
  return {across, detail::parts_for(rows, of_block), of_block};
}

void add_up_columns(const at::Tensor& partial, const at::Tensor& sum, bool adds) {
  const auto columns = partial.size(1);
  const auto kernel = std::string("add_up_columns_") + detail::kernel_type(sum.scalar_type());
  detail::launch(partial, kernels::kColumnSumsKernels, kernel.c_str(),
                 {static_cast<unsigned>(detail::parts_for(columns, SumsShape::kColumns)), 1, SumsShape::kColumns,
                  SumsShape::kAtATime},
                 detail::data_of(partial), static_cast<int>(partial.size(0)), detail::memory_of(sum),
                 static_cast<int>(columns), adds ? 1 : 0);
}

bool has_column_sums(c10::Device device) {
  return device.is_cuda() &&
         devices::context_of(device.type()).has_kernels(kernels::kColumnSumsKernels, device.index());
}

at::Tensor column_sums(const at::Tensor& rows, c10::ScalarType type) {
  if (!takes(rows, type)) return rows.sum(0, false, type);
  const auto sum = at::empty({rows.size(1)}, rows.options().dtype(type));
  sum_in_kernels(rows, sum, false);
  return sum;
}

void add_column_sums(const at::Tensor& rows, c10::ScalarType type, const at::Tensor& sum) {
  const bool is_place = sum.scalar_type() == type && sum.is_contiguous() && sum.device() == rows.device();
  if (is_place && takes(rows, type))
    sum_in_kernels(rows, sum, true);
  else
    sum.add_(column_sums(rows, type));
}

}  // namespace autopar::fused
