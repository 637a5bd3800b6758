#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

#include <bit>
#include <cmath>
#include <limits>

using namespace autopar;

namespace {

/// The sum of one element a rank, as a loopback world gives it.
template <class T>
std::vector<T> sum_over_ranks(const std::vector<std::vector<T>>& addends, DType dtype) {
  std::vector<T> result(addends.front().size());
  loopback::run(static_cast<int>(addends.size()), [&](World& world) {
    AnyTransport transport = world.make_transport();
    std::vector<Rank> everyone;
    for (int rank = 0; rank < world.size(); ++rank) everyone.emplace_back(rank);
    const auto raw = std::as_bytes(std::span(addends[world.rank_id().index()]));
    const auto memory = std::make_shared<std::vector<std::byte>>(raw.begin(), raw.end());
    transport.wait(transport.all_reduce(transport_laws::buffer_of(memory), dtype, transport.make_group(everyone)));
    if (world.rank_id() == Rank(0)) std::memcpy(result.data(), memory->data(), memory->size());
  });
  return result;
}

/// Correctly rounded binary16 by search over all its finite values: slow and obvious.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t nearest_half(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  std::uint16_t low = 0;
  std::uint16_t high = 0x7bff;
  while (low < high) {
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    if (half_value(middle) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<std::uint16_t>(middle - 1);
    }
  }
  const double below = half_value(low);
  const double above = low == 0x7bff ? 65536 : half_value(static_cast<std::uint16_t>(low + 1));
  const double middle = (below + above) / 2;
  const bool up = magnitude > middle || (magnitude == middle && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (low + (up ? 1 : 0)));
}

}  // namespace

TEST_CASE("all-reduce: fp16 is summed in fp32 and rounded once") {
  std::mt19937 random(3);
  std::vector<std::vector<std::uint16_t>> addends(3, std::vector<std::uint16_t>(20'000));
  for (auto& addend : addends) {
    for (auto& bits : addend) {
      do {
        bits = static_cast<std::uint16_t>(random());
      } while ((bits & 0x7c00) == 0x7c00);
      if (random() % 4 == 0) bits &= 0x83ff;  // subnormal
    }
  }
  const auto sums = sum_over_ranks(addends, DType::kF16);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float total = static_cast<float>(half_value(addends[0][i]));
    for (std::size_t rank = 1; rank < 3; ++rank) total += static_cast<float>(half_value(addends[rank][i]));
    CAPTURE(i, total, sums[i]);
    REQUIRE(sums[i] == nearest_half(static_cast<double>(total)));
  }
}

TEST_CASE("all-reduce: every fp16 value survives, NaN included") {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto sums = sum_over_ranks<std::uint16_t>({all, std::vector<std::uint16_t>(65536, 0x8000)}, DType::kF16);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool nan = (all[i] & 0x7c00) == 0x7c00 && (all[i] & 0x3ff) != 0;
    CAPTURE(i);
    if (nan) {
      REQUIRE(((sums[i] & 0x7c00) == 0x7c00 && (sums[i] & 0x3ff) != 0));
    } else {
      REQUIRE(sums[i] == all[i]);
    }
  }
}

TEST_CASE("all-reduce: bf16 is summed in fp32 and rounded once") {
  const auto bf16 = [](float value) {
    REQUIRE((std::bit_cast<std::uint32_t>(value) & 0xffff) == 0);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  };
  // 1 + 2^-8 lies between 1 and 1 + 2^-7: even is 1. With one more 2^-8 the sum is exact. 1 + 3·2^-8 rounds up to even.
  const auto one =
      sum_over_ranks<std::uint16_t>({{bf16(1.0f), bf16(1.0f)}, {bf16(0x1p-8f), bf16(0x1.8p-7f)}}, DType::kBF16);
  REQUIRE(one == std::vector<std::uint16_t>{bf16(1.0f), bf16(1.0f + 0x1p-6f)});
  const auto once = sum_over_ranks<std::uint16_t>({{bf16(1.0f)}, {bf16(0x1p-8f)}, {bf16(0x1p-8f)}}, DType::kBF16);
  REQUIRE(once == std::vector<std::uint16_t>{bf16(1.0f + 0x1p-7f)});
  const float infinity = std::numeric_limits<float>::infinity();
  const auto special =
      sum_over_ranks<std::uint16_t>({{bf16(infinity), 0x7fc1}, {bf16(1.0f), bf16(1.0f)}}, DType::kBF16);
  REQUIRE(special[0] == bf16(infinity));
  REQUIRE((special[1] & 0x7f80) == 0x7f80);
  REQUIRE((special[1] & 0x7f) != 0);
}

TEST_CASE("all-reduce: integers wrap and are exact") {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max();
  REQUIRE(sum_over_ranks<std::int64_t>({{large, 5}, {1, -7}}, DType::kI64) ==
          std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), -2});
  REQUIRE(sum_over_ranks<std::int32_t>({{3}, {4}, {-9}}, DType::kI32) == std::vector<std::int32_t>{-2});
}
