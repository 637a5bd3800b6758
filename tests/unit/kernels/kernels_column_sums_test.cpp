#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/column_sums_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_column_sums_test {

using namespace cuda_on_cpu;
using autopar::kernels::ColumnSumsShape;
using kernels_test::Numbers;

struct Case {
  std::size_t rows, packs;
  std::size_t stride;    ///< of rows, in packs
  std::size_t of_block;  ///< rows
};

/// Rows up to the last one's end.
struct Operands {
  Numbers rows, before, sums;
};

/// Multiples of 1/4, whose sums single precision has; between rows there are NaN.
Operands operands_of(const Case& one, std::size_t elements_of_pack) {
  const auto columns = one.packs * elements_of_pack, stride = one.stride * elements_of_pack;
  const auto in_quarters = [](double number) { return std::round(4 * number) / 4; };
  Operands made{kernels_test::drawn((one.rows - 1) * stride + columns, 1), kernels_test::drawn(columns, 2),
                Numbers(columns)};
  for (auto& number : made.before) number = in_quarters(number);
  for (std::size_t i = 0; i < made.rows.size(); ++i) {
    auto& number = made.rows[i];
    number = i % stride < columns ? in_quarters(number) : NAN;
    if (i % stride < columns) made.sums[i % stride] += number;
  }
  return made;
}

/// @param adds  to what is there
template <class T, class W>
Numbers sums_of_kernels(CudaOnCpu& gpu, const Case& one, const Operands& of, bool adds) {
  const auto columns = of.sums.size();
  const auto blocks = kernels_test::blocks_for(one.rows, one.of_block);
  const auto* from = gpu.reads<T>("rows", of.rows);
  auto* const partial = gpu.room<float>("partial sums", blocks * columns);
  auto* const sum = adds ? gpu.holds<W>("sum", of.before) : gpu.room<W>("sum", columns);
  gpu.launch(std::string("column_sums_") + kName<T>,
             {kernels_test::blocks_for(one.packs, ColumnSumsShape::kPacks), blocks, ColumnSumsShape::kPacks,
              ColumnSumsShape::kRows},
             from, partial, static_cast<long long>(one.rows), static_cast<long long>(one.stride),
             static_cast<int>(one.packs), static_cast<int>(one.of_block));
  gpu.launch(std::string("add_up_columns_") + kName<W>,
             {kernels_test::blocks_for(columns, ColumnSumsShape::kColumns), 1, ColumnSumsShape::kColumns,
              ColumnSumsShape::kAtATime},
             partial, static_cast<int>(blocks), sum, static_cast<int>(columns), adds ? 1 : 0);
  return gpu.numbers(sum);
}

template <class T, class W>
void check(const Case& one) {
  const auto of = operands_of(one, 16 / sizeof(T));
  for (const bool adds : {false, true}) {
    Numbers exact;
    for (std::size_t i = 0; i < of.sums.size(); ++i)
      exact.push_back(number_of(rounded<W>(of.sums[i] + (adds ? of.before[i] : 0))));
    INFO(one.rows << " rows of " << one.packs << " packs, " << one.of_block << " rows a block, " << kName<T> << " to "
                  << kName<W> << (adds ? ", adds" : ""));
    CHECK(exact ==
          in_every_order(column_sums, [&](CudaOnCpu& gpu) { return sums_of_kernels<T, W>(gpu, one, of, adds); }));
  }
}

TEST_CASE("column_sums: exact, also when accumulated") {
  const std::vector<Case> cases{
      {1, 1, 1, 8},     {64, 2, 2, 64},  // all rows in flight
      {31, 33, 33, 32},                  // less of them; two blocks of columns, the last with few
      {100, 5, 9, 40},                   // gaps between rows; the last block has few
      {131, 3, 4, 96},                   // rows in flight, then others
      {300, 1, 1, 8},                    // more blocks than rows of a block that adds them up
  };
  for (const auto& one : cases) {
    kernels_test::for_each_type([&]<class T>() {
      check<T, float>(one);
      check<T, T>(one);
    });
  }
  CHECK(column_sums.never_launched().empty());
}

}  // namespace kernels_column_sums_test
