#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/schedule/batch_split.hpp>

#include "capture/trace/capture.hpp"

namespace autopar::calls {

/// Arguments of one call, taken apart: what a capture needs, and what identifies it.
struct CallArguments {
  std::vector<at::Tensor> tensors;      ///< the caller's, defined ones only
  std::vector<std::size_t> positions;   ///< of each of `tensors` among the flattened arguments
  std::size_t flat_count = 0;           ///< flattened arguments, undefined ones included
  std::vector<trace::InputSpec> specs;  ///< of each of `tensors`
  std::string signature;                ///< structure, constants, types, sizes but for the batch: equal on all ranks
  std::int64_t samples = 0;             ///< local batch
  std::uint64_t shared = 0;             ///< hash of the contents of shared arguments
  std::string structure, beside;        ///< see Flattened
  bool has_batch = false;               ///< some argument has a batch dim

  /// By tensor: each rank has samples of its own, else all ranks have the same.
  [[nodiscard]] std::vector<bool> own() const;
};

/// @throws InvalidArgument if batch sizes of two arguments differ, or `batch_dims` does not fit the arguments
[[nodiscard]] CallArguments inspect_arguments(const Flattened& flattened, const Options& options);

/// Memory formats of a rank's image and volume arguments, as a word for the others; an argument without elements has
/// none.
[[nodiscard]] std::uint64_t formats_of(const CallArguments& arguments);

/// Gives each argument the format that it has on the first rank where it has elements, as one process would see all of
/// it.
/// @param words  `formats_of` of each rank
void agree_on_formats(CallArguments& arguments, std::span<const std::uint64_t> words);

/// What distinguishes captures of arguments in their formats, as text.
[[nodiscard]] std::string format_key(const CallArguments& arguments);

/// Number of samples on the ranks before `rank`.
[[nodiscard]] std::int64_t first_sample(const BatchLayout& layout, Rank rank);

}  // namespace autopar::calls
