#include "torch/collectives/whole_parameters.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/core/error.hpp>

#include "shard/tensor_buffer.hpp"
#include "torch/calls/handshake.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::collectives {

namespace {

constexpr std::int64_t kAlignment = 16;            // of the largest element type
constexpr std::int64_t kLargestPieces = 64 << 20;  // bytes, of all ranks together
constexpr std::int64_t kSmallestPiece = 64 << 10;  // bytes, of one rank

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Which tensors of a parameter a rank has, as it tells the others. Plain bytes.
struct Forms {
  enum Voice : std::int8_t { kSilent, kEmptyPart, kPart };
  static constexpr std::int8_t kUndefined = -1;

  Voice voice = kSilent;
  std::uint8_t count = 0;
  std::array<std::int8_t, WholeParameters::kMostTensors> types{};  ///< element types, or kUndefined
};

Forms forms_of(const std::vector<at::Tensor>& tensors, bool holds, bool is_empty) {
  Forms forms;
  if (!holds) return forms;
  forms.voice = is_empty ? Forms::kEmptyPart : Forms::kPart;
  forms.count = static_cast<std::uint8_t>(tensors.size());
  for (std::size_t j = 0; j < tensors.size(); ++j)
    forms.types[j] = tensors[j].defined() ? static_cast<std::int8_t>(tensors[j].scalar_type()) : Forms::kUndefined;
  return forms;
}

std::string label_of(const WholeParameters::Parts& parts, std::size_t j) {
  return j < parts.labels.size() ? parts.labels[j] : "tensor " + std::to_string(j);
}

std::string text_of(std::int8_t type) {
  return type == Forms::kUndefined ? "undefined" : c10::toString(static_cast<at::ScalarType>(type));
}

/// What the holders of a parameter have; what a rank without elements has tells nothing beside others.
Forms agreed(const WholeParameters::Parts& parts, const std::vector<Forms>& by_rank) {
  std::size_t first = 0;
  for (std::size_t r = 1; r < by_rank.size(); ++r) {
    if (by_rank[r].voice > by_rank[first].voice) first = r;
  }
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const auto &mine = by_rank[first], &other = by_rank[r];
    if (other.voice != Forms::kPart || (mine.count == other.count && mine.types == other.types)) continue;
    std::size_t j = 0;
    while (j + 1 < WholeParameters::kMostTensors && mine.types[j] == other.types[j]) ++j;
    throw InvalidArgument("the " + label_of(parts, j) + " of parameter '" + parts.tensor->name() + "' is " +
                          text_of(mine.types[j]) + " on rank " + std::to_string(first) + " and " +
                          text_of(other.types[j]) + " on rank " + std::to_string(r) +
                          "; every rank must have the same gradients and step its optimizers alike");
  }
  return by_rank[first];
}

/// A function may put other tensors in place of those that it was given, but of the same form.
void require_same_forms(const WholeParameters::Parts& parts, const std::vector<at::Tensor>& given,
                        std::vector<at::Tensor>& made) {
  const auto form = [](const at::Tensor& tensor) {
    std::ostringstream out;
    if (tensor.defined())
      out << tensor.scalar_type() << ' ' << tensor.sizes();
    else
      out << "undefined";
    return out.str();
  };
  made.resize(given.size());
  for (std::size_t j = 0; j < given.size(); ++j) {
    if (form(given[j]) != form(made[j])) {
      throw InvalidArgument("the function of whole parameters left the " + label_of(parts, j) + " of '" +
                            parts.tensor->name() + "' " + form(made[j]) + " in place of " + form(given[j]) +
                            "; it must keep sizes and element types, and what is undefined");
    }
    if (made[j].defined()) made[j] = made[j].detach().contiguous();
  }
}

}  // namespace

/// One parameter on its way.
struct WholeParameters::Item {
  const parameters::ManagedTensor* tensor = nullptr;
  parameters::ExchangeOrder order;
  std::vector<std::optional<at::ScalarType>> types{};  ///< by tensor; nothing: undefined
  std::vector<at::Tensor> local{};                     ///< flat, of this rank; undefined where it holds nothing
  Rank runner{};
  bool is_whole = false;  ///< each holder has all of it
  std::vector<at::Tensor> whole{};

  [[nodiscard]] std::int64_t bytes_of(std::size_t j, std::int64_t elements) const {
    return types[j] ? aligned(elements * static_cast<std::int64_t>(c10::elementSize(*types[j]))) : 0;
  }
  [[nodiscard]] bool is_alone() const { return is_whole && tensor->holders.size() == 1; }

  /// @param tensors  this rank's
  void flatten(const std::vector<at::Tensor>& tensors) {
    const parameters::PartAccess access;
    for (const auto& part : tensors) {
      const auto own = part.defined() ? part.detach() : at::Tensor();
      local.push_back(own.defined() ? own.reshape({-1}) : own);
    }
  }
  /// Where tensors have gaps or another order, what was flattened are copies.
  void restore(const std::vector<at::Tensor>& tensors, std::size_t written) const {
    const parameters::PartAccess access;
    for (std::size_t j = 0; j < std::min(written, tensors.size()); ++j) {
      if (tensors[j].defined() && !tensors[j].is_contiguous())
        tensors[j].detach().copy_(local[j].view(tensors[j].sizes()));
    }
  }
};

/// Some elements of one tensor in a rank's stream of bytes.
struct WholeParameters::Segment {
  std::size_t item = 0, tensor = 0;
  Interval elements;        ///< in exchange order
  std::int64_t offset = 0;  ///< in bytes
};

std::vector<WholeParameters::Item> WholeParameters::agree(const std::vector<Parts>& parts) {
  std::vector<Item> items;
  std::vector<Forms> mine;
  for (const auto& [tensor, tensors, labels] : parts) {
    items.push_back({tensor, parameters::ExchangeOrder(parameters_, *tensor)});
    items.back().is_whole = parameters_.is_whole(*tensor);
    const auto here = items.back().order.of(ranks_.rank());
    mine.push_back(forms_of(tensors, parameters_.holds(*tensor), here.empty()));
  }
  const auto blobs = ranks_.all_gather(std::as_bytes(std::span(mine)), "agreeing on tensors of whole parameters");
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::vector<Forms> by_rank(blobs.size());
    for (std::size_t r = 0; r < blobs.size(); ++r)
      std::memcpy(&by_rank[r], blobs[r].data() + i * sizeof(Forms), sizeof(Forms));
    const auto forms = agreed(parts[i], by_rank);
    for (std::size_t j = 0; j < forms.count; ++j) {
      items[i].types.push_back(forms.types[j] == Forms::kUndefined
                                   ? std::nullopt
                                   : std::optional(static_cast<at::ScalarType>(forms.types[j])));
    }
  }
  return items;
}

void WholeParameters::run(const std::vector<Parts>& parts, std::size_t written, const Function& function) {
  auto items = agree(parts);
  std::vector<parameters::WholeItem> sizes;
  for (const auto& item : items) {
    std::int64_t bytes = 0;
    for (std::size_t j = 0; j < item.types.size(); ++j) bytes += item.bytes_of(j, item.order.size());
    sizes.push_back({bytes, item.tensor->holders});
    room_ = std::max(room_, bytes);
  }
  room_ = std::min(room_, kLargestPieces);
  const auto rounds = parameters::rounds_of(sizes, ranks_.size());
  for (std::size_t i = 0; i < items.size(); ++i) items[i].runner = rounds.runners[i];
  for (const auto& round : rounds.rounds) {
    for (const auto i : round) {
      if (parameters_.holds(*items[i].tensor)) items[i].flatten(parts[i].tensors);
    }
    transfer([&] { gather(items, round); });
    compute(items, parts, round, function);
    transfer([&] { scatter(items, round, written); });
    for (const auto i : round) {
      if (parameters_.holds(*items[i].tensor)) items[i].restore(parts[i].tensors, written);
      items[i].local.clear();
      items[i].whole.clear();
    }
  }
}

/// Others wait for what this rank sends.
template <class Work>
void WholeParameters::transfer(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    ranks_.fail("exchange of whole parameters", error.what());
    throw;
  }
}

void WholeParameters::gather(std::vector<Item>& items, const std::vector<std::size_t>& round) {
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  std::vector<Stream> streams(static_cast<std::size_t>(ranks_.size()));
  std::vector<std::int64_t> lengths(streams.size(), 0);
  for (const auto i : round) {
    auto& item = items[i];
    const bool mine = item.runner == ranks_.rank();
    for (std::size_t j = 0; j < item.types.size(); ++j) {
      if (mine) item.whole.emplace_back();
      if (!item.types[j]) continue;
      if (mine) item.whole[j] = at::empty(item.tensor->sizes, at::dtype(*item.types[j]).device(device_));
      if (mine && item.is_whole && item.local[j].defined()) item.whole[j].view({-1}).copy_(item.local[j]);
      for (const auto holder : item.tensor->holders) {
        if (item.is_whole || !parameters_.counts_on(*item.tensor, holder)) continue;
        auto& length = lengths[holder.index()];
        streams[holder.index()].push_back({i, j, item.order.of(holder), length});
        length += item.bytes_of(j, item.order.of(holder).size());
      }
    }
  }
  exchange(
      items, streams,
      [&](const Segment& segment, Interval elements) {
        const auto& item = items[segment.item];
        return item.local[segment.tensor].narrow(0, elements.begin - item.order.of(ranks_.rank()).begin,
                                                 elements.size());
      },
      [&](const Segment& segment, Interval elements, const at::Tensor& arrived) {
        const auto& item = items[segment.item];
        if (item.runner == ranks_.rank()) item.order.write(arrived, elements, item.whole[segment.tensor]);
      });
}

void WholeParameters::compute(std::vector<Item>& items, const std::vector<Parts>& parts,
                              const std::vector<std::size_t>& round, const Function& function) {
  ranks::collective_try(ranks_, "a function of whole parameters", [&] {
    for (const auto i : round) {
      auto& item = items[i];
      if (item.runner != ranks_.rank()) continue;
      const auto before = item.whole;
      function(i, item.whole);
      require_same_forms(parts[i], before, item.whole);
    }
  });
}

void WholeParameters::scatter(std::vector<Item>& items, const std::vector<std::size_t>& round, std::size_t written) {
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  std::vector<Stream> streams(static_cast<std::size_t>(ranks_.size()));
  std::vector<std::int64_t> lengths(streams.size(), 0);
  for (const auto i : round) {
    const auto& item = items[i];
    for (std::size_t j = 0; j < std::min(written, item.types.size()); ++j) {
      if (!item.types[j]) continue;
      if (item.is_alone()) {
        if (item.runner == ranks_.rank()) item.local[j].copy_(item.whole[j].reshape({-1}));
        continue;
      }
      auto& length = lengths[item.runner.index()];
      streams[item.runner.index()].push_back({i, j, {0, item.order.size()}, length});
      length += item.bytes_of(j, item.order.size());
    }
  }
  exchange(
      items, streams,
      [&](const Segment& segment, Interval elements) {
        const auto& item = items[segment.item];
        return item.order.read(item.whole[segment.tensor], elements);
      },
      [&](const Segment& segment, Interval elements, const at::Tensor& arrived) {
        const auto& item = items[segment.item];
        const auto mine = item.order.of(ranks_.rank());
        const auto both = intersect(elements, mine);
        if (both.empty()) return;
        item.local[segment.tensor]
            .narrow(0, both.begin - mine.begin, both.size())
            .copy_(arrived.narrow(0, both.begin - elements.begin, both.size()));
      });
}

void WholeParameters::exchange(const std::vector<Item>& items, const std::vector<Stream>& streams, const Fill& fill,
                               const Take& take) {
  std::int64_t length = 0;
  for (const auto& stream : streams) {
    for (const auto& [item, tensor, elements, offset] : stream)
      length = std::max(length, offset + items[item].bytes_of(tensor, elements.size()));
  }
  if (length == 0) return;
  const auto ranks = static_cast<std::int64_t>(streams.size());
  const auto piece = std::min(length, std::max(aligned(room_ / ranks), kSmallestPiece));
  const auto memory = at::empty({ranks * piece}, at::dtype(at::kByte).device(device_));
  for (std::int64_t begin = 0; begin < length; begin += piece) {
    const auto bytes = std::min(piece, length - begin);
    const auto arrived = memory.narrow(0, 0, ranks * bytes);
    const auto for_each_part = [&](std::size_t rank, const auto& work) {
      for (const auto& segment : streams[rank]) {
        const auto type = *items[segment.item].types[segment.tensor];
        const auto size = static_cast<std::int64_t>(c10::elementSize(type));
        const auto both = intersect(Interval{begin, begin + bytes},
                                    Interval{segment.offset, segment.offset + segment.elements.size() * size});
        if (both.empty()) continue;
        const auto first = segment.elements.begin - segment.offset / size;
        const auto at = static_cast<std::int64_t>(rank) * bytes + both.begin - begin;
        work(segment, Interval{first + both.begin / size, first + both.end / size},
             arrived.narrow(0, at, both.size()).view(type));
      }
    };
    for_each_part(ranks_.rank().index(), [&](const Segment& segment, Interval elements, const at::Tensor& place) {
      place.copy_(fill(segment, elements));
    });
    wire_.wait(wire_.all_gather(buffer_of(arrived), everyone_));
    for (std::size_t r = 0; r < streams.size(); ++r) for_each_part(r, take);
  }
}

}  // namespace autopar::collectives
