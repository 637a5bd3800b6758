#include "torch/passes/channels_last.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <autopar/core/error.hpp>

#include "capture/ir/casts.hpp"
#include "capture/ir/tensor_form.hpp"
#include "ops/names.hpp"

namespace autopar::passes {
namespace {

/// A convolution of images: its data and weight.
struct ImageConvolution {
  ValueId data, weight;
};

std::optional<ImageConvolution> image_convolution(const OpGraph& graph, OpId op) {
  static constexpr std::array<std::string_view, 5> kNames{ops::kConv2d, ops::kConvTranspose2d, ops::kConvolution,
                                                          ops::kConvolutionImpl, ops::kConvolutionOverrideable};
  if (std::ranges::find(kNames, graph.name(op)) == kNames.end()) return std::nullopt;
  const ImageConvolution found{graph.input(op, 0), graph.input(op, 1)};
  if (!found.data.valid() || !found.weight.valid() || graph.value(found.weight).sizes.size() != 4) return std::nullopt;
  return found;
}

/// Whether an operator's result depends on its arguments' strides, and not on their elements alone.
bool reads_strides(std::string_view name) {
  return name.starts_with(ops::kAsStrided) || name.starts_with(ops::kSet) || name.starts_with(ops::kResize);
}

bool is_image(const trace::InputSpec& input) {
  return input.sizes.size() == 4 && input.batch_dim == 0 && c10::isFloatingType(input.dtype) &&
         input.format == at::MemoryFormat::Contiguous;
}

}  // namespace

bool gains_from_channels_last(const OpGraph& graph, MatrixUnits units) {
  constexpr std::int64_t kChannels = 8;  // channels must be a multiple of this for 16-bit and TF32 units
  constexpr std::int64_t kSamples = 8;
  double fast = 0, all = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto found = image_convolution(graph, OpId::of(i));
    if (!found) continue;
    const auto& weight = graph.value(found->weight);
    const auto& result = graph.value(graph.output(OpId::of(i)));
    if (result.sizes.size() != 4) continue;
    const auto pixels = result.sizes[2].at(kSamples) * result.sizes[3].at(kSamples);
    const auto work = static_cast<double>(weight.elements(kSamples)) * static_cast<double>(pixels);
    all += work;
    const bool half = weight.dtype == c10::ScalarType::Half || weight.dtype == c10::ScalarType::BFloat16;
    const bool takes = half ? units.half : weight.dtype == c10::ScalarType::Float && units.single;
    if (takes && weight.sizes[0].fixed % kChannels == 0 && weight.sizes[1].fixed % kChannels == 0) fast += work;
  }
  return all > 0 && fast > all / 2;
}

std::optional<ChannelsLastProgram> capture_channels_last(const OpGraph& plain, const torch::nn::Module& module,
                                                         const std::vector<trace::InputSpec>& inputs,
                                                         const trace::FlatForward& forward,
                                                         const trace::CaptureOptions& options) {
  for (std::size_t i = 0; i < plain.ops.size(); ++i) {
    if (reads_strides(plain.name(OpId::of(i)))) return std::nullopt;
  }
  ChannelsLastProgram program{{}, inputs};
  bool any = false;
  for (auto& input : program.inputs) {
    if (!is_image(input)) continue;
    input.format = at::MemoryFormat::ChannelsLast;
    any = true;
  }
  if (!any) return std::nullopt;
  try {
    trace::verify_capture(plain, module, program.inputs, forward, std::span(options.batch_sizes).first(1), options);
    program.graph = trace::capture(module, program.inputs, forward, options);
  } catch (const CaptureError&) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < plain.outputs.size(); ++i) {
    auto& result = program.graph.value(program.graph.outputs[i]);
    if (!result.is_leaf()) result.strides = plain.value(plain.outputs[i]).strides;
  }
  return program;
}

OpGraph lay_out_weight_copies(OpGraph graph) {
  const auto uses = graph.uses();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!ir::casts_parameter(graph, OpId::of(i))) continue;
    const auto copy = graph.output(OpId::of(i));
    const auto& readers = uses[copy.index()];
    const auto reads_as_weight = [&](OpId reader) {
      const auto found = image_convolution(graph, reader);
      return found && found->weight == copy && found->data != copy && ir::is_channels_last(graph.value(found->data));
    };
    if (readers.empty() || !std::ranges::all_of(readers, reads_as_weight)) continue;
    auto& info = graph.value(copy);
    const auto channels = info.sizes[1].fixed, height = info.sizes[2].fixed, width = info.sizes[3].fixed;
    info.strides = {{0, height * width * channels}, {0, 1}, {0, width * channels}, {0, channels}};
  }
  return graph;
}

}  // namespace autopar::passes
