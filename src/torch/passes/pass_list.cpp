#include "torch/passes/pass_list.hpp"

#include <utility>

#include "torch/fused/fused_ops.hpp"
#include "torch/passes/cast_hoist.hpp"
#include "torch/passes/channels_last.hpp"
#include "torch/passes/class_loss_fold.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/passes/select_fold.hpp"

namespace autopar::passes {

namespace {

using enum PassCondition;

template <OpGraph (*rewrite)(OpGraph)>
OpGraph run(OpGraph graph, const PassTarget&) {
  return rewrite(std::move(graph));
}

template <fused::FusedOp (*op)()>
OpGraph put_in(OpGraph graph, const PassTarget&) {
  return op().pattern(std::move(graph));
}

OpGraph run_fold_linear(OpGraph graph, const PassTarget& target) {
  return fold_linear(std::move(graph), target.device);
}

constexpr Pass kPasses[] = {
    // Before passes that match layers: autocast casts a transposed weight, and a layer's weight is a parameter or its
    // cast.
    {"hoist_parameter_casts", kAlways, run<hoist_parameter_casts>},
    {"fold_linear", kAlways, run_fold_linear},
    {"fold_selects", kAlways, run<fold_selects>},
    // Before all passes that match cross entropy as one operator.
    {"fold_class_loss", kAlways, run<fold_class_loss>},
    // After the casts' move: it sets the layout of their results.
    {"lay_out_weight_copies", kAlways, run<lay_out_weight_copies>},
    {"fold_batch_norms", kFusion, put_in<fused::batch_norm_relu>},
    {"fold_max_pools", kFusion, put_in<fused::max_pool2d>},
    {"fold_layer_norms", kFusion, put_in<fused::add_layer_norm>},
    {"fold_class_loss_casts", kFusion, put_in<fused::cross_entropy_loss>},
    // After the loss casts, which may stand between a linear layer and its loss.
    {"fold_class_heads", kChunkedLogits, put_in<fused::linear_cross_entropy>},
    // Last: it joins all point-wise operators that the earlier patterns have left.
    {"fold_pointwise", kFusion, put_in<fused::joined_pointwise>},
};

}  // namespace

std::span<const Pass> pass_list() { return kPasses; }

}  // namespace autopar::passes
