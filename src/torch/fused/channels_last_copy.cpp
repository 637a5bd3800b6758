#include "torch/fused/channels_last_copy.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using CopyShape = kernels::ChannelsLastCopyShape;

/// The weight form that a kernel supports; none if no kernel does.
std::optional<WeightForm> taken_form(const at::Tensor& single, const at::Tensor& half) {
  constexpr std::uintptr_t kPair = 4;
  const auto form = single.is_cuda() && half.device() == single.device() ? weight_form_of(single, half) : std::nullopt;
  if (!form || reinterpret_cast<std::uintptr_t>(half.const_data_ptr()) % kPair != 0) return std::nullopt;
  const bool has = devices::context_of(single.device().type())
                       .has_kernels(kernels::kChannelsLastCopyKernels, single.device().index());
  return has ? form : std::nullopt;
}

int copy_tiles_of(const WeightForm& form) {
  const int tile = CopyShape::tile(form.inputs, form.places);
  return (form.inputs + tile - 1) / tile;
}

kernels::LaunchShape copy_shape_of(const WeightForm& form) {
  return {static_cast<unsigned>(form.outputs) * static_cast<unsigned>(copy_tiles_of(form)), 1, CopyShape::kLanes,
          CopyShape::kWarps};
}

void launch_to_single(const at::Tensor& to, const at::Tensor& from, const WeightForm& form, bool adds) {
  const auto kernel = std::string("from_channels_last_") + detail::kernel_type(from.scalar_type());
  detail::launch(to, kernels::kChannelsLastCopyKernels, kernel.c_str(), copy_shape_of(form), detail::memory_of(to),
                 detail::data_of(from), form.inputs, form.places, CopyShape::tile(form.inputs, form.places),
                 copy_tiles_of(form), adds ? 1 : 0);
}

}  // namespace

std::optional<WeightForm> weight_form_of(const at::Tensor& single, const at::Tensor& half) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const bool has_types = single.scalar_type() == at::kFloat && c10::isReducedFloatingType(half.scalar_type()) &&
                         detail::kernel_type(half.scalar_type()) != nullptr;
  if (!has_types || single.dim() != 4 || single.sizes() != half.sizes()) return std::nullopt;
  const bool lie = single.is_contiguous() && half.is_contiguous(at::MemoryFormat::ChannelsLast) && !half.is_neg();
  const auto outputs = single.size(0), inputs = single.size(1), places = single.size(2) * single.size(3);
  if (!lie || outputs == 0 || inputs < 2 || places < 2 || places > CopyShape::kMostPlaces) return std::nullopt;
  if (inputs > kMost / places || outputs > kMost / inputs) return std::nullopt;
  return WeightForm{static_cast<int>(outputs), static_cast<int>(inputs), static_cast<int>(places)};
}

void copy_between_layouts(const at::Tensor& to, const at::Tensor& from) {
  if (const auto back = taken_form(to, from)) {
    launch_to_single(to, from, *back, false);
  } else if (const auto form = taken_form(from, to)) {
    const auto kernel = std::string("to_channels_last_") + detail::kernel_type(to.scalar_type());
    detail::launch(to, kernels::kChannelsLastCopyKernels, kernel.c_str(), copy_shape_of(*form), detail::memory_of(to),
                   detail::data_of(from), form->inputs, form->places, CopyShape::tile(form->inputs, form->places),
                   copy_tiles_of(*form));
  } else {
    to.copy_(from);
  }
}

void add_between_layouts(const at::Tensor& to, const at::Tensor& from) {
  if (const auto form = taken_form(to, from))
    launch_to_single(to, from, *form, true);
  else
    to.add_(from);
}

}  // namespace autopar::fused
