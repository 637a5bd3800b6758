#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/fp8_cast_source.hpp"
#include "unit/kernels/formats_of_8_bits.hpp"
#include "unit/kernels/numbers.hpp"

namespace fp8_cast_test {

using namespace cuda_on_cpu;
using autopar::kernels::Fp8CastShape;
using kernels_test::Format, kernels_test::kE4M3, kernels_test::kE5M2, kernels_test::nearest_code,
    kernels_test::number_of_code, kernels_test::Numbers;

struct Cast {
  std::vector<unsigned> rows, columns;
  float most = 0;
};

Cast cast_of(CudaOnCpu& gpu, const Format& format, const Numbers& from, std::size_t columns, std::size_t pitch,
             double scale, bool with_rows, bool with_columns) {
  const auto rows = from.size() / columns;
  const auto* in = gpu.reads<Bf16>("from", from);
  const auto* factor = gpu.reads<float>("scale", {scale});
  auto* by_rows = with_rows ? gpu.room<std::uint8_t>("rows", from.size()) : nullptr;
  auto* by_columns = with_columns ? gpu.room<std::uint8_t>("columns", columns * pitch) : nullptr;
  auto* most = gpu.holds<float>("most", {0});
  gpu.launch("cast_to_" + format.name,
             {kernels_test::blocks_for(columns, Fp8CastShape::kTile),
              kernels_test::blocks_for(rows, Fp8CastShape::kTile), Fp8CastShape::kThreads, Fp8CastShape::kThreads},
             in, by_rows, by_columns, factor, most, static_cast<int>(rows), static_cast<int>(columns),
             static_cast<int>(pitch));
  Cast made;
  if (with_rows) made.rows.assign(by_rows, by_rows + from.size());
  if (with_columns) made.columns.assign(by_columns, by_columns + columns * pitch);
  made.most = *most;
  return made;
}

/// Bf16 numbers of all sizes, among them 0, the halves between two numbers of the format, and what saturates.
Numbers numbers_of_all_sizes(const Format& format, std::size_t count) {
  auto numbers = kernels_test::drawn(count, 3);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 5 == 0) numbers[i] = number_of_code(format, static_cast<unsigned>(i / 5 % (format.largest + 1)));
    if (i % 5 == 1) numbers[i] = std::ldexp(numbers[i], static_cast<int>(i % 40) - 24);
    if (i % 5 == 2 && i / 5 % 128 < format.largest)
      numbers[i] = -(number_of_code(format, static_cast<unsigned>(i / 5 % 128)) +
                     number_of_code(format, static_cast<unsigned>(i / 5 % 128 + 1))) /
                   2;
    numbers[i] = number_of(rounded<Bf16>(numbers[i]));
  }
  return numbers;
}

TEST_CASE("fp8_cast: nearest number of the format, by rows and by columns") {
  struct Case {
    std::size_t rows, columns;
    double scale;
  };
  for (const auto& format : {kE4M3, kE5M2}) {
    for (const auto& [rows, columns, scale] :
         std::vector<Case>{{1, 16, 1}, {5, 32, 2}, {128, 128, 0.25}, {130, 144, 1}, {300, 272, 16}}) {
      INFO(format.name << " " << rows << " x " << columns << " by " << scale);
      const auto pitch = (rows + 15) / 16 * 16;
      const auto from = numbers_of_all_sizes(format, rows * columns);
      double most = 0;
      std::vector<unsigned> by_rows, by_columns(columns * pitch);
      for (std::size_t i = 0; i < from.size(); ++i) {
        by_rows.push_back(nearest_code(format, from[i] * scale));
        by_columns[i % columns * pitch + i / columns] = by_rows.back();
        most = std::max(most, std::abs(from[i]));
      }
      for (const auto [with_rows, with_columns] : {std::pair(true, true), {true, false}, {false, true}}) {
        const auto made = in_every_order(fp8_cast, [&](CudaOnCpu& gpu) {
          return cast_of(gpu, format, from, columns, pitch, scale, with_rows, with_columns);
        });
        CHECK((!with_rows || made.rows == by_rows));
        CHECK((!with_columns || made.columns == by_columns));
        CHECK(made.most == most);
      }
    }
  }
}

TEST_CASE("fp8_cast: the transpose has the bytes of the rows, and zeros behind them") {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 16}, {130, 144}, {256, 128}}) {
    const auto pitch = (rows + 15) / 16 * 16;
    std::vector<std::uint8_t> expected(columns * pitch);
    const auto made = in_every_order(fp8_cast, [&](CudaOnCpu& gpu) {
      auto* const from = gpu.room<std::uint8_t>("from", rows * columns);
      for (std::size_t i = 0; i < rows * columns; ++i) {
        from[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
        expected[i % columns * pitch + i / columns] = from[i];
      }
      auto* const to = gpu.room<std::uint8_t>("columns", columns * pitch);
      gpu.launch("transpose",
                 {kernels_test::blocks_for(columns, Fp8CastShape::kTile),
                  kernels_test::blocks_for(rows, Fp8CastShape::kTile), Fp8CastShape::kThreads, Fp8CastShape::kThreads},
                 from, to, static_cast<int>(rows), static_cast<int>(columns), static_cast<int>(pitch));
      return std::vector<std::uint8_t>(to, to + columns * pitch);
    });
    CHECK(made == expected);
  }
}

TEST_CASE("fp8_cast: every kernel is covered by a test") {
  const auto from = kernels_test::drawn(16 * 16, 1);
  CudaOnCpu gpu(fp8_cast, {});
  for (const auto& format : {kE4M3, kE5M2}) static_cast<void>(cast_of(gpu, format, from, 16, 16, 1, true, true));
  CHECK(fp8_cast.never_launched().empty());
}

TEST_CASE("fp8_cast: infinite numbers saturate, NaN stays, and both are told") {
  for (const double odd : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    auto from = kernels_test::drawn(4 * 16, 1);
    from[37] = odd;
    CudaOnCpu gpu(fp8_cast, {});
    const auto* in = gpu.room<Bf16>("from", from.size());
    auto* const bits = const_cast<Bf16*>(in);
    for (std::size_t i = 0; i < from.size(); ++i) bits[i] = rounded<Bf16>(from[i]);
    bits[37].bits = std::isnan(odd) ? 0x7fc0 : 0x7f80;
    const auto* factor = gpu.reads<float>("scale", {1});
    auto* rows = gpu.room<std::uint8_t>("rows", from.size());
    auto* most = gpu.holds<float>("most", {0});
    gpu.launch("cast_to_e4m3", {1, 1, Fp8CastShape::kThreads, Fp8CastShape::kThreads}, in, rows,
               static_cast<std::uint8_t*>(nullptr), factor, most, 4, 16, 4);
    CHECK(static_cast<unsigned>(rows[37]) == (std::isnan(odd) ? 0x7fU : kE4M3.largest));
    CHECK_FALSE(std::isfinite(*most));
  }
}

}  // namespace fp8_cast_test
