#pragma once

/// Everything that a training program needs: `namespace ap = autopar;`.
#include <autopar/fwd.hpp>

#include <autopar/core/error.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/runtime/first_sample.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/auto_parallel.hpp>
#include <autopar/torch/clip_grad_norm.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/for_whole_parameters.hpp>
#include <autopar/torch/global_mean.hpp>
#include <autopar/torch/join.hpp>
#include <autopar/torch/op_def.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>
#include <autopar/torch/optim/lbfgs.hpp>
#include <autopar/torch/optim/muon.hpp>
#include <autopar/torch/optimizer_descriptor.hpp>
#include <autopar/torch/parameter_collectives.hpp>
#include <autopar/torch/parameter_handles.hpp>
#include <autopar/version.hpp>
