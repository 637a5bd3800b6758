#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <autopar/runtime/world.hpp>

#include "torch/engine/rounded_sums.hpp"

/// The bits of sums that are sent in bf16, on every member, transport and device: written without libtorch. They throw
/// where Catch's assertions, which are not for several threads, cannot be used.
namespace rounded_sums_law {

namespace ap = autopar;

inline float as_bf16(float value) {
  if (std::isnan(value)) return value;
  const auto word = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((word + 0x7fffu + ((word >> 16) & 1u)) & 0xffff0000u);  // to nearest even
}

/// Of very different magnitudes, so that another order, or sums in bf16, give other bits. Some are infinite, not a
/// number, or so large that bf16 rounds them to infinity.
inline std::vector<float> addend(std::uint32_t seed, std::size_t member, std::size_t elements) {
  std::minstd_rand random(seed * 101 + static_cast<std::uint32_t>(member) + 1);
  std::vector<float> values(elements);
  for (float& value : values) {
    value = (static_cast<float>(random()) / 1e9F - 1) * static_cast<float>(1 << (random() % 16));
    const auto kind = random() % 64;
    if (kind == 0) value = std::numeric_limits<float>::infinity();
    if (kind == 1) value = -std::numeric_limits<float>::infinity();
    if (kind == 2) value = std::numeric_limits<float>::quiet_NaN();
    if (kind == 3) value = std::numeric_limits<float>::max();
    if (kind == 4) value *= 1e-30F;
  }
  return values;
}

inline std::vector<float> sum_in_order(std::uint32_t seed, std::size_t members, std::size_t elements) {
  std::vector<float> sum(elements, 0);
  for (std::size_t member = 0; member < members; ++member) {
    const auto values = addend(seed, member, elements);
    for (std::size_t i = 0; i < elements; ++i) sum[i] += as_bf16(values[i]);
  }
  return sum;
}

inline void require_same(const torch::Tensor& got, const std::vector<float>& want, const std::string& what) {
  const auto host = got.cpu().contiguous();
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float value = host.data_ptr<float>()[i];
    const bool same = std::isnan(want[i])
                          ? std::isnan(value)
                          : std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(want[i]);
    if (same) continue;
    throw std::runtime_error(what + ": element " + std::to_string(i) + " is " + std::to_string(value) + ", not " +
                             std::to_string(want[i]));
  }
}

/// Over one group, in order.
class Exchange final : public ap::PartExchange {
 public:
  Exchange(ap::AnyTransport& transport, ap::GroupId group) : transport_(transport), group_(group) {}
  void all_to_all(const ap::Buffer& buffer) override { transport_.wait(transport_.all_to_all(buffer, group_)); }
  void all_gather(const ap::Buffer& buffer) override { transport_.wait(transport_.all_gather(buffer, group_)); }

 private:
  ap::AnyTransport& transport_;
  ap::GroupId group_;
};

/// Collective: sums over all ranks, and over all but the first.
/// @param device  of the transport's memory
inline void check(ap::World& world, ap::AnyTransport transport, c10::Device device = at::kCPU) {
  for (int first = 0; first < 2 && first < world.size(); ++first) {
    std::vector<ap::Rank> ranks;
    for (int rank = first; rank < world.size(); ++rank) ranks.emplace_back(rank);
    const auto group = transport.make_group(ranks);
    if (world.rank() < first) continue;
    Exchange exchange(transport, group);
    const ap::engine::SummingStream beside(device);
    const auto position = static_cast<std::size_t>(world.rank() - first);
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      const std::size_t part = seed % 2 == 0 ? 16 : 4096, elements = part * ranks.size();
      const auto values = addend(seed, position, elements);
      const auto flat = torch::tensor(values).to(device);
      const auto sum = sum_in_order(seed, ranks.size(), elements);

      const bool adds = seed % 3 != 0;
      const auto destination = adds ? ap::fused::Destination::kAdds : ap::fused::Destination::kIsWritten;
      const auto shard = torch::ones({static_cast<std::int64_t>(part)}, flat.options());
      const ap::engine::RoundedBucket bucket(flat, ranks, world.rank_id());
      auto in_shards = beside.run([&] { ap::engine::reduce_scatter(bucket, shard, destination, exchange); });
      beside.wait_for(in_shards);
      auto own = std::vector<float>(part, adds ? 1 : 0);
      for (std::size_t member = 0; member < ranks.size(); ++member) {
        const auto theirs = addend(seed, member, elements);
        for (std::size_t i = 0; i < part; ++i) own[i] += as_bf16(theirs[position * part + i]);
      }
      require_same(shard, own, "shard of a sum");

      auto whole = beside.run([&] { ap::engine::all_reduce(bucket, exchange); });
      beside.wait_for(whole);
      auto rounded = sum;
      for (float& value : rounded) value = as_bf16(value);
      require_same(flat, rounded, "whole sum");
    }
  }
  world.barrier();
}

}  // namespace rounded_sums_law
