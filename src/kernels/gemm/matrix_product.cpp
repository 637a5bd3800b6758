#include "kernels/gemm/matrix_product.hpp"

#include <algorithm>

#include <ATen/Context.h>

namespace autopar::kernels {

namespace {

constexpr std::int64_t kPack = 16, kLine = 256;

std::int64_t alignment_of(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return address % kLine == 0 ? kLine : address % kPack == 0 ? kPack : 1;
}

struct MatrixLayout {
  std::int64_t pitch = 0;
  bool by_columns = false;
};

std::optional<MatrixLayout> layout_of(const at::Tensor& matrix) {
  const auto in_packs = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(matrix.element_size()) % kPack == 0;
  };
  const auto lies_by = [&](std::int64_t inner, std::int64_t outer) {
    return matrix.stride(inner) == 1 && matrix.stride(outer) >= matrix.size(inner) && in_packs(matrix.size(inner)) &&
           in_packs(matrix.stride(outer));
  };
  if (lies_by(1, 0)) return MatrixLayout{matrix.stride(0), false};
  if (lies_by(0, 1)) return MatrixLayout{matrix.stride(1), true};
  return std::nullopt;
}

/// There is no product of two gradients.
bool is_8_bit_product(const MatrixProduct& product) {
  const auto is_8_bit = [](const at::Tensor& matrix) {
    return matrix.scalar_type() == c10::kFloat8_e4m3fn || matrix.scalar_type() == c10::kFloat8_e5m2;
  };
  const auto is_unit = [&](const at::Tensor& unit) {
    return unit.defined() && unit.numel() == 1 && unit.scalar_type() == c10::kFloat &&
           unit.device() == product.a.device();
  };
  const bool of_gradients =
      product.a.scalar_type() == c10::kFloat8_e5m2 && product.b.scalar_type() == c10::kFloat8_e5m2;
  return is_8_bit(product.a) && is_8_bit(product.b) && !of_gradients && is_unit(product.unit_a) &&
         is_unit(product.unit_b);
}

bool are_of_one_product(const MatrixProduct& product) {
  const auto& [a, b, bias, to, adds, unit_a, unit_b] = product;
  if (a.dim() != 2 || b.dim() != 2 || to.dim() != 2 || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(1) != b.size(0) || to.size(0) != a.size(0) || to.size(1) != b.size(1)) return false;
  const bool in_8_bits = is_8_bit_product(product);
  const auto type = in_8_bits ? c10::kBFloat16 : a.scalar_type();
  const bool of_type = (in_8_bits || ((type == c10::kHalf || type == c10::kBFloat16) && b.scalar_type() == type)) &&
                       (to.scalar_type() == type || (to.scalar_type() == c10::kFloat && !bias.defined()));
  const bool with_bias = !bias.defined() || (bias.dim() == 1 && bias.size(0) == b.size(1) && bias.stride(0) == 1 &&
                                             bias.scalar_type() == type && bias.device() == a.device());
  return of_type && with_bias && b.device() == a.device() && to.device() == a.device();
}

}  // namespace

std::optional<ProductForm> form_of_product(const MatrixProduct& product) {
  if (!are_of_one_product(product)) return std::nullopt;
  const auto& [a, b, bias, to, adds, unit_a, unit_b] = product;
  const auto of_a = layout_of(a), of_b = layout_of(b), of_to = layout_of(to);
  if (!of_a || !of_b || !of_to || of_to->by_columns) return std::nullopt;
  if (a.element_size() == 1 && (of_a->by_columns || !of_b->by_columns)) return std::nullopt;
  auto alignment = std::min({alignment_of(a), alignment_of(b), alignment_of(to)});
  if (bias.defined()) alignment = std::min(alignment, alignment_of(bias));
  if (alignment < kPack) return std::nullopt;
  return ProductForm{.rows = a.size(0),
                     .inner = a.size(1),
                     .columns = b.size(1),
                     .pitch_a = of_a->pitch,
                     .pitch_b = of_b->pitch,
                     .pitch = of_to->pitch,
                     .a_by_columns = of_a->by_columns,
                     .b_by_columns = of_b->by_columns,
                     .has_bias = bias.defined(),
                     .type_a = a.scalar_type(),
                     .type_b = b.scalar_type(),
                     .type_to = to.scalar_type(),
                     .alignment = alignment,
                     .left_free = at::globalContext()._SMCarveout_EXPERIMENTAL().value_or(0)};
}

std::size_t fastest_alike(const std::vector<AlgorithmTrial>& trials) {
  constexpr float kOfSmallTiles = 1.06F, kFaster = 0.99F;
  const auto score = [&](std::size_t i) {
    return trials[i].milliseconds * (trials[i].has_large_tiles ? 1 : kOfSmallTiles);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < trials.size(); ++i) {
    if (trials[i].has_same_bits && score(i) < score(best)) best = i;
  }
  return score(best) <= kFaster * score(0) ? best : 0;
}

}  // namespace autopar::kernels
