#include "torch/autograd/split_backward.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/autograd/convolution_form.hpp"
#include "torch/autograd/fp8_linear.hpp"
#include "torch/autograd/gradient_of_bias.hpp"
#include "torch/autograd/padded_rows.hpp"
#include "torch/autograd/parameter_cast.hpp"
#include "torch/autograd/row_products.hpp"
#include "torch/autograd/side_stream.hpp"
#include "torch/autograd/sum_type.hpp"
#include "torch/autograd/summed_gradient.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/channels_last_copy.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/products.hpp"
#include "torch/fused/rows_of.hpp"
#include "torch/fused/table_gradient.hpp"

namespace autopar::autograd {

namespace {

using torch::autograd::variable_list;

/// The autograd node of a split call's result. Its edges lead to x, and to the parameters unless their gradients are
/// deferred.
class SplitNode : public torch::autograd::Node {
 public:
  /// @param parameters  weight and, if its gradient is wanted, bias: the tensors read, or the parameters of which they
  ///                    are casts
  SplitNode(const SplitBackward& split, const at::Tensor& x, const at::Tensor& weight,
            std::vector<at::Tensor> parameters, std::shared_ptr<DeferredGradients> deferred)
      : split_(split),
        x_(x, false),
        weight_(weight, false),
        parameters_(std::move(parameters)),
        deferred_(std::move(deferred)) {}

  [[nodiscard]] bool has_bias() const { return parameters_.size() > 1; }

  /// Makes the node accumulate the parameters' gradients itself, on the side stream if they have no gradient yet.
  void add_beside(std::shared_ptr<SideStream> side) { side_ = std::move(side); }

  /// Makes the node accumulate into the parameters' gradients itself, if these exist. The parameters' own nodes still
  /// run.
  /// @param unwritten  sums that are written instead; null: none
  void add_in_place(std::shared_ptr<UnwrittenSums> unwritten) {
    adds_in_place_ = true;
    unwritten_ = std::move(unwritten);
  }

  /// The forward ran in 8 bits, and x is its transpose in them, maybe the weight, too.
  /// @param of_x, of_weight  what a one stands for; undefined: the weight is as the forward read it
  void run_in_fp8(at::Tensor of_x, at::Tensor of_weight) {
    unit_of_x_ = std::move(of_x);
    unit_of_weight_ = std::move(of_weight);
  }

  /// Leaves the parameters' gradients to the node that sums the gradient of x.
  void leave_to(std::shared_ptr<SummedGradient> sum) {
    sum_ = std::move(sum);
    place_ = sum_->take_over(parameters_);
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const at::AutoDispatchBelowADInplaceOrView no_history;
    variable_list of_x(num_outputs());
    const auto& gradient = gradients[0];
    if (!gradient.defined()) return of_x;
    const auto x = x_.unpack().detach(), weight = weight_.unpack().detach();
    if (split_.fp8 != nullptr && !unit_of_x_.defined()) see_gradient(*split_.fp8, gradient);
    const auto formulas = unit_of_x_.defined()
                              ? fp8_formulas(*split_.fp8, gradient, {x, unit_of_x_}, {weight, unit_of_weight_})
                              : formulas_of(gradient, x, weight);
    if (formulas.input && task_should_compute_output(0)) of_x[0] = formulas.input();
    auto make = [make = formulas.weights, parameters = parameters_, with_bias = has_bias()] {
      auto made = make(with_bias);
      for (std::size_t i = 0; i < made.size(); ++i) made[i] = in_form_of(parameters[i], std::move(made[i]));
      return made;
    };
    if (deferred_) {
      std::vector<ValueId> of{split_.weight};
      if (has_bias()) of.push_back(split_.bias);
      DeferredGradients::Task task{std::move(of), std::move(make)};
      if (split_.may_be_added) task.add_to = formulas.add_weights;
      deferred_->defer(std::move(task));
    } else if (side_ && !has_gradient(parameters_)) {
      side_->put([leaves = parameters_, make = std::move(make)] { add(leaves, make()); });
    } else if (sum_) {
      sum_->put(place_, std::move(make));
    } else if (adds_in_place_ && can_add_to(parameters_)) {
      grow(gradients_of(parameters_), formulas);
    } else if (side_) {
      add(parameters_, make());
    } else {
      auto own = make();
      std::move(own.begin(), own.end(), of_x.begin() + 1);
    }
    return of_x;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x_.reset_data();
    weight_.reset_data();
  }

  std::string name() const override { return "SplitBackward"; }

 private:
  [[nodiscard]] BackwardFormulas formulas_of(const at::Tensor& gradient, const at::Tensor& x,
                                             const at::Tensor& weight) const {
    BackwardFormulas formulas;
    if (split_.input) formulas.input = [=, this] { return split_.input(gradient, x, weight); };
    formulas.weights = [=, weights = &split_.weights](bool with_bias) {
      return (*weights)(gradient, x, weight, with_bias);
    };
    formulas.add_weights = [=, add = &split_.add_weights](const std::vector<at::Tensor>& sums) {
      (*add)(gradient, x, weight, sums);
    };
    if (split_.write_weights)
      formulas.write_weights = [=, write = &split_.write_weights](const std::vector<at::Tensor>& sums) {
        (*write)(gradient, x, weight, sums);
      };
    return formulas;
  }
  /// Adds the gradients to the sums. Those that hold no numbers are written, if all are such.
  void grow(const std::vector<at::Tensor>& sums, const BackwardFormulas& formulas) const {
    std::vector<at::Tensor> fresh;
    if (unwritten_)
      std::ranges::copy_if(sums, std::back_inserter(fresh),
                           [&](const at::Tensor& sum) { return unwritten_->take(sum); });
    if (fresh.size() == sums.size() && formulas.write_weights) return formulas.write_weights(sums);
    for (const auto& sum : fresh) sum.zero_();
    formulas.add_weights(sums);
  }
  static bool has_gradient(const std::vector<at::Tensor>& leaves) {
    return std::ranges::any_of(leaves, [](const at::Tensor& leaf) { return leaf.grad().defined(); });
  }
  static bool can_add_to(const std::vector<at::Tensor>& leaves) {
    return std::ranges::all_of(leaves, [](const at::Tensor& leaf) {
      const auto& sum = leaf.grad();
      return sum.defined() && sum.is_contiguous() && sum.scalar_type() == leaf.scalar_type();
    });
  }
  static std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& leaves) {
    std::vector<at::Tensor> gradients;
    for (const auto& leaf : leaves) gradients.push_back(leaf.grad());
    return gradients;
  }
  static void add(const std::vector<at::Tensor>& leaves, variable_list gradients) {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      auto& sum = leaves[i].mutable_grad();
      if (sum.defined())
        sum.add_(gradients[i]);
      else
        sum = std::move(gradients[i]);
    }
  }

  const SplitBackward& split_;  // owned by the runner, which outlives its runs
  torch::autograd::SavedVariable x_, weight_;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<DeferredGradients> deferred_;
  std::shared_ptr<SideStream> side_;
  bool adds_in_place_ = false;
  std::shared_ptr<UnwrittenSums> unwritten_;
  at::Tensor unit_of_x_, unit_of_weight_;  ///< if it runs in 8 bits
  std::shared_ptr<SummedGradient> sum_;
  std::size_t place_ = 0;
};

// ---------------------------------------------------------------- formulas

/// The gradient of a linear layer's input, for layers that read a cast of the weight. Only this backward exists for
/// them. For other layers the gradient has libtorch's bits, whether it is split or not.
at::Tensor gradient_as_product(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
  return fused::matrix_product(fused::rows_of(gradient), weight, weight.scalar_type()).view(x.sizes());
}

/// @param put  puts the gradients of weight and bias into sums: (gradient, x, weight, sums, destination)
template <class Put>
void put_weights_by(SplitBackward& split, const Put& put) {
  const auto to = [&](fused::Destination destination) {
    return [put, destination](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                              const std::vector<at::Tensor>& sums) { put(gradient, x, weight, sums, destination); };
  };
  split.add_weights = to(fused::Destination::kAdds);
  split.write_weights = to(fused::Destination::kIsWritten);
}

void make_linear(SplitBackward& split) {
  split.is_product = true;
  split.input = [](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
    return fused::rows_of(gradient).mm(weight).view(x.sizes());
  };
  split.weights = [](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor&, bool with_bias) {
    const auto rows = fused::rows_of(gradient);
    std::vector<at::Tensor> gradients{product_over_rows(rows, fused::rows_of(x))};
    if (with_bias) gradients.push_back(gradient_of_bias(gradient, rows));
    return gradients;
  };
  put_weights_by(split, [](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor&,
                           const std::vector<at::Tensor>& sums, fused::Destination destination) {
    const auto rows = fused::rows_of(gradient);
    put_product_over_rows(rows, fused::rows_of(x), sums[0], destination);
    if (sums.size() > 1) put_gradient_of_bias(gradient, rows, sums[1], destination);
  });
}

void make_embedding(SplitBackward& split, const std::vector<c10::IValue>& args) {
  split.is_table = true;
  split.x_at = 1;
  split.weight_at = 0;
  split.bias_at = -1;
  split.weights = [padding = args[2].toInt(), by_frequency = args[3].toBool()](
                      const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, bool) {
    return std::vector{at::embedding_dense_backward(gradient, x, weight.size(0), padding, by_frequency)};
  };
}

/// Whether libtorch's embedding backward for a cast table runs in single precision, on a widened copy of the looked-up
/// rows. In 16 bits another pass over the table widens the result, and CPUs round each addition. GPUs do not round each
/// addition, and 16 bits are faster there if rows are many. If rows are few, copy and table take no more memory than
/// the table twice.
bool gains_in_single_precision(const at::Tensor& rows, const at::Tensor& table) {
  return rows.is_cpu() || 4 * rows.numel() <= table.numel();
}

void make_embedding_of_casts(SplitBackward& split, const std::vector<c10::IValue>& args) {
  split.weights = [make = std::move(split.weights), padding = args[2].toInt(), by_frequency = args[3].toBool()](
                      const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, bool with_bias) {
    if (!by_frequency && fused::has_table_kernels(gradient, x, weight.size(0)))
      return std::vector{fused::table_gradient(gradient, x, weight.size(0), padding)};
    const bool widens = gains_in_single_precision(gradient, weight);
    return make(widens ? gradient.to(sum_type(gradient.scalar_type())) : gradient, x, weight, with_bias);
  };
}

/// The matrices whose product is the weight's gradient, if it is computed as a product.
std::optional<PixelRows> product_of(const ConvolutionForm& form, const at::Tensor& gradient, const at::Tensor& x,
                                    const at::Tensor& weight) {
  return gains_as_product(gradient, weight) ? pixel_rows_of(form, gradient, x, weight) : std::nullopt;
}

/// Gradients of the weight and, if wanted, the bias. In single precision on CPUs if operands have 16 bits.
std::vector<at::Tensor> gradients_of_convolution(const ConvolutionForm& form, const at::Tensor& gradient,
                                                 const at::Tensor& x, const at::Tensor& weight, bool with_bias) {
  const auto type = sum_type(gradient.scalar_type());
  const bool widens = type != gradient.scalar_type() && gradient.is_cpu();
  const auto wide = [&](const at::Tensor& tensor) { return widens ? tensor.to(type) : tensor; };
  auto [none, of_weight, of_bias] = form.backward(wide(gradient), wide(x), wide(weight), {false, true, with_bias});
  std::vector<at::Tensor> gradients{std::move(of_weight)};
  if (with_bias) gradients.push_back(std::move(of_bias));
  return gradients;
}

void make_convolution(SplitBackward& split, const ConvolutionForm& form) {
  split.is_of_images = true;
  split.input = [form](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
    return std::get<0>(form.backward(gradient, x, weight, {true, false, false}));
  };
  split.weights = [form](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, bool with_bias) {
    const auto rows = product_of(form, gradient, x, weight);
    if (!rows) return gradients_of_convolution(form, gradient, x, weight, with_bias);
    std::vector<at::Tensor> gradients{product_over_rows(rows->gradient, rows->x).view(weight.sizes())};
    if (with_bias) gradients.push_back(fused::column_sums(rows->gradient, sum_type(gradient.scalar_type())));
    return gradients;
  };
  put_weights_by(split, [form](const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                               const std::vector<at::Tensor>& sums, fused::Destination destination) {
    const bool adds = destination == fused::Destination::kAdds;
    if (const auto rows = product_of(form, gradient, x, weight)) {
      const auto type = sum_type(gradient.scalar_type());
      put_product_over_rows(rows->gradient, rows->x, sums[0].view({sums[0].size(0), sums[0].size(1)}), destination);
      if (sums.size() < 2) return;
      if (adds)
        fused::add_column_sums(rows->gradient, type, sums[1]);
      else
        sums[1].copy_(fused::column_sums(rows->gradient, type));
      return;
    }
    const auto gradients = gradients_of_convolution(form, gradient, x, weight, sums.size() > 1);
    const auto put = adds ? &fused::add_between_layouts : &fused::copy_between_layouts;
    for (std::size_t i = 0; i < sums.size(); ++i) put(sums[i], gradients[i]);
  });
}

void make_plain_convolution(SplitBackward& split, const OpNode& node, bool has_bias) {
  const auto& args = node.args;
  const auto none = std::vector<std::int64_t>(args[3].toIntVector().size(), 0);
  make_convolution(split, {args[3].toIntVector(), args[4].toIntVector(), args[5].toIntVector(), none, false,
                           args[6].toInt(), has_bias});
}

void make_transposed_convolution(SplitBackward& split, const OpNode& node, bool has_bias) {
  const auto& args = node.args;
  make_convolution(split, {args[3].toIntVector(), args[4].toIntVector(), args[7].toIntVector(), args[5].toIntVector(),
                           true, args[6].toInt(), has_bias});
}

void make_any_convolution(SplitBackward& split, const OpNode& node, bool has_bias) {
  const auto& args = node.args;
  make_convolution(split, {args[3].toIntVector(), args[4].toIntVector(), args[5].toIntVector(), args[7].toIntVector(),
                           args[6].toBool(), args[8].toInt(), has_bias});
}

/// Sets the formulas of libtorch's operators. @return whether the operator has some
bool make_formulas(SplitBackward& split, const OpNode& node, bool has_bias) {
  const std::string_view name = node.op.schema().name();
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (is({ops::kLinear}))
    make_linear(split);
  else if (is({ops::kEmbedding}) && !node.args[4].toBool())
    make_embedding(split, node.args);
  else if (is({ops::kConv1d, ops::kConv2d, ops::kConv3d}) && node.op.schema().overload_name().empty())
    make_plain_convolution(split, node, has_bias);
  else if (is({ops::kConvTranspose1d, ops::kConvTranspose2d, ops::kConvTranspose3d}))
    make_transposed_convolution(split, node, has_bias);
  else if (is({ops::kConvolution}))
    make_any_convolution(split, node, has_bias);
  else
    return false;
  return true;
}

/// Sets a user's formulas, or the library's. @return whether there are some
bool find_formulas(SplitBackward& split, const OpGraph& graph, OpId op) {
  const auto& node = graph.op(op);
  const auto& own = ops::definition_of(node.op).split_backward;
  if (!own) return make_formulas(split, node, node.args.size() > 2 && graph.input(op, 2).valid());
  auto parts = own(node);
  if (parts) static_cast<BackwardParts&>(split) = std::move(*parts);
  return parts.has_value();
}

/// Runs a linear layer without autograd, if it is a large product and reads a cast of the weight. The layer then has
/// the same bits with and without gradients, as recomputation needs.
bool proceed_as_large_product(replay::ReplayCall& call, const SplitBackward& split) {
  if (!split.is_product_of_cast()) return false;
  const auto bias = call.stack[2].isTensor() ? call.stack[2].toTensor() : at::Tensor();
  auto result = fused::large_linear(call.stack[0].toTensor(), call.stack[1].toTensor(), bias);
  if (!result.defined()) return false;
  call.stack.clear();
  call.stack.emplace_back(std::move(result));
  return true;
}

/// Runs a linear layer in 8 bits, without autograd.
/// @param seen  whether this is a training call, whose operands count
/// @return what the backward keeps
Fp8Result proceed_in_fp8(replay::ReplayCall& call, const SplitBackward& split, bool seen) {
  const at::AutoDispatchBelowADInplaceOrView no_history;
  const auto bias = call.stack[2].isTensor() ? call.stack[2].toTensor() : at::Tensor();
  auto result = fp8_linear(*split.fp8, call.stack[0].toTensor(), call.stack[1].toTensor(), bias, seen);
  call.stack.clear();
  call.stack.emplace_back(result.y);
  return result;
}

/// Whether a product has few rows, and so waits for its weight to come from memory. Two such products at a time use
/// more of the memory's bandwidth than one. On an H200, with 64 rows and 5000 x 5000 weights in TF32, a step takes 0.94
/// of its time. The tensors kept for the second product are small compared with the gradient.
bool waits_for_memory(const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t kFewRows = 256, kLargeWeight = 1 << 20, kLittle = 16;
  if (weight.numel() < kLargeWeight) return false;
  const auto rows = x.numel() / weight.size(1);
  return rows <= kFewRows && kLittle * rows * (weight.size(0) + weight.size(1)) <= weight.numel();
}

/// Whether the parameters' gradients are computed on a side stream. They must have the parameters' type and layout, so
/// that they can be stored without a conversion.
bool goes_beside(const SplitBackward& split, const at::Tensor& x, const at::Tensor& weight,
                 const std::vector<at::Tensor>& parameters) {
  if (!split.may_be_beside || !waits_for_memory(x, weight)) return false;
  return std::ranges::all_of(parameters, [&](const at::Tensor& leaf) {
    return leaf.is_contiguous() && leaf.scalar_type() == sum_type(weight.scalar_type()) && !leaf.is_same(x);
  });
}

/// The node that sums the gradient of x over tensor shards, if the parameters' gradients are left to it; otherwise
/// null. They have the element type that libtorch would give them.
std::shared_ptr<SummedGradient> sum_of_gradient(const SplitBackward& split, const at::Tensor& x,
                                                const at::Tensor& weight) {
  const bool as_wide = split.of_cast || weight.scalar_type() == sum_type(weight.scalar_type());
  return split.may_be_left && as_wide ? SummedGradient::of(x) : nullptr;
}

}  // namespace

std::optional<SplitBackward> split_backward_of(const OpGraph& graph, const algebra::BatchSemantics& plan, OpId op) {
  const auto& node = graph.op(op);
  if (!node.grad_enabled || !plan.handling(op).weighted_arguments.empty()) return std::nullopt;
  SplitBackward split;
  if (!find_formulas(split, graph, op)) return std::nullopt;
  const auto weight = graph.input(op, split.weight_at);
  split.weight = plan.parameter_behind(graph, weight);
  if (!split.weight.valid()) return std::nullopt;
  split.of_cast = split.weight != weight;
  if (split.is_product_of_cast()) split.input = &gradient_as_product;
  if (split.of_cast && split.is_table) make_embedding_of_casts(split, node.args);
  const auto bias = split.bias_at >= 0 ? graph.input(op, split.bias_at) : ValueId::none();
  split.bias = plan.parameter_behind(graph, bias);
  return bias.valid() && !split.bias.valid() ? std::nullopt : std::optional(split);
}

bool takes_bias_gradient(const at::Tensor& result) {
  const auto* const node = dynamic_cast<const SplitNode*>(result.grad_fn().get());
  return node != nullptr && node->has_bias();
}

void run_split(replay::ReplayCall& call, const SplitBackward& split, const SplitServices& services) {
  const auto& [deferred, side, unwritten] = services;
  const auto at = [&](int position) { return call.stack[static_cast<std::size_t>(position)].toTensor(); };
  const auto x = at(split.x_at), weight = at(split.weight_at);
  const bool in_batches = !split.is_of_images || x.dim() == weight.dim();
  const bool with_bias = split.bias.valid() && at(split.bias_at).requires_grad();
  std::vector<at::Tensor> parameters{call.environment[split.weight.index()]};
  if (with_bias) parameters.push_back(call.environment[split.bias.index()]);
  const bool beside = deferred == nullptr && side != nullptr && goes_beside(split, x, weight, parameters);
  auto sum = deferred == nullptr && !beside ? sum_of_gradient(split, x, weight) : nullptr;
  // Not for 16-bit parameters: their gradients would be computed in single precision and rounded by another pass.
  const bool sums_bias = split.sums_bias && with_bias && weight.scalar_type() == at::kFloat;
  const bool parts =
      deferred != nullptr || split.of_cast || split.may_be_added || beside || sum != nullptr || sums_bias;
  const bool with_history = at::GradMode::is_enabled();
  const bool in_fp8 = split.fp8 != nullptr && runs_in_fp8(*split.fp8, x, weight);
  const bool real = in_fp8 || (weight.is_floating_point() && (!split.input || x.scalar_type() == weight.scalar_type()));
  if (!parts || !with_history || !weight.requires_grad() || !real || !in_batches) {
    if (in_fp8)
      static_cast<void>(proceed_in_fp8(call, split, /*seen=*/false));
    else if (with_history || !proceed_as_large_product(call, split))
      call.call_original();
    return;
  }
  Fp8Result of_fp8;
  if (in_fp8) {
    of_fp8 = proceed_in_fp8(call, split, /*seen=*/true);
  } else if (!proceed_as_large_product(call, split)) {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    if (split.pads_rows)
      run_in_padded_rows(call);
    else
      call.call_original();
  }
  if (split.fp8 != nullptr && !in_fp8) see_operands(*split.fp8, x, weight);
  const bool keeps_weight = of_fp8.weight.rows.defined();
  const std::shared_ptr<SplitNode> node(new SplitNode(split, in_fp8 ? of_fp8.x.rows : x,
                                                      keeps_weight ? of_fp8.weight.rows : weight, parameters, deferred),
                                        torch::autograd::deleteNode);
  if (in_fp8) node->run_in_fp8(of_fp8.x.unit, of_fp8.weight.unit);
  if (deferred || beside || sum) {
    if (beside) node->add_beside(side);
    if (sum) node->leave_to(std::move(sum));
    node->set_next_edges(torch::autograd::collect_next_edges(x));
  } else {  // edges to the parameters themselves, not through their casts
    node->set_next_edges(torch::autograd::collect_next_edges(x, parameters));
  }
  if (split.may_be_added) node->add_in_place(unwritten);
  auto result = call.stack[0].toTensor();
  torch::autograd::set_history(result, node);
}

}  // namespace autopar::autograd
