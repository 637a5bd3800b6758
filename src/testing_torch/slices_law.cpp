#include <string>
#include <vector>

#include <autopar/core/error.hpp>

#include "testing_torch/laws.hpp"
#include "testing_torch/sliced_run.hpp"

namespace autopar::testing::op_laws {

namespace {

constexpr auto kSlicesLaw = "slices of the batch give what the whole batch gives";

using Lengths = std::vector<std::int64_t>;

/// Slices of one sample and of different lengths, in both orders. @pre batch is at least 5
std::vector<Lengths> cuts_of(std::int64_t batch) {
  return {{1, batch - 1}, {batch - batch / 2, batch / 2}, {batch - 1, 1}, {2, batch - 3, 1}, {1, 1, batch - 2}};
}

std::string described(const Lengths& lengths) {
  std::string text;
  for (const auto length : lengths) text += (text.empty() ? "" : " + ") + std::to_string(length);
  return "in slices of " + text + " samples, ";
}

}  // namespace

bool check_slices(const CapturedExample& example) {
  const auto& plan = example.plan();
  if (plan.first_whole_batch_op().valid() || !plan.batch_norms.empty()) return false;
  const auto arguments = example.arguments(example.batch());
  const auto differentiable = arguments.differentiable();
  const auto names = arguments.names();
  const auto whole = example.call(arguments);
  const auto cotangents = cotangents_of(whole);
  const auto gradients = gradients_of(whole, cotangents, differentiable);
  for (const auto& lengths : cuts_of(example.batch())) {
    const auto require_equal = [&](const at::Tensor& given, const at::Tensor& wanted, const std::string& what) {
      if (const auto found = difference(given, wanted); !found.empty())
        example.broken(kSlicesLaw, described(lengths) + what + ": " + found);
    };
    try {
      const auto results = SlicedRun(example, arguments, lengths).results();
      for (std::size_t i = 0; i < whole.size(); ++i)
        require_equal(results.at(i), whole[i], "result " + std::to_string(i));
      const auto own = gradients_of(results, cotangents, differentiable);
      for (std::size_t i = 0; i < own.size(); ++i) require_equal(own[i], gradients[i], "the gradient of " + names[i]);
    } catch (const OperatorError& error) {
      example.broken(kSlicesLaw, described(lengths) + error.what());
    }
  }
  return true;
}

}  // namespace autopar::testing::op_laws
