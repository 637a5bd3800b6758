#include <string>
#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "torch/parameters/optimizer_state.hpp"

// The state of torch::optim's optimizers, and their options with the values that their constructors allow.
namespace autopar::parameters {

namespace {

using Range = OptimizerDescriptor::Range;

OptimizerDescriptor sgd() {
  using torch::optim::SGDOptions, torch::optim::SGDParamState;
  return describe_optimizer<torch::optim::SGD, SGDOptions, SGDParamState>("SGD")
      .tensor("momentum_buffer", &SGDParamState::momentum_buffer,
              [](const SGDOptions& options) { return options.momentum() != 0; })
      .option("lr", &SGDOptions::lr, Range::kNotNegative)
      .option("momentum", &SGDOptions::momentum, Range::kNotNegative)
      .option("dampening", &SGDOptions::dampening, Range::kFinite)
      .option("weight_decay", &SGDOptions::weight_decay, Range::kNotNegative)
      .option("nesterov", &SGDOptions::nesterov, Range::kFlag)
      .conflict([](const SGDOptions& options) -> std::string {
        if (!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0)) return {};
        return "nesterov needs a momentum and no dampening";
      });
}

template <class Optimizer, class Options, class State>
OptimizerDescriptor adam(const char* name) {
  return describe_optimizer<Optimizer, Options, State>(name)
      .counter("step", &State::step)
      .tensor("exp_avg", &State::exp_avg)
      .tensor("exp_avg_sq", &State::exp_avg_sq)
      .tensor("max_exp_avg_sq", &State::max_exp_avg_sq, [](const Options& options) { return options.amsgrad(); })
      .option("lr", &Options::lr, Range::kNotNegative)
      .option(
          "beta1", [](Options& options) -> double& { return std::get<0>(options.betas()); }, Range::kBelowOne)
      .option(
          "beta2", [](Options& options) -> double& { return std::get<1>(options.betas()); }, Range::kBelowOne)
      .option("eps", &Options::eps, Range::kNotNegative)
      .option("weight_decay", &Options::weight_decay, Range::kNotNegative)
      .option("amsgrad", &Options::amsgrad, Range::kFlag);
}

OptimizerDescriptor rmsprop() {
  using torch::optim::RMSpropOptions, torch::optim::RMSpropParamState;
  return describe_optimizer<torch::optim::RMSprop, RMSpropOptions, RMSpropParamState>("RMSprop")
      .counter("step", &RMSpropParamState::step)
      .tensor("square_avg", &RMSpropParamState::square_avg)
      .tensor("momentum_buffer", &RMSpropParamState::momentum_buffer,
              [](const RMSpropOptions& options) { return options.momentum() > 0; })
      .tensor("grad_avg", &RMSpropParamState::grad_avg,
              [](const RMSpropOptions& options) { return options.centered(); })
      .option("lr", &RMSpropOptions::lr, Range::kNotNegative)
      .option("alpha", &RMSpropOptions::alpha, Range::kNotNegative)
      .option("eps", &RMSpropOptions::eps, Range::kNotNegative)
      .option("weight_decay", &RMSpropOptions::weight_decay, Range::kNotNegative)
      .option("momentum", &RMSpropOptions::momentum, Range::kNotNegative)
      .option("centered", &RMSpropOptions::centered, Range::kFlag);
}

OptimizerDescriptor adagrad() {
  using torch::optim::AdagradOptions, torch::optim::AdagradParamState;
  return describe_optimizer<torch::optim::Adagrad, AdagradOptions, AdagradParamState>("Adagrad")
      .counter("step", &AdagradParamState::step)
      .tensor("sum", &AdagradParamState::sum)
      .option("lr", &AdagradOptions::lr, Range::kNotNegative)
      .option("lr_decay", &AdagradOptions::lr_decay, Range::kNotNegative)
      .option("weight_decay", &AdagradOptions::weight_decay, Range::kNotNegative)
      .option("initial_accumulator_value", &AdagradOptions::initial_accumulator_value, Range::kNotNegative)
      .option("eps", &AdagradOptions::eps, Range::kNotNegative);
}

}  // namespace

const OptimizerDescriptor* known_descriptor(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  static const OptimizerDescriptor kSgd = sgd(), kAdam = adam<Adam, AdamOptions, AdamParamState>("Adam"),
                                   kAdamW = adam<AdamW, AdamWOptions, AdamWParamState>("AdamW"), kRmsProp = rmsprop(),
                                   kAdagrad = adagrad();
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) return &kSgd;
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return &kAdam;
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) return &kAdamW;
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) return &kRmsProp;
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) return &kAdagrad;
  return nullptr;
}

}  // namespace autopar::parameters
