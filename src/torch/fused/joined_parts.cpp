#include "torch/fused/joined_parts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/launch.hpp"
#include "torch/fused/strided_copy.hpp"

namespace autopar::fused {

namespace {

using Dims = std::vector<CopiedDim>;

/// Determines the layout of parts, one after the other.
class Joining {
 public:
  explicit Joining(const at::Tensor& whole)
      : begin_(whole.storage_offset()),
        columns_(whole.size(-1)),
        rows_(whole.numel() / columns_),
        element_(static_cast<std::int64_t>(whole.element_size())) {
    static_cast<void>(packs(columns_));
  }

  /// @return whether the part consists of columns of all rows
  [[nodiscard]] bool add(const at::Tensor& place, const at::Tensor& part) {
    if (part.sizes() != place.sizes()) return false;
    Dims of_rows, of_columns;
    for (const auto& dim : dims_of_both(place, part)) (dim.to >= columns_ ? of_rows : of_columns).push_back(dim);
    const auto at = static_cast<std::size_t>(joined_.count++);
    joined_.first[at] = static_cast<int>(packs(place.storage_offset() - begin_));
    return set_rows(at, joined_dims(of_rows)) && set_columns(at, joined_dims(of_columns));
  }

  [[nodiscard]] std::optional<kernels::JoinedParts> made() const {
    if (!are_whole_) return std::nullopt;
    auto made = joined_;
    made.length = static_cast<int>(length_ != 0 ? length_ : rows_);
    for (std::size_t at = 0; at < kernels::JoinedParts::kMost; ++at)
      if (!in_slabs_[at]) made.slab[at] = made.length * made.row[at];
    return made;
  }

 private:
  bool set_rows(std::size_t at, const Dims& dims) {
    auto next = columns_;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      if (dim->to != next) return false;
      next = dim->to * dim->size;
    }
    if (next != rows_ * columns_ || dims.size() > 2) return false;
    if (dims.empty()) return true;
    joined_.row[at] = packs(dims.back().from);
    if (dims.size() == 1) return true;
    joined_.slab[at] = packs(dims.front().from);
    in_slabs_[at] = true;
    const bool agrees = length_ == 0 || length_ == dims.back().size;
    length_ = dims.back().size;
    return agrees;
  }

  bool set_columns(std::size_t at, const Dims& dims) {
    if (dims.empty() || dims.size() > 2 || dims.back().to != 1 || dims.back().from != 1) return false;
    const auto inner = static_cast<int>(packs(dims.back().size));
    const bool in_pieces = dims.size() == 2;
    joined_.inner[at] = inner;
    joined_.pieces[at] = in_pieces ? static_cast<int>(dims.front().size) : 1;
    joined_.period[at] = in_pieces ? static_cast<int>(packs(dims.front().to)) : inner;
    joined_.piece[at] = in_pieces ? packs(dims.front().from) : 0;
    return true;
  }

  std::int64_t packs(std::int64_t elements) {
    are_whole_ = are_whole_ && elements * element_ % detail::kPackBytes == 0;
    return elements * element_ / detail::kPackBytes;
  }

  std::int64_t begin_, columns_, rows_, element_;
  std::int64_t length_ = 0;  ///< rows of a slab, from parts that have slabs
  std::array<bool, kernels::JoinedParts::kMost> in_slabs_{};
  bool are_whole_ = true;  ///< all distances so far are in whole packs
  kernels::JoinedParts joined_;
};

bool fits_kernel(const at::Tensor& whole, const std::vector<at::Tensor>& parts) {
  if (!whole.is_cuda() || at::GradMode::is_enabled() || detail::kernel_type(whole.scalar_type()) == nullptr)
    return false;
  const bool alike = std::ranges::all_of(parts, [&](const at::Tensor& part) {
    return !part.defined() || (part.scalar_type() == whole.scalar_type() && part.device() == whole.device() &&
                               !part.is_neg() && detail::is_aligned(part));
  });
  return alike && detail::is_aligned(whole) && has_column_sums(whole.device()) &&
         devices::context_of(whole.device().type()).has_kernels(kernels::kJoinedPartsKernels, whole.device().index());
}

}  // namespace

std::optional<kernels::JoinedParts> columns_of_parts(const at::Tensor& whole, const std::vector<at::Tensor>& places,
                                                     const std::vector<at::Tensor>& parts) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  if (!whole.is_contiguous() || whole.numel() == 0 || whole.dim() < 2 || parts.size() > kernels::JoinedParts::kMost)
    return std::nullopt;
  if (whole.size(-1) > kLargest || whole.numel() / whole.size(-1) > kLargest) return std::nullopt;
  Joining joining(whole);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!joining.add(places[i], parts[i].defined() ? parts[i] : places[i])) return std::nullopt;
  return joining.made();
}

bool join_parts(const at::Tensor& whole, const std::vector<at::Tensor>& places, const std::vector<at::Tensor>& parts) {
  using Shape = kernels::JoinedPartsShape;
  if (!fits_kernel(whole, parts)) return false;
  auto joined = columns_of_parts(whole, places, parts);
  if (!joined) return false;
  for (std::size_t i = 0; i < parts.size(); ++i) joined->from[i] = detail::data_of(parts[i]);
  constexpr std::int64_t kBlocks = 792;  // six per multiprocessor of a large GPU, all resident at once
  const auto columns = whole.size(-1), rows = whole.numel() / columns;
  const auto packs = columns * static_cast<std::int64_t>(whole.element_size()) / detail::kPackBytes;
  const auto across = detail::parts_for(packs, Shape::kPacks);
  const auto down = std::min(std::max<std::int64_t>(kBlocks / across, 1), detail::parts_for(rows, Shape::kRows));
  const auto single = whole.options().dtype(at::kFloat);
  const auto partial = at::empty({down, columns}, single), sums = at::empty({columns}, single);
  const auto kernel = std::string("join_parts_") + detail::kernel_type(whole.scalar_type());
  detail::launch(whole, kernels::kJoinedPartsKernels, kernel.c_str(),
                 {static_cast<unsigned>(across), static_cast<unsigned>(down), Shape::kPacks, Shape::kRows}, *joined,
                 detail::memory_of(whole), detail::memory_of(partial), static_cast<int>(rows), static_cast<int>(packs));
  add_up_columns(partial, sums);
  attach_bias_gradient(whole, sums);
  return true;
}

}  // namespace autopar::fused
