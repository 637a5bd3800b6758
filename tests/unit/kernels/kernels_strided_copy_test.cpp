#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/strided_copy_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_strided_copy_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;

constexpr std::size_t kWordsOfPack = 4;

struct Case {
  autopar::kernels::StridedRows rows;
  std::size_t to_packs, from_packs;  ///< memory, to the last pack of the last row
  unsigned blocks;
};

/// Calls `visit(place in to, place in from)` for each pack.
template <class Visit>
void for_each_pack(const autopar::kernels::StridedRows& rows, const Visit& visit) {
  for (long long a = 0; a < rows.sizes[0]; ++a)
    for (long long b = 0; b < rows.sizes[1]; ++b)
      for (long long c = 0; c < rows.sizes[2]; ++c)
        for (long long i = 0; i < rows.inner; ++i)
          visit(static_cast<std::size_t>(a * rows.to[0] + b * rows.to[1] + c * rows.to[2] + i),
                static_cast<std::size_t>(a * rows.from[0] + b * rows.from[1] + c * rows.from[2] + i));
}

TEST_CASE("strided_copy: copies every vector and touches nothing else") {
  const std::vector<Case> cases{
      {{1, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}}, 1, 1, 1},
      {{5, {1, 1, 7}, {0, 0, 5}, {0, 0, 9}}, 35, 6 * 9 + 5, 1},                         // columns cut out
      {{3, {2, 3, 4}, {60, 20, 5}, {36, 3, 9}}, 60 + 40 + 15 + 3, 36 + 6 + 27 + 3, 2},  // two dims change places
      {{2, {5, 4, 3}, {24, 6, 2}, {2, 10, 40}}, 120, 8 + 30 + 80 + 2, 1},               // fewer threads than packs
      {{7, {3, 1, 30}, {210, 0, 7}, {0, 0, 7}}, 630, 210, 3},                           // one source for several
  };
  for (const auto& [rows, to_packs, from_packs, blocks] : cases) {
    unsigned packs = 0;
    for_each_pack(rows, [&](std::size_t, std::size_t) { ++packs; });
    Numbers given;
    for (std::size_t i = 0; i < from_packs * kWordsOfPack; ++i) given.push_back(static_cast<double>(i));
    Numbers exact(to_packs * kWordsOfPack, UINT32_MAX);
    for_each_pack(rows, [&](std::size_t to, std::size_t from) {
      for (std::size_t word = 0; word < kWordsOfPack; ++word)
        exact[to * kWordsOfPack + word] = given[from * kWordsOfPack + word];
    });
    INFO(packs << " packs, rows of " << rows.inner);
    CHECK(exact == in_every_order(strided_copy, [&, &rows = rows, blocks = blocks](CudaOnCpu& gpu) {
            const auto* from = gpu.reads<std::uint32_t>("from", given);
            auto* const to = gpu.room<std::uint32_t>("to", exact.size());
            gpu.launch("copy_rows", {blocks, 1, 32, 1}, to, from, rows, packs);
            return gpu.numbers(to);
          }));
  }
}

}  // namespace kernels_strided_copy_test
