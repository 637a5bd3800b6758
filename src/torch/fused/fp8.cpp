#include "torch/fused/fp8.hpp"

#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>

#include <autopar/core/assert.hpp>

#include "kernels/fp8_cast_source.hpp"
#include "kernels/gemm/matrix_product.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using CastShape = kernels::Fp8CastShape;

constexpr std::int64_t kPack = 16;

double largest_of(c10::ScalarType format) { return format == at::kFloat8_e4m3fn ? 448 : 57344; }

bool has_kernels_for(const at::Tensor& matrix) {
  return matrix.is_cuda() && matrix.numel() > 0 &&
         devices::context_of(matrix.device().type()).has_kernels(kernels::kFp8CastKernels, matrix.device().index());
}

kernels::LaunchShape over_tiles(const at::Tensor& matrix) {
  const auto blocks = [](std::int64_t size) {
    return static_cast<unsigned>(detail::parts_for(size, CastShape::kTile));
  };
  return {blocks(matrix.size(1)), blocks(matrix.size(0)), CastShape::kThreads, CastShape::kThreads};
}

/// The rows of a matrix's transpose, in whole packs.
std::int64_t pitch_of(const at::Tensor& matrix) { return detail::parts_for(matrix.size(0), kPack) * kPack; }

void cast_in_kernels(const at::Tensor& matrix, const Fp8Scale& scale, const Fp8Matrix& to) {
  const auto dense = detail::dense_in_packs(matrix);
  const auto format = to.rows.defined() ? to.rows.scalar_type() : to.columns.scalar_type();
  detail::launch(dense, kernels::kFp8CastKernels, format == at::kFloat8_e4m3fn ? "cast_to_e4m3" : "cast_to_e5m2",
                 over_tiles(dense), detail::data_of(dense), detail::memory_of(to.rows), detail::memory_of(to.columns),
                 detail::data_of(scale.factor), detail::memory_of(scale.most), static_cast<int>(dense.size(0)),
                 static_cast<int>(dense.size(1)), static_cast<int>(pitch_of(dense)));
}

/// @param columns  the transpose, its rows in whole packs
void copy_transposed(const at::Tensor& rows, const at::Tensor& columns) {
  const auto to = columns.view(at::kByte).zero_();
  to.narrow(1, 0, rows.size(0)).copy_(rows.view(at::kByte).t());
}

void cast_by_operators(const at::Tensor& matrix, const Fp8Scale& scale, const Fp8Matrix& to) {
  const auto format = to.rows.defined() ? to.rows.scalar_type() : to.columns.scalar_type();
  const auto largest = largest_of(format);
  const auto cast = matrix.to(at::kFloat).mul(scale.factor).clamp_(-largest, largest).to(format);
  if (to.rows.defined()) to.rows.view(at::kByte).copy_(cast.view(at::kByte));
  if (to.columns.defined()) copy_transposed(cast, to.columns);
  if (scale.most.defined()) see_largest(matrix, scale.most);
}

/// By cuBLASLt. @return false if there is no such product
bool multiply(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& bias, const at::Tensor& to, bool adds) {
  if (!a.rows.is_cuda()) return false;
  return devices::context_of(a.rows.device().type()).multiply({a.rows, b.rows.t(), bias, to, adds, a.unit, b.unit});
}

at::Tensor product_by_operators(const Fp8Rows& a, const Fp8Rows& b) {
  return at::mm(a.rows.to(at::kFloat), b.rows.to(at::kFloat).t()).mul_(a.unit.mul(b.unit));
}

/// Writes what `to` has.
void cast_into(const at::Tensor& matrix, const Fp8Scale& scale, const Fp8Matrix& to) {
  AUTOPAR_ASSERT(matrix.dim() == 2 && matrix.size(1) % kPack == 0, "a matrix whose rows are no whole packs of 8 bits");
  if (matrix.scalar_type() == at::kBFloat16 && has_kernels_for(matrix))
    cast_in_kernels(matrix, scale, to);
  else
    cast_by_operators(matrix, scale, to);
}

}  // namespace

Fp8Matrix cast_to_fp8(const at::Tensor& matrix, c10::ScalarType format, const Fp8Scale& scale, Fp8Sides sides) {
  const at::NoGradGuard no_grad;
  const auto options = matrix.options().dtype(format);
  Fp8Matrix to;
  to.unit = scale.unit;
  if (sides != Fp8Sides::kColumns) to.rows = at::empty(matrix.sizes(), options);
  if (sides != Fp8Sides::kRows) to.columns = at::empty({matrix.size(1), pitch_of(matrix)}, options);
  cast_into(matrix, scale, to);
  return to;
}

void put_fp8_rows(const at::Tensor& matrix, const Fp8Scale& scale, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  cast_into(matrix.to(at::kBFloat16), scale, {rows, {}, {}});
}

at::Tensor fp8_columns(const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const auto columns = at::empty({rows.size(1), pitch_of(rows)}, rows.options());
  if (!has_kernels_for(rows)) {
    copy_transposed(rows, columns);
    return columns;
  }
  const auto dense = detail::dense_in_packs(rows);
  detail::launch(dense, kernels::kFp8CastKernels, "transpose", over_tiles(dense), detail::data_of(dense),
                 detail::memory_of(columns), static_cast<int>(dense.size(0)), static_cast<int>(dense.size(1)),
                 static_cast<int>(pitch_of(dense)));
  return columns;
}

void see_largest(const at::Tensor& values, const at::Tensor& most) {
  const at::NoGradGuard no_grad;
  if (values.numel() > 0) most.copy_(at::maximum(most, values.abs().amax().to(at::kFloat).view(most.sizes())));
}

at::Tensor fp8_product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& bias, c10::ScalarType type) {
  const at::NoGradGuard no_grad;
  const auto to = at::empty({a.rows.size(0), b.rows.size(0)}, a.rows.options().dtype(type));
  if (multiply(a, b, bias, to, false)) return to;
  auto product = product_by_operators(a, b);
  if (bias.defined()) product.add_(bias);
  return product.to(type);
}

void put_fp8_product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& sum, Destination destination) {
  const at::NoGradGuard no_grad;
  const bool adds = destination == Destination::kAdds;
  if (multiply(a, b, {}, sum, adds)) return;
  const auto product = product_by_operators(a, b);
  static_cast<void>(adds ? sum.add_(product) : sum.copy_(product));
}

}  // namespace autopar::fused
