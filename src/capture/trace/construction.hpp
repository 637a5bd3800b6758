#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/core/interval.hpp>

#include "capture/trace/tracer.hpp"

namespace autopar::trace {

/// Records operators on a module under construction, and runs the operators that a tensor depends on.
class Construction : public OperatorSink, public std::enable_shared_from_this<Construction> {
 public:
  /// A construction that receives operators on the fake tensors it makes; they hold it weakly.
  [[nodiscard]] static std::shared_ptr<Construction> make(Drawing drawing);

  void record(const std::function<void()>& construct);
  void handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  void materialise(const std::vector<at::Tensor>& tensors);
  [[nodiscard]] std::optional<at::Tensor> part(const at::Tensor& fake, std::int64_t blocks, Interval of_each);
  [[nodiscard]] bool knows(const at::Tensor& tensor) { return tracer_ && tracer_->find(tensor).has_value(); }
  [[nodiscard]] const at::Tensor& initial_state() const { return initial_state_; }
  at::Tensor rebase(const at::Tensor& state);
  void forget_states();
  std::size_t expect_data(const at::Tensor& fake);
  [[nodiscard]] bool changed_since(std::size_t expected, const at::Tensor& fake);
  [[nodiscard]] std::vector<std::size_t> expected_behind(const std::vector<at::Tensor>& fakes);
  void give(std::size_t expected, at::Tensor data) { expected_.at(expected).data = std::move(data); }

 private:
  /// The generator before a random operator.
  struct Draw {
    at::Tensor state;  ///< undefined until it is known
    bool reseeded;     ///< changed since the previous operator: by a manual_seed, or by draws outside the construction
  };

  /// Data from outside, at its position among the operators.
  struct Expected {
    ValueId value;       ///< value whose memory it fills
    std::size_t before;  ///< the first operator after it
    at::Tensor data;     ///< undefined: not given, so the operators before it determine the value
  };

  bool runs_at_once(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void require_no_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void note_draws(std::size_t first_new_op, const at::Tensor& state);
  void advance(at::Generator& generator, const OpNode& node);
  [[nodiscard]] std::vector<bool> needed_for(const std::vector<at::Tensor>& tensors);
  [[nodiscard]] bool states_known(const std::vector<bool>& needed) const;
  [[nodiscard]] bool is_read(const Expected& expected, const std::vector<bool>& needed);
  /// Whether the operators read data from outside.
  [[nodiscard]] bool read_given_data(const std::vector<bool>& needed);
  /// Of these: data by tensor, where elements are made one by one; undefined elsewhere.
  [[nodiscard]] std::vector<at::Tensor> filled(const std::vector<at::Tensor>& fakes);
  [[nodiscard]] std::vector<at::Tensor> run(const std::vector<bool>& needed, const std::vector<at::Tensor>& wanted);

  std::optional<Tracer> tracer_;
  Drawing drawing_ = Drawing::kAtOnce;
  bool materialised_ = false;  // a tensor was materialised: code that needs data has it or requests it
  at::Tensor initial_state_, last_state_;
  std::unordered_map<OpId, Draw> draws_;
  std::vector<Expected> expected_;  ///< in the order of `before`
};

/// Gives data to an unregistered fake tensor of a recorded construction: a constant of the model. False if the tensor
/// comes from elsewhere.
[[nodiscard]] bool materialise_constant(const at::Tensor& fake);

}  // namespace autopar::trace
