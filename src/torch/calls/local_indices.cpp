#include "torch/calls/local_indices.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

#include <ATen/ops/where.h>

#include <autopar/core/error.hpp>

#include "capture/algebra/sample_indices.hpp"
#include "capture/ir/shown_name.hpp"

namespace autopar::calls {

namespace {

constexpr std::size_t kLooked = 64;

bool is_integer(const trace::InputSpec& spec) {
  return spec.dtype == c10::ScalarType::Long || spec.dtype == c10::ScalarType::Int;
}

bool is_named(const Options& options, std::size_t position) {
  const auto& named = options.local_indices;
  return std::ranges::find(named, static_cast<int>(position)) != named.end();
}

std::string argument_name(std::size_t position) { return "tensor argument " + std::to_string(position); }

}  // namespace

void require_local_indices(const CallArguments& arguments, const Options& options) {
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    const auto position = arguments.positions[i];
    if (!is_named(options, position)) continue;
    const auto& spec = arguments.specs[i];
    const auto what = "Options::local_indices names " + argument_name(position) + ", which ";
    if (!is_integer(spec)) {
      throw InvalidArgument(what + "has elements of type " + c10::toString(spec.dtype) +
                            "; name arguments of int64 or int32 whose numbers count samples");
    }
    if (!spec.batch_dim) {
      throw InvalidArgument(what +
                            "is the same for all samples (Options::batch_dims), so it counts in no rank's own batch; "
                            "leave it out");
    }
    const auto& tensor = arguments.tensors[i];
    if (tensor.numel() == 0 || !tensor.is_cpu()) continue;
    const auto largest = tensor.max().item<std::int64_t>();
    if (largest < arguments.samples) continue;
    throw InvalidArgument(what + "holds " + std::to_string(largest) + ", but this rank's batch has " +
                          std::to_string(arguments.samples) +
                          " samples; count from its first sample, or leave the argument out and add "
                          "ap::first_sample(world, n) yourself, times the rows that a sample has");
  }
}

void count_in_global_batch(CallArguments& arguments, const Options& options, std::int64_t first) {
  if (first == 0) return;
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    if (!is_named(options, arguments.positions[i])) continue;
    auto& tensor = arguments.tensors[i];
    tensor = at::where(tensor.lt(0), tensor, tensor.add(first));
  }
}

std::uint64_t LocalIndexWatch::look(const CallArguments& arguments, const Options& options) const {
  std::uint64_t seen = 0;
  for (std::size_t i = 0; !has_warned_ && i < std::min(arguments.tensors.size(), kLooked); ++i) {
    const auto& tensor = arguments.tensors[i];
    const auto& spec = arguments.specs[i];
    if (!is_integer(spec) || !spec.batch_dim || tensor.numel() == 0 || is_named(options, arguments.positions[i]))
      continue;
    const auto largest = tensor.max().item<std::int64_t>();
    if (largest >= 0 && largest < arguments.samples) seen |= std::uint64_t{1} << i;
  }
  return seen;
}

void LocalIndexWatch::warn(const std::vector<CallHeader>& headers, const CallArguments& arguments,
                           const planning::ModelProgram& program, const Logger& log) {
  std::int64_t first = 0, later_ranks = 0;
  auto seen = ~std::uint64_t{0};
  for (const auto& header : headers) {
    if (first > 0 && header.samples > 0) {
      seen &= header.local_indices;
      ++later_ranks;
    }
    first += header.samples;
  }
  if (has_warned_ || later_ranks == 0 || seen == 0) return;
  const auto pickers = algebra::sample_indices(program.captured);
  std::string positions;
  OpId picker;
  for (std::size_t i = 0; i < std::min(pickers.size(), kLooked); ++i) {
    if (((seen >> i) & 1) == 0 || !pickers[i].picker.valid()) continue;
    if (!picker.valid()) picker = pickers[i].picker;
    positions += (positions.empty() ? "" : ", ") + std::to_string(arguments.positions[i]);
  }
  if (positions.empty()) return;
  has_warned_ = true;
  const auto& path = program.captured.op(picker).path;
  log.warn(ir::shown_name(program.captured, picker) + (path.empty() ? "" : " (near " + path + ")") +
           " picks samples of the global batch, all ranks' batches in rank order, by the numbers in tensor argument " +
           positions +
           ", and on every rank but the first these are below its own number of samples. If they count within each "
           "rank's batch, other ranks' samples are read: set Options::local_indices = {" +
           positions + "}, or add ap::first_sample(world, n) to them. If they count in the global batch, all is right");
}

}  // namespace autopar::calls
