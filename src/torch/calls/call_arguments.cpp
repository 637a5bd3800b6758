#include "torch/calls/call_arguments.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <c10/core/ScalarType.h>

#include <autopar/core/error.hpp>

#include "torch/calls/handshake.hpp"

namespace autopar::calls {

namespace {

std::optional<std::int64_t> batch_dim_of(const at::Tensor& tensor, std::size_t position, const Options& options) {
  const int dim = position < options.batch_dims.size() ? options.batch_dims[position] : 0;
  if (dim == kShared || tensor.dim() == 0) return std::nullopt;
  if (dim < 0 || dim >= tensor.dim()) {
    throw InvalidArgument("Options::batch_dims[" + std::to_string(position) + "] = " + std::to_string(dim) +
                          ", but tensor argument " + std::to_string(position) + " has " + std::to_string(tensor.dim()) +
                          " dims; give the dim that runs over samples, or autopar::kShared");
  }
  return dim;
}

std::uint64_t hash_contents(const at::Tensor& tensor, std::uint64_t seed) {
  const auto host = tensor.detach().to(at::kCPU).contiguous();
  return host.numel() == 0 ? seed : hash_bytes(host.const_data_ptr(), host.nbytes(), seed);
}

std::string describe_input(const trace::InputSpec& spec) {
  std::string text = " ";
  text += c10::toString(spec.dtype);
  text += "[";
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    const bool batch = spec.batch_dim && *spec.batch_dim == static_cast<std::int64_t>(d);
    text += (d > 0 ? "," : "") + (batch ? std::string("batch") : std::to_string(spec.sizes[d]));
  }
  return text + "]" + (spec.requires_grad ? " grad" : "");
}

}  // namespace

std::vector<bool> CallArguments::own() const {
  std::vector<bool> own;
  for (const auto& spec : specs) own.push_back(spec.batch_dim.has_value());
  return own;
}

CallArguments inspect_arguments(const Flattened& flattened, const Options& options) {
  CallArguments arguments;
  arguments.signature = flattened.structure;
  arguments.structure = flattened.structure;
  arguments.beside = flattened.beside;
  arguments.flat_count = flattened.tensors.size();
  std::optional<std::size_t> first_batched;
  if (options.batch_dims.size() > flattened.tensors.size()) {
    throw InvalidArgument("Options::batch_dims has " + std::to_string(options.batch_dims.size()) +
                          " entries, but the call has " + std::to_string(flattened.tensors.size()) +
                          " tensor arguments; give one for each tensor");
  }
  for (std::size_t i = 0; i < flattened.tensors.size(); ++i) {
    const auto& tensor = flattened.tensors[i];
    if (!tensor.defined()) {
      arguments.signature += " undefined";
      continue;
    }
    auto spec = trace::input_spec(tensor, batch_dim_of(tensor, i, options));
    if (spec.batch_dim) {
      const auto samples = tensor.size(*spec.batch_dim);
      if (first_batched && samples != arguments.samples) {
        throw InvalidArgument(
            "tensor argument " + std::to_string(i) + " has " + std::to_string(samples) + " samples, but argument " +
            std::to_string(*first_batched) + " has " + std::to_string(arguments.samples) +
            "; name the dim that runs over samples in Options::batch_dims, or autopar::kShared for an "
            "argument that all samples have in common");
      }
      if (!first_batched) first_batched = i;
      arguments.samples = samples;
    } else {
      arguments.shared = hash_contents(tensor, arguments.shared + i + 1);
    }
    arguments.signature += describe_input(spec);
    arguments.tensors.push_back(tensor);
    arguments.positions.push_back(i);
    arguments.specs.push_back(std::move(spec));
  }
  arguments.has_batch = first_batched.has_value();
  return arguments;
}

namespace {

// Two bits an argument: nothing known, contiguous, channels-last. The first 32 with a format may have one.
constexpr std::uint64_t kContiguous = 1, kChannelsLast = 2, kMask = 3;
constexpr int kBits = 2, kFormats = 32;

/// Calls `visit(position among the tensors, shift of its bits)` for arguments that may be channels-last.
template <class Visit>
void for_each_format(const CallArguments& arguments, Visit&& visit) {
  int place = 0;
  for (std::size_t i = 0; i < arguments.specs.size() && place < kFormats; ++i) {
    const auto dims = arguments.specs[i].sizes.size();
    if (dims == 4 || dims == 5) visit(i, kBits * place++);
  }
}

}  // namespace

std::uint64_t formats_of(const CallArguments& arguments) {
  std::uint64_t word = 0;
  for_each_format(arguments, [&](std::size_t i, int shift) {
    if (arguments.tensors[i].numel() == 0) return;
    const bool plain = arguments.specs[i].format == at::MemoryFormat::Contiguous;
    word |= (plain ? kContiguous : kChannelsLast) << shift;
  });
  return word;
}

void agree_on_formats(CallArguments& arguments, std::span<const std::uint64_t> words) {
  for (auto& spec : arguments.specs) spec.format = at::MemoryFormat::Contiguous;
  for_each_format(arguments, [&](std::size_t i, int shift) {
    const auto known = std::ranges::find_if(words, [&](std::uint64_t word) { return ((word >> shift) & kMask) != 0; });
    if (known == words.end() || ((*known >> shift) & kMask) != kChannelsLast) return;
    auto& spec = arguments.specs[i];
    spec.format = spec.sizes.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  });
}

std::string format_key(const CallArguments& arguments) {
  std::string key;
  for (std::size_t i = 0; i < arguments.specs.size(); ++i) {
    if (arguments.specs[i].format == at::MemoryFormat::Contiguous) continue;
    key += (key.empty() ? "; channels last " : ",") + std::to_string(i);
  }
  return key;
}

std::int64_t first_sample(const BatchLayout& layout, Rank rank) {
  return std::accumulate(layout.local.begin(), layout.local.begin() + rank.value(), std::int64_t{0});
}

}  // namespace autopar::calls
