#include "torch/fused/joined_parts.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace autopar::test {
namespace joined_parts {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr std::int64_t kOfPack = 16 / static_cast<std::int64_t>(sizeof(float));

/// What the kernel does, part by part.
void join_as_kernel(const Tensor& whole, const kernels::JoinedParts& joined, const Tensors& parts) {
  whole.fill_(0);
  const auto columns = whole.size(-1), rows = whole.numel() / columns;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].defined()) continue;
    for (std::int64_t row = 0; row < rows; ++row)
      for (int piece = 0; piece < joined.pieces[p]; ++piece)
        for (std::int64_t i = 0; i < joined.inner[p] * kOfPack; ++i) {
          const auto from =
              row / joined.length * joined.slab[p] + row % joined.length * joined.row[p] + piece * joined.piece[p];
          const auto to = row * columns + (joined.first[p] + piece * joined.period[p]) * kOfPack + i;
          whole.data_ptr<float>()[to] = parts[p].const_data_ptr<float>()[from * kOfPack + i];
        }
  }
}

/// The same numbers, with these dims outermost to innermost in memory.
Tensor laid_out(const Tensor& numbers, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return numbers.permute(order).contiguous().permute(back);
}

constexpr std::int64_t kSamples = 2, kLength = 5, kHeads = 3, kWidth = 8;
Tensor product() { return torch::zeros({kSamples, kLength, 3 * kHeads * kWidth}); }

/// How a program takes queries, keys and values [samples, heads, length, width] apart.
const std::vector<std::function<Tensors(const Tensor&)>> kWays{
    [](const Tensor& all) {
      return all.view({kSamples, kLength, 3, kHeads, kWidth}).permute({2, 0, 3, 1, 4}).unbind(0);
    },
    [](const Tensor& all) {
      Tensors parts;
      for (const auto& part : all.chunk(3, -1))
        parts.push_back(part.view({kSamples, kLength, kHeads, kWidth}).transpose(1, 2));
      return parts;
    },
    [](const Tensor& all) {
      return all.view({kSamples, kLength, kHeads, 3 * kWidth}).transpose(1, 2).chunk(3, -1);
    },
};

}  // namespace joined_parts

TEST_CASE("columns_of_parts: finds columns for any gradient layout", "[kernels]") {
  using namespace joined_parts;
  torch::manual_seed(1);
  for (std::size_t way = 0; way < kWays.size(); ++way) {
    for (const std::vector<std::int64_t>& order :
         {std::vector<std::int64_t>{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 2, 0, 3}, {2, 0, 1, 3}}) {
      for (const bool all_given : {true, false}) {
        INFO("way " << way << ", dims in memory " << order << ", all given: " << all_given);
        const auto whole = product(), exact = product();
        const auto places = kWays[way](whole), wanted = kWays[way](exact);
        Tensors parts;
        for (const auto& place : places) parts.push_back(laid_out(torch::randn(place.sizes()), order));
        if (!all_given) parts[1].reset();
        for (std::size_t i = 0; i < parts.size(); ++i)
          if (parts[i].defined()) wanted[i].copy_(parts[i]);
        const auto joined = fused::columns_of_parts(whole, places, parts);
        REQUIRE(joined);
        join_as_kernel(whole, *joined, parts);
        CHECK(torch::equal(whole, exact));
      }
    }
  }
}

TEST_CASE("columns_of_parts: refuses misaligned parts", "[kernels]") {
  using namespace joined_parts;
  const auto whole = product();
  const auto places = whole.chunk(3, -1);
  const auto takes = [&](const Tensors& of, const Tensors& parts) {
    return fused::columns_of_parts(whole, of, parts).has_value();
  };
  const auto like = [](const Tensors& of) {
    Tensors made;
    for (const auto& place : of) made.push_back(torch::zeros(place.sizes()));
    return made;
  };
  auto parts = like(places);
  CHECK(takes(places, parts));
  parts[1] = torch::zeros({kHeads * kWidth}).expand(places[1].sizes());  // one row for all
  CHECK(takes(places, parts));
  parts[1] = torch::zeros({1}).expand(places[1].sizes());
  CHECK_FALSE(takes(places, parts));
  parts[1] = torch::zeros({kHeads * kWidth, kSamples, kLength}).permute({1, 2, 0});
  CHECK_FALSE(takes(places, parts));
  parts[1] = torch::zeros({kSamples, kLength, kHeads * kWidth + 1}).narrow(2, 0, kHeads * kWidth);
  CHECK_FALSE(takes(places, parts));
  const auto of_rows = whole.chunk(2, 0), odd = whole.split(std::vector<std::int64_t>{26, 46}, -1);
  CHECK_FALSE(takes(of_rows, like(of_rows)));
  CHECK_FALSE(takes(odd, like(odd)));
  // Slabs of two lengths.
  const auto four = torch::zeros({2, 2, 2, 8});
  const auto halves = four.chunk(2, -1);
  const Tensors two{torch::zeros({2, 2, 2, 4}).transpose(0, 1).contiguous().transpose(0, 1),
                    torch::zeros({2, 2, 2, 4}).transpose(1, 2).contiguous().transpose(1, 2)};
  CHECK_FALSE(fused::columns_of_parts(four, halves, two).has_value());
  const at::NoGradGuard no_grad;
  CHECK_FALSE(fused::join_parts(whole, places, like(places)));  // on a CPU
}

}  // namespace autopar::test
