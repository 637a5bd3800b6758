#include "torch/autograd/attention_function.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/version.h>

#include "ops/names.hpp"
#include "torch/autograd/like_in_place.hpp"
#include "torch/autograd/view_parts.hpp"

namespace autopar::autograd {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct AttentionArgument {
  static constexpr std::size_t kMask = 3, kProbability = 4, kIsCausal = 5, kScale = 6, kGrouped = 7;
};

// libtorch caches cuDNN's plans by the strides of queries, keys and values, but not by the strides of their gradients.
// A plan cached for other gradient strides would write outside of their memory. The cache key also has the given query
// length, which nothing else in the backward reads. So these plans get a different length. Check each new version of
// libtorch (ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop); tests/gpu/attention_test enforces the assumption.
constexpr bool kKeepsPlansByLength = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11;
constexpr std::int64_t kOtherLength = std::int64_t{1} << 40;

struct AttentionSettings {
  double dropout;
  bool is_causal;
  std::optional<double> scale;
};

class AttentionNode : public torch::autograd::Node {
 public:
  AttentionNode(const std::array<at::Tensor, 3>& operands, JoinedForm form, const AttentionSettings& settings)
      : Node(torch::autograd::collect_next_edges(operands[0], operands[1], operands[2])),
        form_(std::move(form)),
        settings_(settings) {
    for (std::size_t i = 0; i < operands.size(); ++i) operands_[i] = SavedVariable(operands[i], false);
  }

  /// Runs attention and saves the tensors that the backward reads. Called once, below autograd.
  at::Tensor attend(const std::array<at::Tensor, 3>& operands) {
    auto [result, sums, lengths_q, lengths_k, most_q, most_k, seed, offset, mask] =
        at::_scaled_dot_product_cudnn_attention(operands[0], operands[1], operands[2], std::nullopt,
                                                /*compute_log_sumexp=*/true, settings_.dropout, settings_.is_causal,
                                                /*return_debug_mask=*/false, settings_.scale);
    kept_ = {std::move(sums), std::move(lengths_q), std::move(lengths_k), std::move(seed), std::move(offset)};
    most_q_ = most_q.expect_int();
    most_k_ = most_k.expect_int();
    return result;
  }

  /// @param result  has this as its autograd node
  void keep(const at::Tensor& result) { result_ = SavedVariable(result, true); }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return variable_list(operands_.size());
    std::array<at::Tensor, 3> operands;
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = operands_[i].unpack();
    auto length = most_q_;
    if (!at::GradMode::is_enabled()) {
      const auto places = form_.made();
      for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = with_place_for_like(operands[i], places[i]);
      length += kOtherLength;
    }
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_cudnn_attention_backward(
        gradients[0], operands[0], operands[1], operands[2], result_.unpack(shared_from_this()), kept_.sums, kept_.seed,
        kept_.offset, /*attn_bias=*/at::Tensor(), kept_.lengths_q, kept_.lengths_k, length, most_k_, settings_.dropout,
        settings_.is_causal, settings_.scale);
    return {std::move(of_query), std::move(of_key), std::move(of_value)};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& operand : operands_) operand.reset_data();
    result_.reset_data();
    kept_ = {};
  }
  std::string name() const override { return "AttentionBackward"; }

 private:
  /// Tensors that the forward's kernels return for the backward.
  struct Kept {
    at::Tensor sums, lengths_q, lengths_k, seed, offset;
  };

  std::array<SavedVariable, 3> operands_;
  SavedVariable result_;
  Kept kept_;
  JoinedForm form_;
  AttentionSettings settings_;
  std::int64_t most_q_ = 0, most_k_ = 0;
};

}  // namespace

bool attends_without_mask(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kAttention) || !graph.op(op).grad_enabled) return false;
  for (const int operand : {0, 1, 2}) {
    const auto value = graph.input(op, operand);
    if (!value.valid() || !graph.value(value).has_gradient()) return false;
  }
  const auto& args = graph.op(op).args;
  return !graph.input(op, AttentionArgument::kMask).valid() && !args.at(AttentionArgument::kGrouped).toBool();
}

void run_attention_with_joined_gradients(replay::ReplayCall& call) {
  const auto& stack = call.stack;
  const std::array<at::Tensor, 3> operands{stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
  const AttentionSettings settings{stack[AttentionArgument::kProbability].toDouble(),
                                   stack[AttentionArgument::kIsCausal].toBool(),
                                   stack[AttentionArgument::kScale].toOptional<double>()};
  auto form = kKeepsPlansByLength && operands[0].is_cuda() && at::GradMode::is_enabled()
                  ? joined_form_of({operands.begin(), operands.end()})
                  : std::nullopt;
  constexpr auto kCudnn = static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
  if (!form || at::_fused_sdp_choice(operands[0], operands[1], operands[2], std::nullopt, settings.dropout,
                                     settings.is_causal, settings.scale) != kCudnn) {
    call.call_original();
    return;
  }
  const std::shared_ptr<AttentionNode> node(new AttentionNode(operands, std::move(*form), settings),
                                            torch::autograd::deleteNode);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    result = node->attend(operands);
  }
  torch::autograd::set_history(result, node);
  node->keep(result);
  call.stack.clear();
  call.stack.emplace_back(std::move(result));
}

}  // namespace autopar::autograd
