#include "torch/interpret/padded_rows.hpp"

#include <algorithm>
#include <cstdint>

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "torch/ir/cross_entropy.hpp"

namespace autopar {

namespace {

constexpr std::int64_t kPack = 8;  // 16-bit numbers in 16 bytes

/// [..., outputs] in memory of whole packs a row.
at::Tensor linear_in_padded_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto rows = x.reshape({-1, weight.size(1)});
  const auto outputs = weight.size(0), width = (outputs + kPack - 1) / kPack * kPack;
  auto result = at::empty({rows.size(0), width}, x.options()).narrow(1, 0, outputs);
  if (bias.defined())
    at::addmm_out(result, bias, rows, weight.t());
  else
    at::mm_out(result, rows, weight.t());
  auto sizes = x.sizes().vec();
  sizes.back() = outputs;
  return result.view(sizes);
}

}  // namespace

bool may_pad_rows(const OpGraph& graph, OpId linear) {
  if (!graph.is(linear, "aten::linear")) return false;
  const auto storage = graph.value(graph.output(linear)).storage;
  for (std::size_t i = linear.index() + 1; i < graph.ops.size(); ++i) {
    const auto loss = OpId::of(i);
    if (graph.is(loss, kCrossEntropy) &&
        graph.value(graph.input(loss, CrossEntropyArgument::kLogits)).storage == storage)
      return storage.valid() && is_last_reader_of_logits(graph, loss);
  }
  return false;
}

void proceed_in_padded_rows(ReplayCall& call) {
  const auto x = call.stack[0].toTensor(), weight = call.stack[1].toTensor();
  const auto bias = call.stack[2].isTensor() ? call.stack[2].toTensor() : at::Tensor();
  const bool gains = x.is_cuda() && c10::isReducedFloatingType(x.scalar_type()) && weight.size(0) % kPack != 0 &&
                     x.dim() >= 2 && x.scalar_type() == weight.scalar_type() &&
                     (!bias.defined() || bias.scalar_type() == x.scalar_type());
  if (!gains) {
    call.proceed();
    return;
  }
  auto result = linear_in_padded_rows(x, weight, bias);
  call.stack.clear();
  call.stack.emplace_back(std::move(result));
}

}  // namespace autopar
