#include "torch/parameters/fp8_shards.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>

#include <autopar/core/assert.hpp>

#include "torch/parameters/flat_memory.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::parameters {

namespace {

constexpr auto kIn8Bits = at::kFloat8_e4m3fn, kIn16Bits = at::kBFloat16;
constexpr auto kWords = at::kLong;  ///< in which bytes are copied
constexpr std::int64_t kWord = 8;

std::int64_t rounded_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

/// Bytes of elements in 8 bits, rounded in 16 bits before: what a cast of the gathered copy gives.
at::Tensor cast_shard(const at::Tensor& shard, const fp8::Layer& layer) {
  constexpr std::int64_t kRow = 512;  // the cast's kernel works on squares of a matrix
  const auto elements = shard.numel();
  const auto rounded = at::empty({rounded_up(elements, kRow)}, shard.options().dtype(kIn16Bits));
  rounded.narrow(0, 0, elements).copy_(shard);
  rounded.narrow(0, elements, rounded.numel() - elements).zero_();
  const auto cast = fused::cast_to_fp8(rounded.view({-1, kRow}), kIn8Bits, layer.of_weight(), fused::Fp8Sides::kRows);
  return cast.rows.view(at::kByte).view({-1}).narrow(0, 0, elements);
}

}  // namespace

Fp8Shards::Fp8Shards(std::shared_ptr<ShardMemory> memory, std::vector<fp8::Layer*> layers)
    : memory_(std::move(memory)), layers_(std::move(layers)), bytes_(lay_out_whole()) {
  const auto& unit = memory_->unit();
  AUTOPAR_ASSERT(unit.zero >= 3 && unit.gathered == kIn16Bits, "a unit that cannot be gathered in 8 bits");
  whole_ = at::empty({bytes_}, memory_->whole().options().dtype(at::kByte));
  for (std::size_t i = 0; i < unit.places.size(); ++i) {
    const auto flat = whole_.view(layers_[i] != nullptr ? kIn8Bits : kIn16Bits);
    parameters_.push_back(part_of(flat, offsets_[i] / width(i), unit.places[i].sizes));
  }
  drop_memory(whole_);
  lay_out_message();
}

std::int64_t Fp8Shards::lay_out_whole() {
  constexpr std::int64_t kAlignment = 256;  // as of memory of its own
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    offsets_.push_back(bytes);
    bytes = rounded_up(bytes + memory_->unit().places[i].elements() * width(i), kAlignment);
  }
  return bytes;
}

// Shards begin at multiples of 16 elements, and so at multiples of 16 bytes.
void Fp8Shards::lay_out_message() {
  constexpr std::int64_t kAlignment = 16;
  const auto& unit = memory_->unit();
  for (const auto rank : unit.ranks) {
    auto& pieces = pieces_.emplace_back();
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto shard = unit.shard_of(unit.places[i], rank);
      if (shard.empty()) continue;
      const auto begin = offsets_[i] + shard.begin * width(i);
      AUTOPAR_ASSERT(begin % kAlignment == 0, "a shard does not begin where vector loads do");
      pieces.push_back({i, shard.size(), bytes, begin, rounded_up(shard.size() * width(i), kAlignment)});
      bytes += pieces.back().bytes;
    }
    part_ = std::max(part_, bytes);
  }
}

bool Fp8Shards::gains() const {
  const auto in_16_bits = memory_->unit().elements * kWide;
  return 3 * part_ * static_cast<std::int64_t>(pieces_.size()) <= 2 * in_16_bits;
}

bool Fp8Shards::is_ready() const {
  return std::ranges::all_of(layers_, [](const auto* layer) { return layer == nullptr || layer->is_ready; });
}

at::Tensor Fp8Shards::pack() const {
  const at::NoGradGuard no_grad;
  const auto message = at::empty({part_ * static_cast<std::int64_t>(pieces_.size())}, whole_.options());
  const auto self = static_cast<std::size_t>(memory_->own().begin / memory_->unit().part());
  const auto part = message.narrow(0, part_ * static_cast<std::int64_t>(self), part_);
  std::vector<at::Tensor> to, from;
  for (const auto& piece : pieces_[self]) {
    const auto shard = memory_->local_shard(memory_->unit().places[piece.place]);
    auto bytes = part.narrow(0, piece.in_message, piece.elements * width(piece.place));
    if (const auto* const layer = layers_[piece.place]) {
      bytes.copy_(cast_shard(shard, *layer));
      continue;
    }
    to.push_back(bytes.view(kIn16Bits));
    from.push_back(shard);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  return message;
}

void Fp8Shards::unpack(const at::Tensor& message) {
  const at::NoGradGuard no_grad;
  if (!has_memory(whole_)) give_memory(whole_, static_cast<std::size_t>(bytes_));
  const auto into = whole_.view(kWords), words = message.view(kWords);
  std::vector<at::Tensor> to, from;
  for (std::size_t r = 0; r < pieces_.size(); ++r) {
    const auto part = part_ * static_cast<std::int64_t>(r);
    for (const auto& piece : pieces_[r]) {
      to.push_back(into.narrow(0, piece.in_whole / kWord, piece.bytes / kWord));
      from.push_back(words.narrow(0, (part + piece.in_message) / kWord, piece.bytes / kWord));
    }
  }
  at::_foreach_copy_(to, from);
}

void Fp8Shards::release() {
  if (has_memory(whole_)) drop_memory(whole_);
}

}  // namespace autopar::parameters
