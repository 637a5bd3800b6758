#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include "capture/shapes/meta_registration.hpp"

namespace autopar::shapes::meta {
namespace {

using at::Tensor;
using Sizes = std::vector<std::int64_t>;

std::size_t index_of(std::int64_t dim, const Tensor& x) {
  return static_cast<std::size_t>(at::maybe_wrap_dim(dim, x.dim()));
}

// ---------------------------------------------------------------- Fourier transforms, complex numbers, truth

/// The transformed dims come last in memory, the others before them in the order of the input's strides.
Tensor transformed(const Tensor& x, const Sizes& sizes, const std::vector<std::size_t>& dims, at::ScalarType type) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return x.strides()[a] > x.strides()[b]; });
  order.insert(order.end(), dims.begin(), dims.end());
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = stride;
    stride *= std::max<std::int64_t>(sizes[*d], 1);
  }
  return at::empty_strided(sizes, strides, x.options().dtype(type));
}

template <class Dims>
std::vector<std::size_t> wrapped(const Dims& dims, const Tensor& x) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if constexpr (std::is_same_v<Dims, c10::SymIntArrayRef>)
      result.push_back(index_of(dims[i].expect_int(), x));
    else
      result.push_back(index_of(dims[i], x));
  }
  return result;
}

Tensor complex_transform(const Tensor& x, c10::SymIntArrayRef dims, std::int64_t, bool) {
  TORCH_CHECK(x.is_complex(), "a complex transform of real numbers");
  return transformed(x, x.sizes().vec(), wrapped(dims, x), x.scalar_type());
}

Tensor real_transform(const Tensor& x, c10::IntArrayRef dims, std::int64_t, bool onesided) {
  TORCH_CHECK(x.is_floating_point(), "a real transform of numbers that are not real");
  const auto over = wrapped(dims, x);
  auto sizes = x.sizes().vec();
  if (onesided) sizes[over.back()] = sizes[over.back()] / 2 + 1;
  return transformed(x, sizes, over, c10::toComplexType(x.scalar_type()));
}

Tensor inverse_real_transform(const Tensor& x, c10::IntArrayRef dims, std::int64_t, c10::SymInt last_size) {
  TORCH_CHECK(x.is_complex(), "the inverse of a real transform takes complex numbers");
  const auto over = wrapped(dims, x);
  auto sizes = x.sizes().vec();
  sizes[over.back()] = last_size.expect_int();
  return transformed(x, sizes, {over.back()}, c10::toRealValueType(x.scalar_type()));
}

at::ScalarType real_type(const Tensor& x, bool keep_integers) {
  const auto type = x.scalar_type();
  if (at::isComplexType(type)) return c10::toRealValueType(type);
  return keep_integers || at::isFloatingType(type) ? type : c10::get_default_dtype_as_scalartype();
}

Tensor magnitude(const Tensor& x) { return at::empty_like(x, x.options().dtype(real_type(x, true))); }
Tensor phase(const Tensor& x) { return at::empty_like(x, x.options().dtype(real_type(x, false))); }

Tensor complex_of(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "both parts of complex numbers must have one element type");
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(c10::toComplexType(a.scalar_type())));
}

Tensor truth(const Tensor& x) { return at::empty_like(x, x.options().dtype(at::kBool)); }

Tensor& itself(Tensor& x) { return x; }
Tensor& itself_with_other(Tensor& x, const Tensor&) { return x; }

Tensor truth_of_two(const Tensor& a, const Tensor& b) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(at::kBool));
}

/// libtorch's own looks whether the windows overlap. Made of others, it has no gradient formula either.
Tensor signal_of_frames(const Tensor& x, std::int64_t n_fft, std::optional<std::int64_t> hop_length,
                        std::optional<std::int64_t>, const std::optional<Tensor>&, bool center, bool,
                        std::optional<bool>, std::optional<std::int64_t> length, bool return_complex) {
  TORCH_CHECK(x.is_complex() && (x.dim() == 2 || x.dim() == 3), "istft takes complex numbers of [samples, n, frames]");
  const auto hop = hop_length.value_or(n_fft / 4);
  const auto whole = n_fft + hop * (x.size(-1) - 1);
  const auto type = return_complex ? x.scalar_type() : c10::toRealValueType(x.scalar_type());
  Sizes sizes{length.value_or(center ? whole - n_fft / 2 * 2 : whole)};
  if (x.dim() == 3) sizes.insert(sizes.begin(), x.size(0));
  auto result = at::empty(sizes, x.options().dtype(type));
  if (!x.requires_grad() || !at::GradMode::is_enabled()) return result;
  return result.set_requires_grad(true).clone();  // no leaf: an in-place operator may follow
}

// ---------------------------------------------------------------- matrices

/// Matrices as LAPACK has them: columns are dense.
Tensor by_columns(Sizes sizes, const at::TensorOptions& options) {
  std::swap(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
  return at::empty(sizes, options).transpose(-2, -1);
}

Tensor eigenvalues(const Tensor& x) {
  return at::empty(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1),
                   x.options().dtype(c10::toComplexType(x.scalar_type())));
}

std::tuple<Tensor, Tensor> eigenvalues_and_vectors(const Tensor& x) {
  const auto values = eigenvalues(x);
  return {values, by_columns(x.sizes().vec(), values.options())};
}

Tensor householder_product(const Tensor& x, const Tensor&) { return by_columns(x.sizes().vec(), x.options()); }

std::tuple<Tensor, Tensor> factors_of_qr(const Tensor& x) {
  auto sizes = x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1).vec();
  sizes.back() = std::min(x.size(-2), x.size(-1));
  return {by_columns(x.sizes().vec(), x.options()), at::empty(sizes, x.options())};
}

Tensor product_with_q(const Tensor&, const Tensor&, const Tensor& other, bool, bool) {
  return by_columns(other.sizes().vec(), other.options());
}

/// That of the CPU's own driver, gelsy, which gives no residuals; what others give depends on the numbers.
std::tuple<Tensor, Tensor, Tensor, Tensor> least_squares(const Tensor& a, const Tensor& b, std::optional<double>,
                                                         std::optional<std::string_view> driver) {
  TORCH_CHECK(!driver || *driver == "gelsy", "only the driver gelsy has results of known sizes");
  const auto matrices = a.sizes();
  const auto rows = matrices.slice(0, matrices.size() - 1);
  const bool vector = b.dim() + 1 == a.dim() && b.sizes() == rows;
  const auto of_b = b.sizes().slice(0, static_cast<std::size_t>(b.dim()) - (vector ? 1 : 2));
  const auto batch = at::infer_size(matrices.slice(0, matrices.size() - 2), of_b);
  Sizes memory(batch.begin(), batch.end());  // the solution is written over b, which may have more rows
  memory.push_back(std::max(a.size(-2), a.size(-1)));
  if (!vector) memory.push_back(b.size(-1));
  const auto solution = vector ? at::empty(memory, a.options()) : by_columns(memory, a.options());
  const auto values = a.options().dtype(c10::toRealValueType(a.scalar_type()));
  return {solution.narrow(vector ? -1 : -2, 0, a.size(-1)), at::empty({0}, values),
          at::empty(matrices.slice(0, matrices.size() - 2), a.options().dtype(at::kLong)), at::empty({0}, values)};
}

// ---------------------------------------------------------------- images

Tensor shuffled_channels(const Tensor& x, c10::SymInt groups) {
  TORCH_CHECK(x.dim() > 2 && x.size(1) % groups.expect_int() == 0, "its groups do not divide the channels");
  return at::empty(x.sizes(), x.options());
}

std::tuple<Tensor, Tensor> max_pool_of_volumes(const Tensor& x, c10::IntArrayRef kernel, c10::IntArrayRef stride,
                                               c10::IntArrayRef padding, c10::IntArrayRef dilation, bool ceil_mode) {
  const auto at_dim = [](c10::IntArrayRef list, std::size_t i) { return list[list.size() == 1 ? 0 : i]; };
  auto sizes = x.sizes().vec();
  for (std::size_t i = 0; i < 3; ++i) {
    auto& size = sizes[sizes.size() - 3 + i];
    size = at::native::pooling_output_shape<std::int64_t>(size, at_dim(kernel, i), at_dim(padding, i),
                                                          at_dim(stride.empty() ? kernel : stride, i),
                                                          at_dim(dilation, i), ceil_mode);
  }
  const auto format = x.dim() == 5 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  return {at::empty(sizes, x.options(), format), at::empty(sizes, x.options().dtype(at::kLong), format)};
}

}  // namespace

void register_transforms(torch::Library& library) {
  add(library, "_fft_c2c", "", &complex_transform);
  add(library, "_fft_r2c", "", &real_transform);
  add(library, "_fft_c2r", "", &inverse_real_transform);
  add(library, "abs", "", &magnitude);
  add(library, "angle", "", &phase);
  for (const auto* name : {"complex", "polar"}) add(library, name, "", &complex_of);
  for (const auto* name : {"logical_not", "isinf"}) add(library, name, "", &truth);
  for (const auto* name : {"logical_and", "logical_or", "logical_xor"}) add(library, name, "", &truth_of_two);
  add(library, "logical_not_", "", &itself);
  for (const auto* name : {"logical_and_", "logical_or_", "logical_xor_"}) add(library, name, "", &itself_with_other);
  add(library, "istft", "", &signal_of_frames);
  add(library, "linalg_eig", "", &eigenvalues_and_vectors);
  add(library, "_linalg_eigvals", "", &eigenvalues);
  add(library, "linalg_householder_product", "", &householder_product);
  add(library, "geqrf", "", &factors_of_qr);
  add(library, "ormqr", "", &product_with_q);
  add(library, "linalg_lstsq", "", &least_squares);
  add(library, "channel_shuffle", "", &shuffled_channels);
  add(library, "max_pool3d_with_indices", "", &max_pool_of_volumes);
}

}  // namespace autopar::shapes::meta
