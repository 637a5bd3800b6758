#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/testing_torch/op_laws.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "testing_torch/tensors.hpp"

namespace autopar::testing::op_laws {

/// The arguments of one run, as new leaves; floating ones require gradients.
struct Arguments {
  Tensors samples, shared;

  [[nodiscard]] Tensors differentiable() const;
  /// The name of each tensor in `differentiable`, like "samples[0]".
  [[nodiscard]] std::vector<std::string> names() const;
  /// Samples [first, first + count), as views.
  [[nodiscard]] Arguments slice(std::int64_t first, std::int64_t count) const;
};

/// An example as a captured program. Floating shared arguments are its parameters; integers that all samples share are
/// arguments without a batch dim.
class CapturedExample {
 public:
  /// @throws see check_op_laws
  CapturedExample(std::string_view op, const OpExample& example);

  [[nodiscard]] const OpGraph& graph() const { return graph_; }
  [[nodiscard]] const algebra::BatchSemantics& plan() const { return plan_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  /// Calls of the operator, ascending.
  [[nodiscard]] const std::vector<OpId>& calls() const { return calls_; }

  /// Arguments with the first `samples` samples.
  [[nodiscard]] Arguments arguments(std::int64_t samples) const;
  /// The results of the example's code.
  [[nodiscard]] Tensors call(const Arguments& arguments) const {
    return example_.call(arguments.samples, arguments.shared);
  }
  /// An environment with constants and arguments in place.
  [[nodiscard]] replay::Environment environment(const Arguments& arguments) const;
  /// Whether the value is one of the shared arguments.
  [[nodiscard]] bool is_shared(ValueId value) const;

  /// Name of an operand of a call: "weight of mylib::layer".
  [[nodiscard]] std::string name_of(OpId call, ValueId operand) const;

  /// @throws LawBroken
  [[noreturn]] void broken(const std::string& law, const std::string& given) const;

 private:
  void check_arguments() const;
  void capture_call();
  void find_calls();
  void refuse_draws() const;
  [[nodiscard]] std::string described() const;

  std::string op_;
  const OpExample& example_;
  std::int64_t batch_ = 0;
  std::map<std::string, std::size_t> parameters_;  ///< by name: positions among the shared arguments
  OpGraph graph_;
  algebra::BatchSemantics plan_;
  std::vector<OpId> calls_;
};

}  // namespace autopar::testing::op_laws
