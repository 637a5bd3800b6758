#include "torch/autograd/fp8_linear.hpp"

#include <utility>

#include <autopar/core/assert.hpp>

#include "torch/autograd/gradient_of_bias.hpp"
#include "torch/fused/rows_of.hpp"

namespace autopar::autograd {

namespace {

using fused::Fp8Sides;

fused::Fp8Scale unseen(fused::Fp8Scale scale) {
  scale.most.reset();
  return scale;
}

/// Whether the backward's form of the weight is made by the forward, in the same pass, and kept. With x in 8 bits it
/// then takes no more memory than x in 16 bits.
bool keeps_transposed(const at::Tensor& rows, const at::Tensor& weight) { return rows.size(0) >= weight.size(0); }

/// The weight as the forward reads it, and its transpose if that is kept. One in 8 bits is gathered again for the
/// backward, which makes the transpose then.
fused::Fp8Matrix weight_in_fp8(const fp8::Layer& layer, const at::Tensor& weight, bool seen, bool keeps) {
  const auto scale = layer.of_weight();
  if (is_in_fp8(weight)) return {weight, {}, scale.unit};
  return fused::cast_to_fp8(weight, at::kFloat8_e4m3fn, seen ? scale : unseen(scale),
                            keeps ? Fp8Sides::kBoth : Fp8Sides::kRows);
}

/// The transpose of the weight that the forward read, for the backward.
fused::Fp8Rows transposed_weight(const fp8::Layer& layer, const at::Tensor& weight) {
  const auto scale = unseen(layer.of_weight());
  if (is_in_fp8(weight)) return {fused::fp8_columns(weight), scale.unit};
  const auto made = fused::cast_to_fp8(weight, at::kFloat8_e4m3fn, scale, Fp8Sides::kColumns);
  return {made.columns, made.unit};
}

}  // namespace

bool is_in_fp8(const at::Tensor& weight) { return weight.scalar_type() == at::kFloat8_e4m3fn; }

bool runs_in_fp8(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight) {
  const bool may_run = layer.is_ready && x.scalar_type() == at::kBFloat16 && x.numel() > 0 && weight.requires_grad();
  AUTOPAR_ASSERT(may_run || !is_in_fp8(weight), "a weight was gathered in 8 bits for a layer that runs in 16");
  return may_run && (weight.scalar_type() == at::kBFloat16 || is_in_fp8(weight));
}

Fp8Result fp8_linear(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     bool seen) {
  const auto of_x = fused::cast_to_fp8(fused::rows_of(x), at::kFloat8_e4m3fn, seen ? layer.x() : unseen(layer.x()),
                                       seen ? Fp8Sides::kBoth : Fp8Sides::kRows);
  const auto of_weight = weight_in_fp8(layer, weight, seen, seen && keeps_transposed(fused::rows_of(x), weight));
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const auto y = fused::fp8_product({of_x.rows, of_x.unit}, {of_weight.rows, of_weight.unit}, bias, x.scalar_type());
  Fp8Result result{y.view(sizes), {of_x.columns, of_x.unit}, {}};
  if (of_weight.columns.defined()) result.weight = {of_weight.columns, of_weight.unit};
  return result;
}

BackwardFormulas fp8_formulas(fp8::Layer& layer, const at::Tensor& gradient, const fused::Fp8Rows& x,
                              const fused::Fp8Rows& weight) {
  layer.has_seen_gradient = true;
  const auto rows = fused::rows_of(gradient);
  const auto cast = fused::cast_to_fp8(rows, at::kFloat8_e5m2, layer.gradient(), Fp8Sides::kBoth);
  const fused::Fp8Rows of_gradient{cast.columns, cast.unit};
  BackwardFormulas formulas;
  formulas.input = [&layer, cast, weight, gradient] {
    const auto transposed = weight.unit.defined() ? weight : transposed_weight(layer, weight.rows);
    auto sizes = gradient.sizes().vec();
    sizes.back() = transposed.rows.size(0);
    return fused::fp8_product({cast.rows, cast.unit}, transposed, {}, gradient.scalar_type()).view(sizes);
  };
  formulas.weights = [of_gradient, x, gradient, rows](bool with_bias) {
    std::vector<at::Tensor> made{fused::fp8_product(of_gradient, x, {}, at::kFloat)};
    if (with_bias) made.push_back(gradient_of_bias(gradient, rows));
    return made;
  };
  const auto put = [&](fused::Destination destination) {
    return [=](const std::vector<at::Tensor>& sums) {
      fused::put_fp8_product(of_gradient, x, sums[0], destination);
      if (sums.size() > 1) put_gradient_of_bias(gradient, rows, sums[1], destination);
    };
  };
  formulas.add_weights = put(fused::Destination::kAdds);
  formulas.write_weights = put(fused::Destination::kIsWritten);
  return formulas;
}

void see_operands(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight) {
  fused::see_largest(x, layer.x().most);
  fused::see_largest(weight, layer.of_weight().most);
}

void see_gradient(fp8::Layer& layer, const at::Tensor& gradient) {
  layer.has_seen_gradient = true;
  fused::see_largest(gradient, layer.gradient().most);
}

}  // namespace autopar::autograd
