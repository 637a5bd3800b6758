#include "capture/shapes/meta_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <torch/library.h>

#include "capture/shapes/meta_registration.hpp"

// Forms of results only; each kernel's rule is that of the operator's CPU kernel (aten/src/ATen/native).

namespace autopar::shapes {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor same_form(const Tensor& x) { return at::empty_like(x); }
Tensor& in_place(Tensor& x) { return x; }

Tensor scalar_like(const Tensor& x) { return at::empty({}, x.options()); }

Tensor reduced_loss(const Tensor& x, std::int64_t reduction) {
  return reduction == at::Reduction::None ? at::empty_like(x) : scalar_like(x);
}

/// What element-wise kernels give: their strides are those of their operands.
Tensor element_wise(std::initializer_list<Tensor> operands, at::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false);
  config.declare_static_dtype_and_device(dtype, at::kMeta).add_owned_output(Tensor());
  for (const auto& operand : operands) config.add_owned_const_input(operand);
  return config.build().output();
}

Tensor broadcast(const Tensor& a, const Tensor& b) { return element_wise({a, b}, at::result_type(a, b)); }

// ---------------------------------------------------------------- indexing and layout

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor take(const Tensor& x, const Tensor& index) { return at::empty(index.sizes(), x.options()); }
Tensor flip(const Tensor& x, c10::IntArrayRef) { return at::empty_like(x, at::MemoryFormat::Preserve); }
Tensor roll(const Tensor& x, c10::SymIntArrayRef, c10::IntArrayRef) { return at::empty(x.sizes(), x.options()); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return element_wise({condition, a, b}, at::result_type(a, b));
}

Tensor reflection_pad2d(const Tensor& x, c10::SymIntArrayRef padding) {
  auto sizes = x.sizes().vec();
  const auto rank = sizes.size();
  sizes[rank - 1] += padding[0].expect_int() + padding[1].expect_int();
  sizes[rank - 2] += padding[2].expect_int() + padding[3].expect_int();
  return at::empty(sizes, x.options(), rank == 4 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

Tensor bucketize(const Tensor& x, const Tensor&, bool out_int32, bool) {
  return at::empty(x.sizes(), x.options().dtype(out_int32 ? at::kInt : at::kLong));
}

/// libtorch's own reads the indices, to check them.
Tensor one_hot(const Tensor& x, std::int64_t classes) {
  TORCH_CHECK(classes >= 0, "one_hot without a number of classes counts them, which cannot be done on meta tensors");
  auto sizes = x.sizes().vec();
  sizes.push_back(classes);
  return at::empty(sizes, x.options());
}

// ---------------------------------------------------------------- convolution and pooling

/// Of either operand.
at::MemoryFormat convolution_format(const Tensor& x, const Tensor& weight) {
  const auto channels_last = weight.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  if (weight.dim() != 4 && weight.dim() != 5) return at::MemoryFormat::Contiguous;
  const bool any = x.suggest_memory_format() == channels_last || weight.suggest_memory_format() == channels_last;
  return any ? channels_last : at::MemoryFormat::Contiguous;
}

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor&, c10::SymIntArrayRef stride,
                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const auto at_dim = [](c10::SymIntArrayRef list, std::int64_t i) {
    return list[list.size() == 1 ? 0 : static_cast<std::size_t>(i)].expect_int();
  };
  std::vector<std::int64_t> sizes{x.size(0), transposed ? weight.size(1) * groups.expect_int() : weight.size(0)};
  for (std::int64_t i = 0; i + 2 < weight.dim(); ++i) {
    const auto reach = at_dim(dilation, i) * (weight.size(2 + i) - 1);
    const auto in = x.size(2 + i), pad = 2 * at_dim(padding, i);
    sizes.push_back(transposed ? (in - 1) * at_dim(stride, i) - pad + reach + at_dim(output_padding, i) + 1
                               : (in + pad - reach - 1) / at_dim(stride, i) + 1);
  }
  return at::empty(sizes, x.options(), convolution_format(x, weight));
}

template <std::size_t Dims>
Tensor adaptive_avg_pool(const Tensor& x, c10::SymIntArrayRef output_size) {
  auto sizes = x.sizes().vec();
  for (std::size_t i = 0; i < Dims; ++i) sizes[sizes.size() - Dims + i] = output_size[i].expect_int();
  return at::empty(sizes, x.options(), x.dim() == 4 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

Tensor grid_sampler_2d(const Tensor& x, const Tensor& grid, std::int64_t, std::int64_t, bool) {
  return at::empty({x.size(0), x.size(1), grid.size(1), grid.size(2)}, x.options());
}

// ---------------------------------------------------------------- normalisation

std::tuple<Tensor, Tensor, Tensor> batch_norm_form(const Tensor& x, bool training) {
  const auto statistic = at::empty({training ? x.size(1) : 0}, x.options());
  return {at::empty_like(x), statistic, at::empty_like(statistic)};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& x, const OptionalTensor&, const OptionalTensor&,
                                                     const OptionalTensor&, const OptionalTensor&, bool training,
                                                     double, double) {
  return batch_norm_form(x, training);
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_legit(const Tensor& x, const OptionalTensor&,
                                                           const OptionalTensor&, Tensor&, Tensor&, bool training,
                                                           double, double) {
  return batch_norm_form(x, training);
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_no_stats(const Tensor& x, const OptionalTensor&,
                                                              const OptionalTensor&, bool training, double, double) {
  return batch_norm_form(x, training);
}

// libtorch's own are made of a batch norm and a product with the weight, which gives the wider of both types.

std::tuple<Tensor, Tensor, Tensor> norm_form(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                                             at::MemoryFormat format, const std::vector<std::int64_t>& statistics) {
  const auto scale = weight.value_or(Tensor()), shift = bias.value_or(Tensor());
  const bool mixed = at::native::is_mixed_type(x, scale, shift);
  if (mixed) at::native::check_mixed_data_type(x, scale, shift);
  const auto statistic = at::empty(statistics, x.options().dtype(at::native::param_scalar_type(x, mixed)));
  return {at::empty_like(x, x.options(), format), statistic, at::empty_like(statistic)};
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& x, c10::SymIntArrayRef normalized,
                                                     const OptionalTensor& weight, const OptionalTensor& bias, double) {
  at::native::_check_layer_norm_inputs(x, C10_AS_INTARRAYREF_SLOW(normalized), weight.value_or(Tensor()),
                                       bias.value_or(Tensor()));
  auto statistics = x.sizes().vec();
  std::fill(statistics.end() - static_cast<std::ptrdiff_t>(normalized.size()), statistics.end(), 1);
  return norm_form(x, weight, bias, at::MemoryFormat::Contiguous, statistics);
}

std::tuple<Tensor, Tensor, Tensor> native_group_norm(const Tensor& x, const OptionalTensor& weight,
                                                     const OptionalTensor& bias, c10::SymInt samples, c10::SymInt,
                                                     c10::SymInt, std::int64_t groups, double) {
  return norm_form(x, weight, bias, x.suggest_memory_format(), {samples.expect_int(), groups});
}

// ---------------------------------------------------------------- reductions

std::vector<std::int64_t> reduced_sizes(const Tensor& x, at::OptionalIntArrayRef dims, bool keepdim) {
  std::vector<bool> gone(static_cast<std::size_t>(x.dim()), !dims.has_value() || dims->empty());
  if (dims.has_value()) {
    for (auto dim : *dims) gone[static_cast<std::size_t>(at::maybe_wrap_dim(dim, x.dim()))] = true;
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d])
      sizes.push_back(x.sizes()[d]);
    else if (keepdim)
      sizes.push_back(1);
  }
  return sizes;
}

Tensor variance(const Tensor& x, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>&, bool keepdim) {
  return at::empty(reduced_sizes(x, dims, keepdim), x.options().dtype(c10::toRealValueType(x.scalar_type())));
}

std::tuple<Tensor, Tensor> variance_and_mean(const Tensor& x, at::OptionalIntArrayRef dims,
                                             const std::optional<at::Scalar>& correction, bool keepdim) {
  return {variance(x, dims, correction, keepdim), at::empty(reduced_sizes(x, dims, keepdim), x.options())};
}

Tensor product(const Tensor& x, std::optional<at::ScalarType> dtype) {
  const auto type = dtype.value_or(at::isIntegralType(x.scalar_type(), true) ? at::kLong : x.scalar_type());
  return at::empty({}, x.options().dtype(type));
}

Tensor count_nonzero(const Tensor& x, c10::IntArrayRef dims) {
  return at::empty(reduced_sizes(x, dims, false), x.options().dtype(at::kLong));
}

Tensor is_nan(const Tensor& x) { return at::empty_like(x, x.options().dtype(at::kBool)); }
Tensor dot(const Tensor& a, const Tensor&) { return scalar_like(a); }

// ---------------------------------------------------------------- activations and losses

Tensor hard_tanh(const Tensor& x, const at::Scalar&, const at::Scalar&) { return at::empty_like(x); }
Tensor& hard_tanh_in_place(Tensor& x, const at::Scalar&, const at::Scalar&) { return x; }
Tensor logit(const Tensor& x, std::optional<double>) { return at::empty_like(x); }
Tensor parametric_relu(const Tensor& x, const Tensor&) { return at::empty_like(x); }
Tensor reversed_subtraction(const Tensor& a, const Tensor& b, const at::Scalar&) { return broadcast(a, b); }

std::tuple<Tensor, Tensor> log_sigmoid(const Tensor& x) { return {at::empty_like(x), at::empty_like(x)}; }

std::tuple<Tensor, Tensor> nll_loss2d(const Tensor& x, const Tensor& target, const OptionalTensor&,
                                      std::int64_t reduction, c10::SymInt) {
  const auto loss = reduction == at::Reduction::None ? at::empty(target.sizes(), x.options()) : scalar_like(x);
  return {loss, scalar_like(x)};
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor&, const OptionalTensor&, std::int64_t reduction) {
  return reduced_loss(x, reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, std::int64_t reduction, double) {
  return reduction == at::Reduction::None ? broadcast(x, target) : scalar_like(x);
}

/// libtorch's own reads the lengths. It has no gradient formula for this overload either: it is made of others.
Tensor ctc_loss(const Tensor& log_probs, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                std::int64_t reduction, bool) {
  const bool for_each_sample = reduction == at::Reduction::None && log_probs.dim() == 3;
  auto loss = for_each_sample ? at::empty({log_probs.size(1)}, log_probs.options()) : scalar_like(log_probs);
  return loss.set_requires_grad(log_probs.requires_grad() && at::GradMode::is_enabled());
}

Tensor multinomial(const Tensor& x, c10::SymInt samples, bool, std::optional<at::Generator>) {
  auto sizes = x.sizes().vec();
  sizes.back() = samples.expect_int();
  return at::empty(sizes, x.options().dtype(at::kLong));
}

Tensor poisson(const Tensor& x, std::optional<at::Generator>) { return at::empty_like(x); }

// ---------------------------------------------------------------- registration

using shapes::meta::add;

void register_all(torch::Library& library) {
  for (const auto* name : {"relu", "hardswish"}) add(library, name, "", &same_form);
  for (const auto* name : {"relu_", "hardswish_"}) add(library, name, "", &in_place);
  add(library, "index_select", "", &index_select);
  add(library, "take", "", &take);
  add(library, "flip", "", &flip);
  add(library, "roll", "", &roll);
  add(library, "where", "self", &where);
  add(library, "one_hot", "", &one_hot);
  add(library, "reflection_pad2d", "", &reflection_pad2d);
  add(library, "bucketize", "Tensor", &bucketize);
  add(library, "convolution_overrideable", "", &convolution);
  add(library, "_adaptive_avg_pool2d", "", &adaptive_avg_pool<2>);
  add(library, "_adaptive_avg_pool3d", "", &adaptive_avg_pool<3>);
  add(library, "grid_sampler_2d", "", &grid_sampler_2d);
  add(library, "native_batch_norm", "", &native_batch_norm);
  add(library, "_native_batch_norm_legit", "", &native_batch_norm_legit);
  add(library, "_native_batch_norm_legit", "no_stats", &native_batch_norm_no_stats);
  add(library, "native_layer_norm", "", &native_layer_norm);
  add(library, "native_group_norm", "", &native_group_norm);
  for (const auto* name : {"max", "min", "median", "trace"}) add(library, name, "", &scalar_like);
  for (const auto* name : {"var", "std"}) add(library, name, "correction", &variance);
  for (const auto* name : {"var_mean", "std_mean"}) add(library, name, "correction", &variance_and_mean);
  add(library, "prod", "", &product);
  add(library, "count_nonzero", "dim_IntList", &count_nonzero);
  add(library, "isnan", "", &is_nan);
  for (const auto* name : {"dot", "vdot"}) add(library, name, "", &dot);
  add(library, "floor_divide", "", &broadcast);
  add(library, "rsub", "Tensor", &reversed_subtraction);
  add(library, "hardtanh", "", &hard_tanh);
  add(library, "hardtanh_", "", &hard_tanh_in_place);
  add(library, "logit", "", &logit);
  add(library, "_prelu_kernel", "", &parametric_relu);
  add(library, "log_sigmoid_forward", "", &log_sigmoid);
  add(library, "nll_loss2d_forward", "", &nll_loss2d);
  add(library, "binary_cross_entropy", "", &binary_cross_entropy);
  add(library, "huber_loss", "", &huber_loss);
  add(library, "ctc_loss", "Tensor", &ctc_loss);
  add(library, "multinomial", "", &multinomial);
  add(library, "poisson", "", &poisson);
}

}  // namespace

void install_meta_kernels() {
  static const bool installed = [] {
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    register_all(library);
    shapes::meta::register_transforms(library);
    shapes::meta::register_selections(library);
    return true;
  }();
  (void)installed;
}

}  // namespace autopar::shapes
