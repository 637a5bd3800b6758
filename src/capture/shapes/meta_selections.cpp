#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include "capture/shapes/meta_registration.hpp"

// Forms of results only; each kernel's rule is that of the operator's CPU kernel (aten/src/ATen/native).

namespace autopar::shapes::meta {
namespace {

using at::Tensor;
using Sizes = std::vector<std::int64_t>;

Tensor contiguous_like(const Tensor& x) { return at::empty(x.sizes(), x.options()); }

Tensor& where_out(const Tensor&, const Tensor&, const Tensor&, Tensor& out) { return out; }

// ---------------------------------------------------------------- patches and pools

Tensor im2col(const Tensor& x, c10::IntArrayRef kernel, c10::IntArrayRef dilation, c10::IntArrayRef padding,
              c10::IntArrayRef stride) {
  const auto places = [&](std::size_t i, std::int64_t in) {
    return (in + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1)) / stride[i] + 1;
  };
  const auto count = places(0, x.size(-2)) * places(1, x.size(-1));
  const auto rows = x.size(-3) * kernel[0] * kernel[1];
  return x.dim() == 4 ? at::empty({x.size(0), rows, count}, x.options()) : at::empty({rows, count}, x.options());
}

Tensor col2im(const Tensor& x, c10::SymIntArrayRef output, c10::IntArrayRef kernel, c10::IntArrayRef, c10::IntArrayRef,
              c10::IntArrayRef) {
  Sizes sizes{x.size(-2) / (kernel[0] * kernel[1]), output[0].expect_int(), output[1].expect_int()};
  if (x.dim() == 3) sizes.insert(sizes.begin(), x.size(0));
  return at::empty(sizes, x.options());
}

Tensor unpooled(const Tensor& x, c10::SymIntArrayRef output, at::MemoryFormat format) {
  auto sizes = x.sizes().vec();
  for (std::size_t i = 0; i < output.size(); ++i) sizes[sizes.size() - output.size() + i] = output[i].expect_int();
  return at::empty(sizes, x.options(), format);
}

Tensor max_unpool2d(const Tensor& x, const Tensor&, c10::SymIntArrayRef output) {
  return unpooled(x, output, x.dim() == 4 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

Tensor max_unpool3d(const Tensor& x, const Tensor&, c10::SymIntArrayRef output, c10::IntArrayRef, c10::IntArrayRef) {
  return unpooled(x, output, at::MemoryFormat::Contiguous);
}

Tensor grid_sampler_3d(const Tensor& x, const Tensor& grid, std::int64_t, std::int64_t, bool) {
  return at::empty({x.size(0), x.size(1), grid.size(1), grid.size(2), grid.size(3)}, x.options());
}

// ---------------------------------------------------------------- along a dim

Sizes without(const Tensor& x, std::int64_t dim, bool keepdim) {
  auto sizes = x.sizes().vec();
  if (sizes.empty()) return sizes;
  const auto at_dim = sizes.begin() + at::maybe_wrap_dim(dim, x.dim());
  if (keepdim)
    *at_dim = 1;
  else
    sizes.erase(at_dim);
  return sizes;
}

std::tuple<Tensor&, Tensor&> kth_value(const Tensor& x, c10::SymInt, std::int64_t dim, bool keepdim, Tensor& values,
                                       Tensor& indices) {
  const auto sizes = without(x, dim, keepdim);
  return {const_cast<Tensor&>(values.resize_(sizes)), const_cast<Tensor&>(indices.resize_(sizes))};
}

std::tuple<Tensor&, Tensor&> median(const Tensor& x, std::int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  return kth_value(x, 0, dim, keepdim, values, indices);
}

std::tuple<Tensor, Tensor> mode(const Tensor& x, std::int64_t dim, bool keepdim) {
  const auto sizes = without(x, dim, keepdim);
  return {at::empty(sizes, x.options()), at::empty(sizes, x.options().dtype(at::kLong))};
}

Tensor log_cumulative_sum(const Tensor& x, std::int64_t) { return contiguous_like(x); }
void cumulative(const Tensor&, Tensor&, Tensor&, std::int64_t) {}
Tensor nan_median(const Tensor& x) { return at::empty({}, x.options()); }
Tensor histogram(const Tensor& x, std::int64_t bins, const at::Scalar&, const at::Scalar&) {
  return at::empty({bins}, x.options());
}

Tensor nan_sum(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim, std::optional<at::ScalarType> dtype) {
  std::vector<bool> gone(static_cast<std::size_t>(x.dim()), !dims.has_value() || dims->empty());
  if (dims.has_value()) {
    for (const auto dim : *dims) gone[static_cast<std::size_t>(at::maybe_wrap_dim(dim, x.dim()))] = true;
  }
  Sizes sizes;
  for (std::size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d])
      sizes.push_back(x.sizes()[d]);
    else if (keepdim)
      sizes.push_back(1);
  }
  const auto own = at::isIntegralType(x.scalar_type(), true) ? at::kLong : x.scalar_type();
  return at::empty(sizes, x.options().dtype(dtype.value_or(own)));
}

Tensor search_sorted(const Tensor&, const Tensor& x, bool out_int32, bool, std::optional<std::string_view>,
                     const std::optional<Tensor>&) {
  return at::empty(x.sizes(), x.options().dtype(out_int32 ? at::kInt : at::kLong));
}

// ---------------------------------------------------------------- products and distances

Tensor sum_of_products(const Tensor&, const Tensor& a, const Tensor& b, const at::Scalar&, const at::Scalar&) {
  return at::empty({a.size(1), b.size(2)}, a.options());
}

Tensor distances(const Tensor& a, const Tensor& b, double, std::optional<std::int64_t>) {
  auto sizes = at::infer_size(a.sizes().slice(0, a.sizes().size() - 2), b.sizes().slice(0, b.sizes().size() - 2));
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  return at::empty(sizes, a.options());
}

/// What the results but the first hold is libtorch's own.
std::tuple<Tensor, Tensor, Tensor, Tensor> bags(const Tensor& table, const Tensor& rows, const Tensor& offsets, bool,
                                                std::int64_t, bool, const std::optional<Tensor>&, bool one_more,
                                                std::int64_t) {
  const auto count = offsets.size(0) - (one_more ? 1 : 0);
  const auto own = [&](std::int64_t size) { return at::empty({size}, rows.options()); };
  return {at::empty({count, table.size(1)}, table.options()), own(rows.size(0)), own(count), own(count)};
}

Tensor own_distances(const Tensor& x, double) {
  const auto rows = x.size(0);
  return at::empty({rows <= 1 ? 0 : rows * (rows - 1) / 2}, x.options());
}

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, std::int64_t) {
  const auto type = g.scalar_type() == at::kBFloat16 ? at::kFloat : g.scalar_type();
  return {at::empty_like(v, at::MemoryFormat::Contiguous),
          at::empty_strided(g.sizes(), g.strides(), g.options().dtype(type))};
}

// ---------------------------------------------------------------- losses, draws, factories

Tensor multi_margin_loss(const Tensor& x, const Tensor& target, const at::Scalar&, const at::Scalar&,
                         const std::optional<Tensor>&, std::int64_t reduction) {
  const bool each = reduction == at::Reduction::None && target.dim() > 0;
  return each ? at::empty({x.size(0)}, x.options()) : at::empty({}, x.options());
}

std::tuple<Tensor, Tensor> multi_label_margin_loss(const Tensor& x, const Tensor& target, std::int64_t reduction) {
  const bool each = reduction == at::Reduction::None && target.dim() > 1;
  return {each ? at::empty({x.size(0)}, x.options()) : at::empty({}, x.options()),
          at::empty(target.sizes(), x.options())};
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double, std::optional<bool>) {
  // Of nothing, libtorch gives no mask of truths.
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(x.numel() > 0 ? at::kBool : x.scalar_type()))};
}

Tensor leaky_with_noise(const Tensor& x, Tensor&, const at::Scalar&, const at::Scalar&, bool,
                        std::optional<at::Generator>) {
  return contiguous_like(x);
}

Tensor drawn(const Tensor& x, std::optional<at::Generator>) { return contiguous_like(x); }

Tensor indices(std::int64_t count, std::optional<at::ScalarType> type) {
  return at::empty({2, count}, at::dtype(type.value_or(at::kLong)).device(at::kMeta));
}

Tensor tril_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset, std::optional<at::ScalarType> type,
                    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return indices(at::native::get_tril_size(rows, cols, offset), type);
}

Tensor triu_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset, std::optional<at::ScalarType> type,
                    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return indices(rows * cols - at::native::get_tril_size(rows, cols, offset - 1), type);
}

}  // namespace

void register_selections(torch::Library& library) {
  const auto add = [&](const char* name, const char* overload, auto kernel) {
    meta::add(library, name, overload, kernel);
  };
  add("where", "self_out", &where_out);
  register_attention(library);
  add("im2col", "", &im2col);
  add("col2im", "", &col2im);
  add("max_unpool2d", "", &max_unpool2d);
  add("max_unpool3d", "", &max_unpool3d);
  add("grid_sampler_3d", "", &grid_sampler_3d);
  add("kthvalue", "values", &kth_value);
  for (const auto* name : {"median", "nanmedian"}) add(name, "dim_values", &median);
  add("mode", "", &mode);
  add("_logcumsumexp", "", &log_cumulative_sum);
  for (const auto* name : {"_cummax_helper", "_cummin_helper"}) add(name, "", &cumulative);
  add("nanmedian", "", &nan_median);
  add("nansum", "", &nan_sum);
  add("histc", "", &histogram);
  add("searchsorted", "Tensor", &search_sorted);
  add("addbmm", "", &sum_of_products);
  add("_cdist_forward", "", &distances);
  for (const auto* name : {"_embedding_bag", "_embedding_bag_forward_only"}) add(name, "", &bags);
  add("_pdist_forward", "", &own_distances);
  add("_weight_norm_interface", "", &weight_norm);
  add("multi_margin_loss", "", &multi_margin_loss);
  add("multilabel_margin_loss_forward", "", &multi_label_margin_loss);
  add("native_dropout", "", &native_dropout);
  add("rrelu_with_noise", "", &leaky_with_noise);
  for (const auto* name : {"_standard_gamma", "_sample_dirichlet"}) add(name, "", &drawn);
  add("tril_indices", "", &tril_indices);
  add("triu_indices", "", &triu_indices);
}

}  // namespace autopar::shapes::meta
