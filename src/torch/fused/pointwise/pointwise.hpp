#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "kernels/kernel_source.hpp"
#include "torch/fused/pointwise/gradient.hpp"

namespace autopar::fused::pointwise {

/// The values that `autopar::pointwise` keeps for backward where its kernels run. The answer is cached.
/// @param text  of a program that has an expression
/// @param wanted  by input: whether its gradient is wanted
[[nodiscard]] const std::vector<Kept>& kept_by(const std::string& text, const std::vector<bool>& wanted);

/// The kernels of all point-wise programs of a graph, forward and backward, each once.
[[nodiscard]] std::vector<kernels::KernelSource> kernels_of(const OpGraph& graph);

/// The operator with expressions instead of kernels, on any device. Forward, kept values and backward are the same as
/// with kernels.
[[nodiscard]] std::vector<at::Tensor> call_by_expressions(at::TensorList inputs, const std::string& text);

}  // namespace autopar::fused::pointwise
