#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/joined_parts_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_joined_parts_test {

using namespace cuda_on_cpu;
using autopar::kernels::JoinedParts;
using kernels_test::Numbers;
using Shape = autopar::kernels::JoinedPartsShape;

struct Part {
  int first, period, pieces, inner;
  long long slab, row, piece;
  bool is_given = true;
};
struct Case {
  std::string what;
  std::size_t rows, packs;
  int length;
  std::vector<Part> parts;
  std::size_t blocks;  ///< that take turns at rows
};

/// Calls `visit(pack of the whole, pack of the part)` for each pack of a part.
template <class Visit>
void for_each_pack(const Case& one, const Part& part, const Visit& visit) {
  for (std::size_t row = 0; row < one.rows; ++row) {
    const auto slab = static_cast<long long>(row) / one.length, in_slab = static_cast<long long>(row) % one.length;
    for (int piece = 0; piece < part.pieces; ++piece)
      for (int i = 0; i < part.inner; ++i)
        visit(row * one.packs + static_cast<std::size_t>(part.first + piece * part.period + i),
              static_cast<std::size_t>(slab * part.slab + in_slab * part.row + piece * part.piece + i));
  }
}

/// Numbers of a part's memory, to its last pack, as the type has them.
template <class T>
Numbers memory_of(const Case& one, const Part& part, unsigned seed) {
  std::size_t packs = 0;
  for_each_pack(one, part, [&](std::size_t, std::size_t from) { packs = std::max(packs, from + 1); });
  auto made = kernels_test::drawn(packs * 16 / sizeof(T), seed);
  for (auto& number : made) number = number_of(rounded<T>(number));
  return made;
}

struct Made {
  Numbers whole, partial;
};

template <class T>
Made made_by_kernel(CudaOnCpu& gpu, const Case& one, const std::vector<Numbers>& given) {
  const auto columns = one.packs * 16 / sizeof(T);
  JoinedParts joined;
  joined.count = static_cast<int>(one.parts.size());
  joined.length = one.length;
  for (std::size_t i = 0; i < one.parts.size(); ++i) {
    const auto& part = one.parts[i];
    joined.from[i] = part.is_given ? gpu.reads<T>("part " + std::to_string(i), given[i]) : nullptr;
    joined.slab[i] = part.slab;
    joined.row[i] = part.row;
    joined.piece[i] = part.piece;
    joined.first[i] = part.first;
    joined.period[i] = part.period;
    joined.pieces[i] = part.pieces;
    joined.inner[i] = part.inner;
  }
  auto* const whole = gpu.room<T>("whole", one.rows * columns);
  auto* const partial = gpu.room<float>("partial sums", one.blocks * columns);
  gpu.launch(std::string("join_parts_") + kName<T>,
             {kernels_test::blocks_for(one.packs, Shape::kPacks), static_cast<unsigned>(one.blocks), Shape::kPacks,
              Shape::kRows},
             joined, whole, partial, static_cast<int>(one.rows), static_cast<int>(one.packs));
  return {gpu.numbers(whole), gpu.numbers(partial)};
}

template <class T>
void check(const Case& one) {
  constexpr std::size_t kOfPack = 16 / sizeof(T);
  const auto columns = one.packs * kOfPack;
  std::vector<Numbers> given;
  Numbers exact(one.rows * columns);
  for (std::size_t i = 0; i < one.parts.size(); ++i) {
    given.push_back(memory_of<T>(one, one.parts[i], static_cast<unsigned>(i)));
    if (!one.parts[i].is_given) continue;
    for_each_pack(one, one.parts[i], [&](std::size_t to, std::size_t from) {
      for (std::size_t v = 0; v < kOfPack; ++v) exact[to * kOfPack + v] = given[i][from * kOfPack + v];
    });
  }
  Numbers sums(one.blocks * columns);
  for (std::size_t i = 0; i < exact.size(); ++i)
    sums[i / columns / Shape::kRows % one.blocks * columns + i % columns] += exact[i];
  Made made;
  in_every_order(joined_parts, [&](CudaOnCpu& gpu) {
    made = made_by_kernel<T>(gpu, one, given);
    return 0;
  });
  INFO(one.what << ", " << kName<T>);
  CHECK(made.whole == exact);
  CHECK(kernels_test::worst_error(made.partial, sums) <= 1e-5);
}

TEST_CASE("joined_parts: every vector is copied right, rows are summed") {
  const std::vector<Case> cases{
      {"one row of one pack", 1, 1, 1, {{0, 1, 1, 1, 0, 0, 0}}, 1},
      {"queries, keys and values side by side",
       70,
       36,
       70,
       {{0, 12, 1, 12, 0, 12, 0}, {12, 12, 1, 12, 0, 12, 0}, {24, 12, 1, 12, 0, 12, 0}},
       3},
      {"heads apart, slabs of 5 rows",
       40,
       12,
       5,
       {{0, 2, 2, 2, 20, 2, 10}, {4, 2, 2, 2, 20, 4, 2}, {8, 2, 2, 2, 24, 2, 12}},
       2},
      {"heads of each part by turns, one without a gradient",
       33,
       12,
       3,
       {{0, 6, 2, 2, 12, 4, 2}, {2, 6, 2, 2, 0, 0, 0, false}, {4, 6, 2, 2, 12, 2, 6}},
       4},
      {"parts of other widths, and one row again and again",
       39,
       7,
       39,
       {{0, 4, 1, 4, 0, 9, 0}, {4, 1, 1, 1, 0, 1, 0}, {5, 2, 1, 2, 0, 0, 0}},
       5},
      {"slabs that take three turns", 100, 4, 25, {{0, 2, 1, 2, 60, 2, 0}, {2, 2, 1, 2, 75, 3, 0}}, 1},
  };
  for (const auto& one : cases) kernels_test::for_each_type([&]<class T>() { check<T>(one); });
  CHECK(joined_parts.never_launched().empty());
}

}  // namespace kernels_joined_parts_test
