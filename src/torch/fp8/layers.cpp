#include "torch/fp8/layers.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace autopar::fp8 {

namespace {

constexpr std::int64_t kOperands = 3;  ///< of a layer
constexpr float kLargestE4M3 = 448, kLargestE5M2 = 57344;

/// Scales whose reciprocals are normal numbers.
constexpr double kLeastRatio = 0x1p-100, kMostRatio = 0x1p100;

/// Each number at the begin of 16 bytes: cuBLASLt reads no others.
at::Tensor in_packs(const at::Tensor& numbers) {
  constexpr std::int64_t kNumbersOfPack = 4;
  return numbers.unsqueeze(1).expand({numbers.size(0), kNumbersOfPack}).contiguous();
}

/// The largest power of two that is not larger: normal numbers without their mantissa.
at::Tensor powers_of_two(const at::Tensor& numbers) {
  constexpr std::int64_t kExponent = 0x7f800000;
  return numbers.view(at::kInt).bitwise_and(kExponent).view(at::kFloat);
}

}  // namespace

fused::Fp8Scale Layer::x() const { return all->scale(first); }
fused::Fp8Scale Layer::of_weight() const { return all->scale(first + 1); }
fused::Fp8Scale Layer::gradient() const { return all->scale(first + 2); }
NextScale Layer::next_of_weight() const { return all->next_scale(first + 1); }

fused::Fp8Scale Layers::scale(std::int64_t operand) const { return scale_in(of_call_, operand); }

NextScale Layers::next_scale(std::int64_t operand) const { return {scale_in(next_, operand), made_}; }

fused::Fp8Scale Layers::scale_in(const Scales& scales, std::int64_t operand) const {
  return {scales.factors.narrow(0, operand, 1), scales.units.select(0, operand).narrow(0, 0, 1),
          seen_.narrow(0, operand, 1)};
}

void Layers::start(const std::vector<std::string>& weights, c10::Device device) {
  const auto operands = kOperands * static_cast<std::int64_t>(weights.size());
  const auto options = at::TensorOptions(at::kFloat).device(device);
  next_.factors = at::ones({operands}, options);
  next_.units = in_packs(next_.factors);
  seen_ = at::zeros({operands}, options);
  agreed_ = at::zeros({operands}, options);
  history_ = at::zeros({kHistory, operands}, options);
  next_history_ = history_.clone();
  not_finite_ = at::zeros({operands}, options.dtype(at::kLong));
  std::vector<float> largest;
  layers_.clear();
  by_weight_.clear();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    auto& layer = layers_.emplace_back(Layer{weights[i], this, kOperands * static_cast<std::int64_t>(i)});
    by_weight_[weights[i]] = &layer;
    largest.insert(largest.end(), {kLargestE4M3, kLargestE4M3, kLargestE5M2});
  }
  largest_ = at::tensor(largest).to(device);
  set_histories(std::exchange(waiting_, {}));
}

std::vector<bool> Layers::ready() const {
  std::vector<bool> ready;
  for (const auto& layer : layers_) ready.push_back(layer.is_ready);
  return ready;
}

bool Layers::all_ready() const { return std::ranges::all_of(layers_, &Layer::is_ready); }

std::vector<std::byte> Layers::seen_gradients() const {
  std::vector<std::byte> seen;
  for (const auto& layer : layers_) seen.push_back(std::byte{layer.has_seen_gradient});
  return seen;
}

void Layers::add_seen_gradients(std::span<const std::byte> seen) {
  for (std::size_t i = 0; i < std::min(seen.size(), layers_.size()); ++i)
    layers_[i].has_seen_gradient = layers_[i].has_seen_gradient || seen[i] != std::byte{};
}

Layer* Layers::find(const std::string& weight) {
  const auto found = by_weight_.find(weight);
  return found == by_weight_.end() ? nullptr : found->second;
}

// What is 0 was not run, and what is not finite says nothing of later calls: both leave the history as it is.
at::Tensor Layers::with_agreed() const {
  const auto counts = at::isfinite(agreed_).logical_and(agreed_.gt(0));
  const auto shifted = at::cat({history_.narrow(0, 1, kHistory - 1), agreed_.unsqueeze(0)});
  return at::where(counts, shifted, history_);
}

void Layers::begin_call() {
  const at::NoGradGuard no_grad;
  history_.copy_(next_history_);
  not_finite_.add_(at::isfinite(agreed_).logical_not());
  agreed_.zero_();
  of_call_ = {next_.factors.clone(), next_.units.clone()};
  for (auto& layer : layers_) layer.is_ready = layer.is_ready || layer.has_seen_gradient;
}

void Layers::find_scales() {
  const auto most = next_history_.amax(0);
  const auto ratio = at::where(most.gt(0), largest_.div(most), at::ones_like(most)).clamp_(kLeastRatio, kMostRatio);
  next_.factors.copy_(powers_of_two(ratio));
  next_.units.copy_(in_packs(next_.factors.reciprocal()));
  note_agreed();
}

at::Tensor Layers::take_seen(std::size_t rank, std::size_t ranks) {
  const at::NoGradGuard no_grad;
  const auto all = at::zeros({static_cast<std::int64_t>(ranks), seen_.size(0)}, seen_.options().dtype(at::kDouble));
  all.select(0, static_cast<std::int64_t>(rank)).copy_(seen_);
  seen_.zero_();
  return all;
}

void Layers::agree(const at::Tensor& seen) {
  const at::NoGradGuard no_grad;
  agreed_.copy_(at::maximum(agreed_, seen.amax(0).to(at::kFloat)));
  next_history_.copy_(with_agreed());
  find_scales();
}

namespace {

/// The columns of a layer's operands.
std::vector<at::Tensor> parts_of(const at::Tensor& history, const Layer& layer) {
  std::vector<at::Tensor> parts;
  for (std::int64_t operand = 0; operand < kOperands; ++operand)
    parts.push_back(history.select(1, layer.first + operand));
  return parts;
}

}  // namespace

std::map<std::string, History> Layers::histories() const {
  std::map<std::string, History> all;
  if (empty()) return all;
  const auto history = next_history_.cpu();
  for (const auto& layer : layers_) {
    std::vector<std::vector<float>> numbers;
    for (const auto& part : parts_of(history, layer)) {
      const auto here = part.contiguous();
      numbers.emplace_back(here.const_data_ptr<float>(), here.const_data_ptr<float>() + kHistory);
    }
    const bool is_known = std::ranges::any_of(numbers[2], [](float number) { return number > 0; });
    if (is_known) all[layer.weight] = {numbers[0], numbers[1], numbers[2]};
  }
  return all;
}

void Layers::set_histories(const std::map<std::string, History>& histories) {
  if (empty()) {
    waiting_ = histories;
    return;
  }
  const at::NoGradGuard no_grad;
  agreed_.zero_();
  seen_.zero_();
  for (auto& layer : layers_) {
    const auto found = histories.find(layer.weight);
    layer.is_ready = found != histories.end();
    layer.has_seen_gradient = false;
    const auto parts = parts_of(history_, layer);
    for (const auto& part : parts) part.zero_();
    if (!layer.is_ready) continue;
    const auto* const numbers = &found->second;
    parts[0].copy_(at::tensor(numbers->x));
    parts[1].copy_(at::tensor(numbers->of_weight));
    parts[2].copy_(at::tensor(numbers->gradient));
  }
  next_history_.copy_(history_);
  find_scales();
  of_call_ = {next_.factors.clone(), next_.units.clone()};
}

std::int64_t Layers::not_finite() const { return empty() ? 0 : not_finite_.sum().item<std::int64_t>(); }

}  // namespace autopar::fp8
