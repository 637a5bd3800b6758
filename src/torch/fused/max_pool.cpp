#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/max_pool_source.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "shard/kept.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

constexpr std::int64_t kMostPositions = 256;  // in a window, because a byte holds the position

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// libtorch's argument for height and width: one number for both, or two.
struct HeightAndWidth {
  std::int64_t height, width;

  static std::optional<HeightAndWidth> of(at::IntArrayRef sizes) {
    if (sizes.size() != 1 && sizes.size() != 2) return std::nullopt;
    return HeightAndWidth{sizes.front(), sizes.back()};
  }
};

struct PoolArguments {
  at::IntArrayRef kernel_size, stride, padding, dilation;
  bool ceil_mode;
};

/// The windows of arguments that kernels support; none for others, including invalid ones.
std::optional<kernels::PoolWindows> windows_of(const Tensor& input, const PoolArguments& given) {
  const auto kernel = HeightAndWidth::of(given.kernel_size), padding = HeightAndWidth::of(given.padding),
             dilation = HeightAndWidth::of(given.dilation),
             stride = given.stride.empty() ? kernel : HeightAndWidth::of(given.stride);
  if (!kernel || !padding || !dilation || !stride || dilation->height != 1 || dilation->width != 1) return std::nullopt;
  const auto fits = [](std::int64_t size, std::int64_t step, std::int64_t margin) {
    return size > 0 && size <= kMostPositions && step > 0 && margin >= 0 && margin <= size / 2;
  };
  if (!fits(kernel->height, stride->height, padding->height) || !fits(kernel->width, stride->width, padding->width) ||
      kernel->height * kernel->width > kMostPositions)
    return std::nullopt;
  const auto windows_in = [&](std::int64_t of, std::int64_t size, std::int64_t step, std::int64_t margin) {
    return at::native::pooling_output_shape<std::int64_t>(of, size, margin, step, 1, given.ceil_mode);
  };
  const auto height = input.size(2), width = input.size(3);
  const auto out_height = windows_in(height, kernel->height, stride->height, padding->height),
             out_width = windows_in(width, kernel->width, stride->width, padding->width);
  const auto rows = input.size(0) * std::max(height, out_height);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;  // leaves room for additions below 2^31
  if (out_height <= 0 || out_width <= 0 || std::max({rows, width, stride->height, stride->width}) > kMost)
    return std::nullopt;
  const auto as_int = [](std::int64_t number) { return static_cast<int>(number); };
  return kernels::PoolWindows{as_int(height),         as_int(width),          as_int(out_height),
                              as_int(out_width),      as_int(kernel->height), as_int(kernel->width),
                              as_int(stride->height), as_int(stride->width),  as_int(padding->height),
                              as_int(padding->width)};
}

/// Whether the kernels support the images: channels must be contiguous.
bool takes_images(const Tensor& input) {
  if (!input.is_cuda() || detail::kernel_type(input.scalar_type()) == nullptr || input.dim() != 4 || input.numel() == 0)
    return false;
  return input.is_contiguous(at::MemoryFormat::ChannelsLast) && detail::is_aligned(input) &&
         input.size(1) * input.element_size() % detail::kPackBytes == 0 &&
         devices::context_of(input.device().type()).has_kernels(kernels::kMaxPoolKernels, input.device().index());
}

std::int64_t packs_of(const Tensor& images) { return images.size(1) * images.element_size() / detail::kPackBytes; }

/// Launch shape of blocks that take rows of `width` columns. @param packs  packs of channels in each column
kernels::LaunchShape over_rows_of_images(std::int64_t rows, std::int64_t width, std::int64_t packs) {
  constexpr std::int64_t kThreads = 256, kMostThreadsX = 64, kMostBlocks = 65535;
  const auto threads_x = std::bit_floor(static_cast<std::uint64_t>(std::min(packs, kMostThreadsX)));
  const auto threads_y = std::min(std::bit_ceil(static_cast<std::uint64_t>(width)), kThreads / threads_x);
  const auto blocks_x = (static_cast<std::uint64_t>(packs) + threads_x - 1) / threads_x;
  return {static_cast<unsigned>(blocks_x), static_cast<unsigned>(std::min(rows, kMostBlocks)),
          static_cast<unsigned>(threads_x), static_cast<unsigned>(threads_y)};
}

template <class... Kinds>
void launch_pooling(const Tensor& on, const char* what, const kernels::LaunchShape& shape, Kinds... arguments) {
  const auto kernel = std::string(what) + detail::kernel_type(on.scalar_type());
  detail::launch(on, kernels::kMaxPoolKernels, kernel.c_str(), shape, arguments...);
}

/// A gradient of the result, in the layout that kernels take.
Tensor laid_out(const Tensor& gradient) {
  return gradient.defined() ? detail::dense_in_packs(gradient, at::MemoryFormat::ChannelsLast) : gradient;
}

struct MaxPoolFunction : torch::autograd::Function<MaxPoolFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const kernels::PoolWindows& windows) {
    const auto images = input.size(0), channels = input.size(1), packs = packs_of(input);
    const auto options = input.options().memory_format(at::MemoryFormat::ChannelsLast);
    const auto result = at::empty({images, channels, windows.out_height, windows.out_width}, options);
    const auto positions = input.requires_grad() ? at::empty_like(result, result.options().dtype(at::kByte)) : Tensor();
    const auto rows = images * windows.out_height;
    launch_pooling(input, "max_pool_", over_rows_of_images(rows, windows.out_width, packs), detail::data_of(input),
                   detail::memory_of(result), detail::memory_of(positions), static_cast<int>(rows),
                   static_cast<int>(packs), windows);
    context->save_for_backward({positions});
    const auto numbers = std::bit_cast<std::array<int, sizeof(kernels::PoolWindows) / sizeof(int)>>(windows);
    context->saved_data["windows"] = std::vector<std::int64_t>(numbers.begin(), numbers.end());
    context->set_materialize_grads(false);
    return {result, detail::same_memory(result)};
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    autopar::detail::refuse_double_backward("max-pooling");
    if (!given[0].defined()) std::swap(given[0], given[1]);
    if (!given[0].defined()) return variable_list(2);
    std::array<int, sizeof(kernels::PoolWindows) / sizeof(int)> numbers{};
    std::ranges::copy(context->saved_data.at("windows").toIntVector(), numbers.begin());
    const auto windows = std::bit_cast<kernels::PoolWindows>(numbers);
    const auto positions = context->get_saved_variables()[0];
    const auto first = laid_out(given[0]), second = laid_out(given[1]);
    const auto images = first.size(0), packs = packs_of(first), rows = images * windows.height;
    const auto made = at::empty({images, first.size(1), windows.height, windows.width},
                                first.options().memory_format(at::MemoryFormat::ChannelsLast));
    launch_pooling(first, "max_pool_gradient_", over_rows_of_images(rows, windows.width, packs), detail::data_of(first),
                   detail::data_of(second), detail::data_of(positions), detail::memory_of(made), static_cast<int>(rows),
                   static_cast<int>(packs), windows);
    return {made, Tensor()};
  }
};

using MaxPoolResults = std::tuple<Tensor, Tensor>;

std::optional<MaxPoolResults> max_pool_in_kernels(const Tensor& input, at::IntArrayRef kernel_size,
                                                  at::IntArrayRef stride, at::IntArrayRef padding,
                                                  at::IntArrayRef dilation, bool ceil_mode) {
  if (!takes_images(input)) return std::nullopt;
  const auto windows = windows_of(input, {kernel_size, stride, padding, dilation, ceil_mode});
  if (!windows) return std::nullopt;
  const auto made = MaxPoolFunction::apply(input, *windows);
  return MaxPoolResults{made[0], made[1]};
}

MaxPoolResults max_pool_of_libtorch(const Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  return detail::twice(at::max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode));
}

/// Arguments of aten::max_pool2d.
struct MaxPoolArgument {
  enum : std::int32_t { kInput, kKernelSize, kStride, kPadding, kDilation, kCeilMode, kCount };
};

// ---------------------------------------------------------------- pattern

bool pools_neighbours(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kMaxPool2d) || !graph.op(op).integers.empty()) return false;
  const auto& args = graph.op(op).args;
  const auto& input = graph.value(graph.input(op, MaxPoolArgument::kInput));
  if (input.sizes.size() != 4 || !args[MaxPoolArgument::kKernelSize].isIntList() ||
      !args[MaxPoolArgument::kDilation].isIntList())
    return false;
  const auto kernel = args[MaxPoolArgument::kKernelSize].toIntVector(),
             dilation = args[MaxPoolArgument::kDilation].toIntVector();
  const auto positions = kernel.front() * kernel.back();  // one number means both sizes
  return c10::isFloatingType(input.dtype) && positions <= kMostPositions &&
         std::ranges::all_of(dilation, [](auto each) { return each == 1; });
}

/// Replaces max-pooling of images whose windows are contiguous and have up to 256 elements. Exact where libtorch's
/// operators run it. Kernels give the same maxima, and sum gradients in single precision. O(graph).
OpGraph fold_max_pools(OpGraph graph) {
  const auto operation = fused_operator(kMaxPool);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (pools_neighbours(graph, OpId::of(i))) graph.ops[i].op = operation;
  }
  return graph;
}

// ---------------------------------------------------------------- cost

/// Saves positions in the windows, a byte each.
SavedBytes saved_by_max_pool(const OpCall& op) {
  if (detail::takes_images_in_packs(op)) return {{}, ops::elements(op.result_sizes())};
  return ops::definition_of(ops::kMaxPool2d).saved_by(op);
}

OpDef cost_of_max_pool() {
  auto def = ops::definition_of(ops::kMaxPool2d);
  def.name = kMaxPool;
  def.traits = def.traits | OpTrait::kDuplicatedOutputs;
  def.saved_by = saved_by_max_pool;
  return def;
}

}  // namespace

FusedOp max_pool2d() {
  return {.name = kMaxPool,
          .schema =
              "max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool "
              "ceil_mode=False) -> (Tensor, Tensor)",
          .pattern = fold_max_pools,
          .cost = cost_of_max_pool,
          .forward = or_reference<max_pool_in_kernels, max_pool_of_libtorch>,
          .reference = boxed<max_pool_of_libtorch>};
}

}  // namespace autopar::fused
