#include "torch/optim/reductions.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace autopar::optim::detail {

namespace {

constexpr std::int64_t kPiece = 1 << 13;       // elements converted to double at a time, on CPUs
constexpr std::int64_t kPieceOfDot = 1 << 22;  // elements converted to double at a time, on other devices

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.as_strided({tensor.numel()}, {1}) : tensor.reshape({-1});
}

at::Tensor norm_by_pieces(const at::Tensor& tensor, double p) {
  std::vector<at::Tensor> of_pieces;
  for (const auto& piece : flat(tensor).split(kPiece))
    of_pieces.push_back(at::linalg_vector_norm(piece, p, {}, false, at::kDouble));
  return at::linalg_vector_norm(at::stack(of_pieces), p);
}

}  // namespace

at::Tensor norms_of(const std::vector<at::Tensor>& tensors, double p) {
  const auto has_some = [](const at::Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; };
  const auto first = std::find_if(tensors.begin(), tensors.end(), has_some);
  const auto count = static_cast<std::int64_t>(tensors.size());
  if (first == tensors.end()) return at::zeros({count}, at::kDouble);
  auto norms = at::zeros({count}, at::dtype(at::kDouble).device(first->device()));
  std::vector<at::Tensor> at_once, places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!has_some(tensors[i])) continue;
    const auto place = norms.select(0, static_cast<std::int64_t>(i));
    if (tensors[i].is_cpu()) {
      place.copy_(norm_by_pieces(tensors[i], p));
      continue;
    }
    at_once.push_back(tensors[i]);
    places.push_back(place);
  }
  if (at_once.empty()) return norms;
  const auto found = at::_foreach_norm(at_once, p, at::kDouble);
  for (std::size_t i = 0; i < found.size(); ++i) places[i].copy_(found[i]);
  return norms;
}

at::Tensor dot_of(const at::Tensor& a, const at::Tensor& b) {
  const bool lies_alike = a.strides() == b.strides() && a.is_non_overlapping_and_dense();
  const auto one = lies_alike ? flat(a) : a.reshape({-1}), other = lies_alike ? flat(b) : b.reshape({-1});
  if (one.scalar_type() == at::kDouble) return at::dot(one, other);
  auto sum = at::zeros({}, at::dtype(at::kDouble).device(one.device()));
  const auto piece = one.is_cpu() ? kPiece : kPieceOfDot;
  for (std::int64_t begin = 0; begin < one.numel(); begin += piece) {
    const auto end = std::min(begin + piece, one.numel());
    sum.add_(at::dot(one.slice(0, begin, end).to(at::kDouble), other.slice(0, begin, end).to(at::kDouble)));
  }
  return sum;
}

}  // namespace autopar::optim::detail
