#include "torch/fused/products.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "torch/device/device_context.hpp"
#include "torch/fused/rows_of.hpp"

namespace autopar::fused {

namespace {

bool may_be_large(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() && a.element_size() == 2 && is_large_product(a, b);
}

}  // namespace

bool is_large_product(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kLarge = 2e10;  // floating-point operations: 30 us on an H100
  return a.dim() == 2 && b.dim() == 2 &&
         2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)) >= kLarge;
}

bool multiply_large(const kernels::MatrixProduct& product) {
  return may_be_large(product.a, product.b) && devices::context_of(product.a.device().type()).multiply(product);
}

at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, c10::ScalarType type) {
  if (may_be_large(a, b)) {
    const auto to = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
    if (multiply_large({a, b, {}, to})) return to;
  }
  return type == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, type);
}

at::Tensor large_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView no_history;
  if (weight.dim() != 2 || x.dim() < 2 || !(x.dim() == 2 || x.is_contiguous())) return {};
  if (x.sizes().back() != weight.size(1)) return {};
  const auto rows = rows_of(x);
  if (!may_be_large(rows, weight.t())) return {};
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  auto result = at::empty(sizes, x.options());
  const auto to = rows_of(result);
  return multiply_large({rows, weight.t(), bias, to}) ? result : at::Tensor();
}

}  // namespace autopar::fused
