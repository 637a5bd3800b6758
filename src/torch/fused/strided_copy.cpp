#include "torch/fused/strided_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "torch/fused/launch.hpp"

namespace autopar::fused {

std::vector<CopiedDim> dims_of_both(const at::Tensor& to, const at::Tensor& from) {
  std::vector<CopiedDim> dims;
  for (std::int64_t i = 0; i < to.dim(); ++i)
    if (to.size(i) != 1) dims.push_back({to.size(i), to.stride(i), from.stride(i)});
  std::ranges::stable_sort(dims, [](const CopiedDim& a, const CopiedDim& b) { return a.to > b.to; });
  return dims;
}

std::vector<CopiedDim> joined_dims(const std::vector<CopiedDim>& dims) {
  std::vector<CopiedDim> joined;
  for (const auto& dim : dims) {
    const bool joins =
        !joined.empty() && joined.back().to == dim.to * dim.size && joined.back().from == dim.from * dim.size;
    if (joins)
      joined.back() = {joined.back().size * dim.size, dim.to, dim.from};
    else
      joined.push_back(dim);
  }
  return joined;
}

std::optional<kernels::StridedRows> rows_of_both(const at::Tensor& to, const at::Tensor& from) {
  if (to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type() || to.numel() == 0) return std::nullopt;
  auto dims = joined_dims(dims_of_both(to, from));
  if (dims.empty() || dims.back().to != 1 || dims.back().from != 1) return std::nullopt;
  const auto element = static_cast<std::int64_t>(to.element_size());
  const auto in_packs = [&](std::int64_t elements) { return elements * element / detail::kPackBytes; };
  const auto is_whole = [&](std::int64_t elements) { return elements * element % detail::kPackBytes == 0; };
  kernels::StridedRows rows;
  if (!is_whole(dims.back().size)) return std::nullopt;
  rows.inner = in_packs(dims.back().size);
  dims.pop_back();
  if (dims.size() > kernels::StridedRows::kDims) return std::nullopt;
  const auto first = kernels::StridedRows::kDims - dims.size();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!is_whole(dims[i].to) || !is_whole(dims[i].from)) return std::nullopt;
    rows.sizes[first + i] = dims[i].size;
    rows.to[first + i] = in_packs(dims[i].to);
    rows.from[first + i] = in_packs(dims[i].from);
  }
  return rows;
}

void copy_strided(const at::Tensor& to, const at::Tensor& from) {
  constexpr std::int64_t kThreads = 256, kMostBlocks = 4224;
  const auto packs = to.numel() * static_cast<std::int64_t>(to.element_size()) / detail::kPackBytes;
  const bool may =
      to.is_cuda() && from.device() == to.device() && !from.is_conj() && !from.is_neg() &&
      packs <= std::numeric_limits<std::int32_t>::max() &&
      devices::context_of(to.device().type()).has_kernels(kernels::kStridedCopyKernels, to.device().index());
  const auto rows = may && detail::is_aligned(to) && detail::is_aligned(from) ? rows_of_both(to, from) : std::nullopt;
  if (!rows) {
    to.copy_(from);
    return;
  }
  const auto blocks = std::min(detail::parts_for(packs, kThreads), kMostBlocks);
  detail::launch(to, kernels::kStridedCopyKernels, "copy_rows",
                 {static_cast<unsigned>(blocks), 1, static_cast<unsigned>(kThreads), 1}, detail::memory_of(to),
                 detail::data_of(from), *rows, static_cast<unsigned>(packs));
}

}  // namespace autopar::fused
