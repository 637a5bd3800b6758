#include "torch/autograd/custom_functions.hpp"

#include <algorithm>

#include "ops/rules.hpp"
#include "torch/autograd/attention_function.hpp"
#include "torch/autograd/class_loss_function.hpp"
#include "torch/autograd/gelu_function.hpp"
#include "torch/autograd/view_parts.hpp"
#include "torch/fused/column_sums.hpp"

namespace autopar::autograd {

namespace {

bool makes_gradient_in_place(const FunctionSite& site) {
  return ops::gradient_place(site.graph, site.op) != GradientPlace::kNew;
}
bool sums_columns_of_gelu(const FunctionSite& site) {
  return site.device.is_cuda() && reads_linear_alone(site.graph, site.uses, site.op) &&
         fused::has_column_sums(site.device);
}
bool is_gelu_on_gpu(const FunctionSite& site) { return site.device.is_cuda() && is_gelu(site.graph, site.op); }
bool attends_on_gpu(const FunctionSite& site) {
  return site.device.is_cuda() && attends_without_mask(site.graph, site.op);
}
bool takes_layer_apart(const FunctionSite& site) { return takes_linear_apart(site.graph, site.uses, site.op); }
bool takes_tensor_apart(const FunctionSite& site) { return takes_apart(site.graph, site.op); }

constexpr CustomFunction kFunctions[] = {
    {"gradient in place", makes_gradient_in_place, run_with_gradient_in_place},
    // Before plain GELU: the same, with the bias gradient of the layer before it.
    {"GELU and sums of columns", sums_columns_of_gelu, run_gelu_with_bias_gradient},
    {"GELU", is_gelu_on_gpu, run_gelu},
    {"joined gradients of attention", attends_on_gpu, run_attention_with_joined_gradients},
    // Before plain parts: the same, with the bias gradient of the layer.
    {"parts of a layer's result", takes_layer_apart, run_parts_of_linear},
    {"parts", takes_tensor_apart, run_parts},
};

}  // namespace

const CustomFunction* custom_function_of(const FunctionSite& site) {
  const auto found = std::ranges::find_if(kFunctions, [&](const CustomFunction& each) { return each.applies(site); });
  return found == std::end(kFunctions) ? nullptr : &*found;
}

}  // namespace autopar::autograd
