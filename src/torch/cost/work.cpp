#include "torch/cost/work.hpp"

#include <algorithm>

#include "capture/ir/add_layer_norm.hpp"
#include "capture/ir/batch_norm_relu.hpp"
#include "capture/ir/class_head.hpp"
#include "capture/ir/cross_entropy.hpp"
#include "capture/ir/max_pool.hpp"
#include "capture/ir/pointwise.hpp"
#include "capture/ir/tensor_form.hpp"
#include "torch/kernels/layer_norm.hpp"
#include "torch/kernels/pointwise/pointwise.hpp"
#include "torch/kernels/pointwise/program.hpp"

namespace autopar::algebra {
namespace {

double fixed_elements(const Sizes& sizes) { return elements_at(sizes, 1); }

std::int64_t last_size(const Sizes& sizes) { return sizes.empty() ? 1 : sizes.back().at(1); }

/// Of all dims but the last, which may have no element.
Affine rows_of(const Sizes& sizes) { return elements({sizes.begin(), sizes.end() - (sizes.empty() ? 0 : 1)}); }

bool requires_grad(const OpContext& op, ValueId value) { return op.graph().value(value).requires_grad; }

// Of a table only the rows that are looked up are read.
bool reads_rows(OpFamily family) {
  return family == OpFamily::kEmbedding || family == OpFamily::kIndex || family == OpFamily::kIndexSelect ||
         family == OpFamily::kGather;
}

/// Operands that are multiplied: all but the addend of addmm and its like, and the bias of a linear layer.
std::vector<ValueId> factors_of(const OpContext& op) {
  if (op.traits().family == OpFamily::kClassHead) return {op.tensor("features"), op.tensor("projection")};
  auto operands = op.tensors();
  if (operands.size() != 3) return operands;
  const auto name = op.base_name();
  if (op.traits().family == OpFamily::kContraction && name != "einsum") operands.erase(operands.begin());
  if (op.traits().family == OpFamily::kLinear && name == "linear") operands.pop_back();
  return operands;
}

/// Of the logits that a class head makes in chunks, and bytes of one of their statistics.
struct HeadSizes {
  Affine rows;
  double classes = 0, number = 0;
};
HeadSizes head_sizes(const OpContext& op) {
  const auto loss = op.graph().value(op.results().front()).dtype;
  return {elements(op.sizes(op.tensor("target"))), static_cast<double>(op.sizes(op.tensor("projection")).front().at(1)),
          static_cast<double>(size_of(dtype_of(loss)).value())};
}

}  // namespace

bool copies_in_backward(OpFamily family) {
  switch (family) {
    case OpFamily::kSelect:
    case OpFamily::kSlice:
    case OpFamily::kSplit:
    case OpFamily::kExpand:
    case OpFamily::kBroadcastTensors:
      return true;
    default:
      return false;
  }
}

DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kBool;
    case c10::ScalarType::Byte:
      return DType::kU8;
    case c10::ScalarType::Char:
      return DType::kI8;
    case c10::ScalarType::Short:
      return DType::kI16;
    case c10::ScalarType::Int:
      return DType::kI32;
    case c10::ScalarType::Long:
      return DType::kI64;
    case c10::ScalarType::Half:
      return DType::kF16;
    case c10::ScalarType::BFloat16:
      return DType::kBF16;
    case c10::ScalarType::Double:
      return DType::kF64;
    case c10::ScalarType::ComplexFloat:
      return DType::kC64;
    case c10::ScalarType::ComplexDouble:
      return DType::kC128;
    default:
      return DType::kF32;
  }
}

Affine bytes_of(const OpGraph& graph, ValueId value) {
  const auto& info = graph.value(value);
  return elements(info.sizes) * static_cast<double>(size_of(dtype_of(info.dtype)).value());
}

bool is_differentiable(const OpContext& op) {
  if (!op.node().grad_enabled) return false;
  return std::any_of(op.results().begin(), op.results().end(), [&](ValueId value) { return requires_grad(op, value); });
}

std::optional<Affine> product_flops(const OpContext& op) {
  const auto operands = op.tensors();
  const auto results = elements(op.result_sizes());
  const auto name = op.base_name();
  switch (op.traits().family) {
    case OpFamily::kLinear: {
      auto inner = static_cast<double>(last_size(op.sizes(operands[0])));
      if (name == "bilinear") inner *= static_cast<double>(last_size(op.sizes(operands[1])));
      return results * (2 * inner);
    }
    case OpFamily::kClassHead: {
      return elements(op.sizes(op.first_tensor())) * (2 * head_sizes(op).classes);
    }
    case OpFamily::kContraction: {
      if (name == "einsum") return einsum_volume(op);
      if (name == "outer" || name == "ger") return results * 2;
      const std::size_t left = name.starts_with("add") || name == "baddbmm" ? 1 : 0;
      const auto& sizes = op.sizes(operands[left]);
      const auto inner = sizes.empty() ? SizeExpr{0, 1} : sizes.back();
      const auto sum_of_batch = name == "addbmm" ? op.sizes(operands[left]).front() : SizeExpr{0, 1};
      const auto flops_at = [&](std::int64_t batch) {
        return 2 * elements_at(op.result_sizes(), batch) *
               static_cast<double>(inner.at(batch) * sum_of_batch.at(batch));
      };
      return line_through(flops_at(1), flops_at(2));
    }
    case OpFamily::kAttention: {
      if (op.traits().op_class != OpClass::kAttention)
        return results * static_cast<double>(2 * last_size(op.sizes(operands[0])));
      const auto& key = op.sizes(operands[1]);
      const auto keys = static_cast<double>(key[key.size() - 2].at(1));
      return (elements(op.sizes(operands[0])) + results) * (2 * keys);  // scores, and their product with the values
    }
    case OpFamily::kRecurrent: {
      double weights = 0;
      for (const auto weight : op.tensors(op.position("params"))) {
        if (op.rank(weight) == 2) weights += fixed_elements(op.sizes(weight));
      }
      return rows_of(op.sizes(operands[0])) * (2 * weights);
    }
    default:
      break;
  }
  if (op.traits().op_class == OpClass::kConvolution) {
    const auto& weight = op.sizes(op.tensor("weight"));
    const bool transposed = name.starts_with("conv_transpose") || op.flag("transposed", false);
    const auto moved = transposed ? elements(op.sizes(operands[0])) : results;
    return moved * (2 * fixed_elements({weight.begin() + 1, weight.end()}));
  }
  if (op.traits().op_class == OpClass::kMatmul) {  // cells
    double weights = 0;
    for (std::size_t i = 1; i < operands.size(); ++i) {
      if (requires_grad(op, operands[i]) && !op.type(operands[i]).has_samples() && op.rank(operands[i]) == 2) {
        weights += fixed_elements(op.sizes(operands[i]));
      }
    }
    return rows_of(op.sizes(operands[0])) * (2 * weights);
  }
  return std::nullopt;
}

WorkItem work_of(const OpContext& op) {
  WorkItem item;
  const auto& traits = op.traits();
  item.op_class = traits.op_class;
  const auto result = op.results().empty() ? ValueId::none() : op.results().front();
  if (!result.valid()) return item;
  // A class head's loss is in single precision, whatever its products are in.
  const auto computed = traits.family == OpFamily::kClassHead ? op.first_tensor() : result;
  item.dtype = dtype_of(op.graph().value(computed).dtype);
  Affine read, written;
  for (const auto value : op.results()) written += bytes_of(op.graph(), value);
  std::size_t position = 0;
  for (const auto value : op.tensors()) {
    const bool is_table = position++ == 0 && reads_rows(traits.family);
    read += is_table ? bytes_of(op.graph(), result) : bytes_of(op.graph(), value);
  }
  const bool differentiable = is_differentiable(op);
  if (traits.op_class == OpClass::kView) {
    if (differentiable && copies_in_backward(traits.family)) {
      item.op_class = OpClass::kMemory;
      item.backward = {{}, read + written, {0, 1}};
    }
    return item;
  }
  item.forward.bytes = read + written;
  item.forward.launches = {0, 1};
  const auto flops = product_flops(op);
  item.forward.flops = flops ? *flops : elements(op.result_sizes());
  const bool is_head = traits.family == OpFamily::kClassHead;
  if (is_head) {  // logits pass through memory, and kernels are as many as chunks make them
    constexpr double kPasses = 4, kKernelsOfChunk = 8;
    const auto [rows, classes, number] = head_sizes(op);
    item.forward.bytes += rows * (classes * number * kPasses);
    item.forward.launches = {0, kMostClassHeadChunks * kKernelsOfChunk};
  }
  if (!differentiable) return item;
  double factor = 2;
  if (flops) {  // one product for each of the (at most two) factors that need a gradient
    const auto factors = factors_of(op);
    const auto needing = std::count_if(factors.begin(), factors.end(), [&](ValueId v) { return requires_grad(op, v); });
    factor = static_cast<double>(std::min<std::ptrdiff_t>(needing, 2));
    if (traits.family == OpFamily::kAttention) {  // fused kernels compute scores again
      factor = traits.op_class == OpClass::kAttention && attends_by_products(op) ? 2 : 2.5;
    }
    if (traits.family == OpFamily::kClassHead) factor += 1;  // the logits once more
  }
  item.backward.flops = item.forward.flops * factor;
  item.backward.bytes = item.forward.bytes * 2;
  if (traits.family == OpFamily::kEmbedding) item.backward.bytes += bytes_of(op.graph(), op.first_tensor()) * 2;
  item.backward.launches = is_head ? item.forward.launches : Affine{0, flops ? factor : 1};
  return item;
}

namespace {

// Fitted to 600 measurements of cuDNN 9 on an H200: its reserve, its workspace, and the copy of the weights, which are
// not in one block as it wants them.
RecurrentMemory recurrent_memory_on_cuda(const OpContext& op) {
  const Affine of_result = bytes_of(op.graph(), op.results().front());
  const double layers = op.number("num_layers", 1);
  constexpr double kFixedOfLayer = 8 << 20;
  Affine weights;
  for (const auto weight : op.tensors(op.position("params"))) weights += bytes_of(op.graph(), weight);
  const double kept_by_layer = op.base_name() == "lstm" ? 6 : op.base_name() == "gru" ? 7 : 2;
  const Affine working = of_result * 8.0 + weights * 2.0 + Affine{0, kFixedOfLayer * layers};
  return {of_result * (kept_by_layer * layers - 1) + weights, working, working};
}

}  // namespace

RecurrentMemory recurrent_memory(const OpContext& op) {
  if (op.on_cuda()) return recurrent_memory_on_cuda(op);
  const auto result = op.results().front(), input = op.tensors().front();
  const Affine of_result = bytes_of(op.graph(), result), of_input = bytes_of(op.graph(), input);
  const double directions = op.flag("bidirectional", false) ? 2 : 1, layers = op.number("num_layers", 1);
  const double hidden = static_cast<double>(last_size(op.sizes(result))) / directions;
  const double width = std::max(1.0, static_cast<double>(last_size(op.sizes(input))) / std::max(1.0, hidden));
  // Measured on libtorch 2.11, of one to three layers, of both directions or one: in sizes of the result.
  double saved = 0, forward = 0, backward = 0;
  if (op.base_name() == "lstm") {  // oneDNN's workspace, of which a part is as wide as the layer's input
    saved = 10.7 * layers + 6.1 * (width + directions * (layers - 1)) + 1.1 * (directions - 1) * (layers - 1);
    forward = backward = 6.3 / directions;
  } else if (op.base_name() == "gru") {
    saved = 8 * layers;
    forward = 3.1;
  } else {
    saved = 2.1 * layers;
    forward = 1.5;
  }
  if (op.flag("train", true) && op.number("dropout", 0) > 0) saved += layers - 1;
  return {of_result * (saved - 1) + of_input * directions, of_result * forward, of_result * backward};
}

// libtorch's own conditions: sdp_utils_cpp for CPUs, sdp_utils for CUDA, whose memory-efficient kernel takes masks,
// dropout and values of any width, but no double precision.
bool attends_by_products(const OpContext& op) {
  const auto operands = op.tensors();
  if (op.on_cuda()) {
    const auto dtype = dtype_of(op.graph().value(operands[0]).dtype);
    return op.sizes(operands[0]).size() != 4 || dtype == DType::kF64;
  }
  const auto width = last_size(op.sizes(operands[0]));
  for (const std::size_t other : {1, 2}) {
    if (last_size(op.sizes(operands[other])) != width) return true;
  }
  const auto mask = op.tensor("attn_mask");
  return op.number("dropout_p", 0) > 0 || op.sizes(operands[0]).size() != 4 ||
         (mask.valid() && requires_grad(op, mask));
}

AttentionMemory attention_memory(const OpContext& op) {
  const auto operands = op.tensors();
  const auto& query = op.sizes(operands[0]);
  const auto& key = op.sizes(operands[1]);
  const auto result = op.results().front();
  if (!attends_by_products(op)) {
    const auto row = std::max(4.0, static_cast<double>(size_of(dtype_of(op.graph().value(result).dtype)).value()));
    const auto rows = rows_of(query) * row;
    if (!op.on_cuda()) return {rows, {}, {}};
    return {rows, {}, elements(query) * 4.0 + rows};  // its kernels add up the queries' gradient in single precision
  }
  const auto keys = static_cast<double>(key[key.size() - 2].at(1));
  const auto number = static_cast<double>(size_of(dtype_of(op.graph().value(operands[0]).dtype)).value());
  const auto scores = rows_of(query) * (keys * number);
  const auto scaled = bytes_of(op.graph(), operands[0]) + bytes_of(op.graph(), operands[1]);
  const bool drops = op.number("dropout_p", 0) > 0;
  return {scores * (drops ? 3.0 : 1.0) + scaled, scores * 2.0, scores * 2.0};
}

ClassHeadMemory class_head_memory(const OpContext& op) {
  const auto [rows, classes, number] = head_sizes(op);
  // Logits as they are made, and in the type of statistics; what follows is made in their place.
  constexpr double kCopies = 2, kStatisticsOfRow = 4;
  const auto chunk = Affine{0, std::max(kLeastClassHeadChunk, classes)} + rows * (classes / kMostClassHeadChunks + 1);
  ClassHeadMemory memory;
  memory.saved = rows * (number * (1 + kMostClassHeadChunks));
  memory.working = chunk * (kCopies * number) + rows * (kStatisticsOfRow * number);
  for (const auto factor : factors_of(op)) {
    if (!c10::isReducedFloatingType(op.graph().value(factor).dtype) || !requires_grad(op, factor)) continue;
    memory.working += elements(op.sizes(factor)) * number;  // its gradient is summed up in the type of statistics
  }
  return memory;
}

namespace {

/// Whether kernels of the library's own take what the operator reads: channels-last images, channels in packs.
bool takes_images_in_packs(const OpContext& op) {
  if (!op.on_cuda()) return false;
  const auto& images = op.graph().value(op.first_tensor());
  constexpr std::int64_t kPackBytes = 16;
  const bool has_type = images.dtype == at::kFloat || c10::isReducedFloatingType(images.dtype);
  return has_type && is_channels_last(images) &&
         images.sizes[1].fixed * size_of(dtype_of(images.dtype)).value() % kPackBytes == 0;
}

/// Of the result only the sign is needed. Without a residual kernels make it once more of the operand.
bool keeps_result_of_relu(const OpContext& op) {
  if (!op.has("relu") || !op.flag("relu", false)) return false;
  const bool has_residual = op.has("residual") && op.tensor("residual").valid();
  return has_residual || !op.graph().is(op.id(), kBatchNormRelu) || !takes_images_in_packs(op);
}

/// Of what a norm of a sum drops. Kernels of the library's own draw again; libtorch's keep a mask, as dropout's do.
Affine mask_of_norm(const OpContext& op) {
  if (!op.graph().is(op.id(), kAddLayerNorm) || op.number("p", 0) == 0) return {};
  const auto result = op.results().front();
  if (!op.on_cuda()) return bytes_of(op.graph(), result);
  const auto& sizes = op.sizes(result);
  const bool draws_again = has_layer_norm_kernels(op.graph().value(result).dtype, last_size(sizes));
  return draws_again ? Affine{} : elements(sizes);
}

/// Of joined point-wise operators: where no kernels run them, each may keep its result.
SavedBytes saved_by_joined(const OpContext& op) {
  SavedBytes saved;
  const auto inputs = op.tensors();
  const auto result = op.results().front();
  const auto elements_of_all = elements(op.sizes(result));
  const auto& text = op.node().args[PointwiseArgument::kProgram].toStringRef();
  if (op.on_cuda()) {
    std::vector<bool> wanted;
    for (const auto input : inputs) wanted.push_back(op.graph().value(input).has_gradient());
    for (const auto& kept : pointwise::kept_by(text, wanted)) {
      if (kept.input >= 0)
        saved.values.push_back(inputs[static_cast<std::size_t>(kept.input)]);
      else if (kept.result >= 0)
        saved.values.push_back(op.results()[static_cast<std::size_t>(kept.result)]);
      else
        saved.internal += elements_of_all * static_cast<double>(c10::elementSize(kept.value.type));
    }
    return saved;
  }
  saved.values = inputs;
  saved.values.insert(saved.values.end(), op.results().begin(), op.results().end());
  double between = 0;
  for (const auto& step : pointwise::program_of(text).steps) between += double(c10::elementSize(step.type));
  for (const auto value : op.results()) between -= double(c10::elementSize(op.graph().value(value).dtype));
  saved.internal = elements_of_all * between;
  return saved;
}

}  // namespace

SavedBytes saved_by(const OpContext& op) {
  SavedBytes saved;
  if (!is_differentiable(op) || op.results().empty()) return saved;
  const auto operands = op.tensors();
  const auto result = op.results().front();
  const auto keep = [&](ValueId value) {
    if (value.valid()) saved.values.push_back(value);
  };
  const auto name = op.base_name();
  const auto result_bytes = bytes_of(op.graph(), result);
  switch (op.traits().saved) {
    case SavedTensors::kNothing:
      break;
    case SavedTensors::kInput:
      keep(operands.empty() ? ValueId::none() : operands.front());
      if (op.traits().family == OpFamily::kReduce) keep(result);  // std, norm, amax compare with the result
      if (op.traits().family == OpFamily::kClassHead) {
        saved.internal = class_head_memory(op).saved;
        keep(op.tensor("target"));
      }
      break;
    case SavedTensors::kResult:
      // cross entropy keeps its log-softmax, which only the op knows
      if (op.traits().family == OpFamily::kClassLoss) {
        const auto logits = operands.front();
        const bool widens = op.graph().is(op.id(), kCrossEntropy);
        if (widens && op.on_cuda()) {  // kernels keep the logits and a sum a row
          keep(logits);
          saved.internal = elements(op.sizes(op.tensor("target"))) * static_cast<double>(sizeof(float));
        } else {
          saved.internal =
              widens ? elements(op.sizes(logits)) * static_cast<double>(sizeof(float)) : bytes_of(op.graph(), logits);
        }
        keep(op.tensor("target"));
        keep(op.tensor("weight"));
      } else {
        keep(result);
      }
      break;
    case SavedTensors::kInputAndResult:
      if (op.graph().is(op.id(), kMaxPool) && takes_images_in_packs(op)) {
        saved.internal = elements(op.result_sizes());  // positions in the windows
        break;
      }
      keep(operands.empty() ? ValueId::none() : operands.front());
      if (name.starts_with("max_pool") || name.starts_with("adaptive_max_pool")) {
        if (op.results().size() > 1)
          keep(op.results()[1]);
        else
          saved.internal = elements(op.result_sizes()) * 8.0;  // indices
      } else {
        keep(result);
      }
      break;
    case SavedTensors::kInputs: {
      const auto family = op.traits().family;
      const bool is_product = family == OpFamily::kContraction || family == OpFamily::kLinear;
      const auto factors = factors_of(op);
      if (factors.size() == 2 && (name == "mul" || name == "multiply" || is_product)) {
        if (requires_grad(op, factors[0])) keep(factors[1]);
        if (requires_grad(op, factors[1])) keep(factors[0]);
        break;
      }
      if (operands.size() == 2 && (name == "div" || name == "divide" || name == "true_divide")) {
        keep(operands[1]);
        if (requires_grad(op, operands[1])) keep(operands[0]);
        break;
      }
      for (const auto operand : operands) keep(operand);
      break;
    }
    case SavedTensors::kMask:
      // dropout keeps its scaled mask, in the tensor's own type on CPUs, in bytes on GPUs; where and masked_fill the
      // given one
      if (op.traits().family == OpFamily::kDropout || op.traits().family == OpFamily::kFeatureDropout) {
        const bool active = op.flag("train", true) && op.number("p", 1) != 0;
        const bool in_bytes = op.on_cuda() && name == "dropout" && op.written_argument() < 0;
        if (active) saved.internal = in_bytes ? elements(op.result_sizes()) : result_bytes;
      } else {
        for (const auto operand : operands) {
          if (op.graph().value(operand).dtype == c10::ScalarType::Bool) keep(operand);
        }
      }
      break;
    case SavedTensors::kConvolution:
      keep(operands.front());
      keep(op.tensor("weight"));
      break;
    case SavedTensors::kNormalisation: {
      keep(op.graph().is(op.id(), kAddLayerNorm) ? result
                                                 : operands.front());  // its first result is the norm's operand
      if (keeps_result_of_relu(op)) keep(result);
      // statistics of 16-bit values are kept in single precision
      const auto row = std::max(4.0, static_cast<double>(size_of(dtype_of(op.graph().value(result).dtype)).value()));
      const auto& sizes = op.sizes(operands.front());
      if (op.traits().family == OpFamily::kLayerNorm) {
        double width = 1;
        const auto shape = op.integers("normalized_shape").value_or(std::vector<std::int64_t>{});
        for (const auto size : shape) width *= static_cast<double>(size);
        saved.internal = elements(sizes) * (2 * row / std::max(width, 1.0)) + mask_of_norm(op);
      } else if (op.traits().family == OpFamily::kBatchNorm) {
        saved.internal = {0, sizes.size() > 1 ? 2 * row * static_cast<double>(sizes[1].at(1)) : 0};
      } else {
        saved.internal = Affine{sizes.empty() ? 0 : 2 * row * op.number("num_groups", 1), 0};
      }
      break;
    }
    case SavedTensors::kJoined:
      return saved_by_joined(op);
    case SavedTensors::kAttention: {
      const bool by_products = attends_by_products(op);
      // Products keep scaled copies of the queries and keys, and of the mask nothing.
      for (std::size_t i = by_products ? 2 : 0; i < std::min<std::size_t>(operands.size(), by_products ? 3 : 4); ++i)
        keep(operands[i]);
      if (!by_products) keep(result);
      saved.internal = attention_memory(op).saved;
      break;
    }
    case SavedTensors::kRecurrent: {
      for (const auto operand : operands) keep(operand);
      for (const auto value : op.results()) keep(value);
      // of cells: gates, cell states and hidden states
      saved.internal = op.traits().family == OpFamily::kRecurrent ? recurrent_memory(op).saved : result_bytes * 6;
      break;
    }
    case SavedTensors::kIndices:
      for (const auto operand : operands) {
        if (!op.is_floating(operand)) keep(operand);
      }
      for (const auto value : op.results()) {
        if (!op.is_floating(value)) keep(value);
      }
      break;
  }
  return saved;
}

}  // namespace autopar::algebra
