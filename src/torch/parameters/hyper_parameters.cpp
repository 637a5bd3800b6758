#include "torch/parameters/hyper_parameters.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>

#include "torch/parameters/optimizer_state.hpp"

namespace autopar::parameters {

namespace {

using Range = OptimizerDescriptor::Range;

bool is_within(double value, Range range) {
  if (!std::isfinite(value)) return false;
  switch (range) {
    case Range::kFinite:
      return true;
    case Range::kNotNegative:
      return value >= 0;
    case Range::kBelowOne:
      return value >= 0 && value < 1;
    case Range::kCount:
      return value >= 0 && value <= 0x1p53 && value == std::floor(value);
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
    case Range::kCount:
      return "whole numbers from 0";
    case Range::kFlag:
      break;
  }
  return "0 and 1";
}

[[noreturn]] void refuse(std::size_t group, const std::string& reason) {
  throw CheckpointError("parameter group " + std::to_string(group) + " of the optimizer: " + reason);
}

void set_values(const OptimizerDescriptor& descriptor, torch::optim::OptimizerOptions& options,
                const HyperParameters& values, std::size_t group) {
  const auto& known = descriptor.hyper_parameters;
  for (const auto& setting : known) {
    const auto found = values.find(setting.name);
    if (found == values.end()) refuse(group, "'" + setting.name + "' is missing");
    if (!is_within(found->second, setting.range)) {
      std::ostringstream text;
      text << setting.name << " = " << found->second << ", where " << descriptor.name << " takes "
           << words_for(setting.range);
      refuse(group, text.str());
    }
    setting.write(options, found->second);
  }
  for (const auto& [name, value] : values) {
    const auto is_it = [&, &given = name](const auto& setting) { return given == setting.name; };
    if (std::none_of(known.begin(), known.end(), is_it)) refuse(group, "'" + name + "' is none of its options");
  }
  if (!descriptor.conflict) return;
  if (const auto reason = descriptor.conflict(options); !reason.empty()) refuse(group, reason);
}

}  // namespace

std::vector<HyperParameters> hyper_parameters(const torch::optim::Optimizer& optimizer) {
  const auto& known = descriptor_of(optimizer).hyper_parameters;
  std::vector<HyperParameters> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& values = groups.emplace_back();
    for (const auto& setting : known) values[setting.name] = setting.read(group.options());
  }
  return groups;
}

std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_with(const torch::optim::Optimizer& optimizer,
                                                                          const std::vector<HyperParameters>& groups) {
  if (groups.size() != optimizer.param_groups().size()) {
    throw CheckpointError("the checkpoint's optimizer has " + std::to_string(groups.size()) +
                          " parameter groups, this one " + std::to_string(optimizer.param_groups().size()));
  }
  const auto& descriptor = descriptor_of(optimizer);
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> all;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    all.push_back(optimizer.param_groups()[g].options().clone());
    set_values(descriptor, *all.back(), groups[g], g);
  }
  return all;
}

void set_options(torch::optim::Optimizer& optimizer,
                 const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>& options) {
  const auto& known = descriptor_of(optimizer).hyper_parameters;
  for (std::size_t g = 0; g < options.size(); ++g) {
    auto& mine = optimizer.param_groups()[g].options();
    for (const auto& setting : known) setting.write(mine, setting.read(*options[g]));
  }
}

}  // namespace autopar::parameters
