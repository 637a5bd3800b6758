#include "torch/parameters/hyper_parameters.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <tuple>
#include <type_traits>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/optim/lamb.hpp>

#include "torch/parameters/optimizer_state.hpp"

namespace autopar {

namespace {

/// What torch::optim's constructors allow.
enum class Range { kFinite, kNotNegative, kBelowOne, kFlag };

bool is_within(double value, Range range) {
  if (!std::isfinite(value)) return false;
  switch (range) {
    case Range::kFinite:
      return true;
    case Range::kNotNegative:
      return value >= 0;
    case Range::kBelowOne:
      return value >= 0 && value < 1;
    case Range::kFlag:
      break;
  }
  return value == 0 || value == 1;
}

const char* words_for(Range range) {
  switch (range) {
    case Range::kFinite:
      return "finite numbers";
    case Range::kNotNegative:
      return "finite numbers from 0";
    case Range::kBelowOne:
      return "numbers from 0 to below 1";
    case Range::kFlag:
      break;
  }
  return "0 and 1";
}

/// One member of an options class.
template <class Options>
struct Setting {
  const char* name;
  Range range;
  double (*read)(const Options&);
  void (*write)(Options&, double);
};

#define AUTOPAR_SETTING(Options, member, range)                                                       \
  Setting<Options> {                                                                                  \
#member, range, [](const Options& options) { return static_cast<double>(options.member()); },       \
        [](Options& options, double value) {                                                            \
          options.member() = static_cast<std::remove_cvref_t<decltype(options.member())>>(value);       \
        } \
  }
#define AUTOPAR_BETA(Options, index)                                                     \
  Setting<Options> {                                                                     \
    index == 0 ? "beta1" : "beta2", Range::kBelowOne,                                    \
        [](const Options& options) { return std::get<index>(options.betas()); },         \
        [](Options& options, double value) { std::get<index>(options.betas()) = value; } \
  }
#define AUTOPAR_ADAM_SETTINGS(Options)                                                                   \
  AUTOPAR_SETTING(Options, lr, Range::kNotNegative), AUTOPAR_BETA(Options, 0), AUTOPAR_BETA(Options, 1), \
      AUTOPAR_SETTING(Options, eps, Range::kNotNegative), AUTOPAR_SETTING(Options, weight_decay, Range::kNotNegative)

std::vector<Setting<torch::optim::SGDOptions>> settings(const torch::optim::SGDOptions*) {
  using Options = torch::optim::SGDOptions;
  return {AUTOPAR_SETTING(Options, lr, Range::kNotNegative), AUTOPAR_SETTING(Options, momentum, Range::kNotNegative),
          AUTOPAR_SETTING(Options, dampening, Range::kFinite),
          AUTOPAR_SETTING(Options, weight_decay, Range::kNotNegative),
          AUTOPAR_SETTING(Options, nesterov, Range::kFlag)};
}

std::vector<Setting<torch::optim::AdamOptions>> settings(const torch::optim::AdamOptions*) {
  using Options = torch::optim::AdamOptions;
  return {AUTOPAR_ADAM_SETTINGS(Options), AUTOPAR_SETTING(Options, amsgrad, Range::kFlag)};
}

std::vector<Setting<torch::optim::AdamWOptions>> settings(const torch::optim::AdamWOptions*) {
  using Options = torch::optim::AdamWOptions;
  return {AUTOPAR_ADAM_SETTINGS(Options), AUTOPAR_SETTING(Options, amsgrad, Range::kFlag)};
}

std::vector<Setting<optim::LAMBOptions>> settings(const optim::LAMBOptions*) {
  return {AUTOPAR_ADAM_SETTINGS(optim::LAMBOptions)};
}

std::vector<Setting<torch::optim::RMSpropOptions>> settings(const torch::optim::RMSpropOptions*) {
  using Options = torch::optim::RMSpropOptions;
  return {AUTOPAR_SETTING(Options, lr, Range::kNotNegative),
          AUTOPAR_SETTING(Options, alpha, Range::kNotNegative),
          AUTOPAR_SETTING(Options, eps, Range::kNotNegative),
          AUTOPAR_SETTING(Options, weight_decay, Range::kNotNegative),
          AUTOPAR_SETTING(Options, momentum, Range::kNotNegative),
          AUTOPAR_SETTING(Options, centered, Range::kFlag)};
}

std::vector<Setting<torch::optim::AdagradOptions>> settings(const torch::optim::AdagradOptions*) {
  using Options = torch::optim::AdagradOptions;
  return {AUTOPAR_SETTING(Options, lr, Range::kNotNegative), AUTOPAR_SETTING(Options, lr_decay, Range::kNotNegative),
          AUTOPAR_SETTING(Options, weight_decay, Range::kNotNegative),
          AUTOPAR_SETTING(Options, initial_accumulator_value, Range::kNotNegative),
          AUTOPAR_SETTING(Options, eps, Range::kNotNegative)};
}

#undef AUTOPAR_ADAM_SETTINGS
#undef AUTOPAR_BETA
#undef AUTOPAR_SETTING

/// Calls `body` with the options class of the optimizer as a null pointer of that type.
template <class Body>
auto with_options_class(const torch::optim::Optimizer& optimizer, Body body) {
  switch (optimizer_kind(optimizer)) {
    case OptimizerKind::kSgd:
      return body(static_cast<torch::optim::SGDOptions*>(nullptr));
    case OptimizerKind::kAdam:
      return body(static_cast<torch::optim::AdamOptions*>(nullptr));
    case OptimizerKind::kAdamW:
      return body(static_cast<torch::optim::AdamWOptions*>(nullptr));
    case OptimizerKind::kRmsProp:
      return body(static_cast<torch::optim::RMSpropOptions*>(nullptr));
    case OptimizerKind::kLamb:
      return body(static_cast<optim::LAMBOptions*>(nullptr));
    case OptimizerKind::kAdagrad:
      break;
  }
  return body(static_cast<torch::optim::AdagradOptions*>(nullptr));
}

[[noreturn]] void refuse(std::size_t group, const std::string& reason) {
  throw CheckpointError("parameter group " + std::to_string(group) + " of the optimizer: " + reason);
}

/// What is wrong with values that are fine each by itself, if anything.
std::string conflict(const torch::optim::SGDOptions& options) {
  if (!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0)) return {};
  return "nesterov needs a momentum and no dampening";
}
std::string conflict(const torch::optim::OptimizerOptions&) { return {}; }

template <class Options>
void set_values(Options& options, const HyperParameters& values, std::size_t group) {
  const auto known = settings(&options);
  for (const auto& setting : known) {
    const auto found = values.find(setting.name);
    if (found == values.end()) refuse(group, std::string("'") + setting.name + "' is missing");
    if (!is_within(found->second, setting.range)) {
      std::ostringstream text;
      text << setting.name << " = " << found->second << ", where torch::optim takes " << words_for(setting.range);
      refuse(group, text.str());
    }
    setting.write(options, found->second);
  }
  for (const auto& [name, value] : values) {
    const auto is_it = [&, &given = name](const auto& setting) { return given == setting.name; };
    if (std::none_of(known.begin(), known.end(), is_it)) refuse(group, "'" + name + "' is none of its options");
  }
  if (const auto reason = conflict(options); !reason.empty()) refuse(group, reason);
}

}  // namespace

std::vector<HyperParameters> hyper_parameters(const torch::optim::Optimizer& optimizer) {
  return with_options_class(optimizer, [&]<class Options>(Options* of_class) {
    std::vector<HyperParameters> groups;
    for (const auto& group : optimizer.param_groups()) {
      auto& values = groups.emplace_back();
      const auto& options = static_cast<const Options&>(group.options());
      for (const auto& setting : settings(of_class)) values[setting.name] = setting.read(options);
    }
    return groups;
  });
}

std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_with(const torch::optim::Optimizer& optimizer,
                                                                          const std::vector<HyperParameters>& groups) {
  if (groups.size() != optimizer.param_groups().size()) {
    throw CheckpointError("the checkpoint's optimizer has " + std::to_string(groups.size()) +
                          " parameter groups, this one " + std::to_string(optimizer.param_groups().size()));
  }
  return with_options_class(optimizer, [&]<class Options>(Options*) {
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> all;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto options = std::make_unique<Options>(static_cast<const Options&>(optimizer.param_groups()[g].options()));
      set_values(*options, groups[g], g);
      all.push_back(std::move(options));
    }
    return all;
  });
}

void set_options(torch::optim::Optimizer& optimizer,
                 const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>& options) {
  with_options_class(optimizer, [&]<class Options>(Options*) {
    for (std::size_t g = 0; g < options.size(); ++g) {
      static_cast<Options&>(optimizer.param_groups()[g].options()) = static_cast<const Options&>(*options[g]);
    }
    return 0;
  });
}

}  // namespace autopar
