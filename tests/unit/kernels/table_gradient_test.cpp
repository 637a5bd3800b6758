#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/table_gradient_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_table_gradient_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::kernels::TableGradientShape;

struct Case {
  std::string name;
  std::vector<int> indices;
  int entries;
  std::size_t packs;
  int padding = -1;
};

/// Multiples of 1/4, whose sums single precision has.
Numbers rows_of(const Case& one, std::size_t columns) {
  auto rows = kernels_test::drawn(one.indices.size() * columns, 1);
  for (auto& number : rows) number = std::round(4 * number) / 4;
  return rows;
}

/// Entries that nobody looked up stay as they are: 7.
Numbers exact_table(const Case& one, const Numbers& rows, std::size_t columns) {
  Numbers table(static_cast<std::size_t>(one.entries) * columns, 7);
  const auto row_of = [&](int entry) { return table.begin() + static_cast<std::ptrdiff_t>(entry * columns); };
  for (const int entry : one.indices) {
    if (entry != one.padding) std::fill_n(row_of(entry), columns, 0);
  }
  for (std::size_t i = 0; i < one.indices.size(); ++i) {
    if (one.indices[i] == one.padding) continue;
    for (std::size_t c = 0; c < columns; ++c)
      *(row_of(one.indices[i]) + static_cast<std::ptrdiff_t>(c)) += rows[i * columns + c];
  }
  return table;
}

template <class T>
Numbers table_of_kernels(CudaOnCpu& gpu, const Case& one, const Numbers& rows, std::size_t columns) {
  const auto count = one.indices.size();
  std::vector<long long> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](long long i) { return one.indices[static_cast<std::size_t>(i)]; });
  const auto parts = kernels_test::blocks_for(count, Shape::kOfPart);
  auto* const sorted = gpu.room<int>("sorted indices", count);
  auto* const places = gpu.room<long long>("their order", count);
  for (std::size_t i = 0; i < count; ++i) {
    sorted[i] = one.indices[static_cast<std::size_t>(order[i])];
    places[i] = order[i];
  }
  const auto* given = gpu.reads<T>("rows", rows);
  auto* const table = gpu.holds<float>("table", Numbers(static_cast<std::size_t>(one.entries) * columns, 7));
  auto* const partial = gpu.room<float>("partial sums", parts * 2 * columns);
  const auto shape = [&](std::size_t packs, unsigned of) {
    return autopar::kernels::LaunchShape{kernels_test::blocks_for(packs, Shape::kPacks),
                                         kernels_test::blocks_for(of, Shape::kParts), Shape::kPacks, Shape::kParts};
  };
  const int* const indices = sorted;
  const long long* const from = places;
  gpu.launch(std::string("add_rows_") + kName<T>, shape(one.packs, parts), given, indices, from, table, partial,
             static_cast<int>(count), static_cast<int>(one.packs), one.padding);
  if (parts > 1) {
    gpu.launch("add_parts_f32", shape(columns / 4, parts - 1), indices, table, partial, static_cast<int>(count),
               static_cast<int>(columns / 4), one.padding);
  }
  return gpu.numbers(table);
}

std::vector<Case> cases() {
  const auto of = [](std::size_t count, const auto& index) {
    std::vector<int> indices;
    for (std::size_t i = 0; i < count; ++i) indices.push_back(index(static_cast<int>(i)));
    return indices;
  };
  std::uint32_t state = 5;
  const auto random = [&](int below) {
    state = state * 1664525 + 1013904223;
    return static_cast<int>((state >> 8) % static_cast<unsigned>(below));
  };
  return {
      {"one", {2}, 4, 1},
      {"all different", of(200, [](int i) { return 199 - i; }), 200, 1},
      {"all alike: through many parts", of(330, [](int) { return 3; }), 5, 2},
      {"parts end where entries do", of(256, [](int i) { return i / 64; }), 4, 1},
      {"entries begin with parts and go on", of(300, [](int i) { return i / 128; }), 3, 1},
      {"an entry to the end of a part, the next through two",
       of(200, [](int i) { return i < 64    ? 0
                                  : i < 190 ? 1
                                            : 2; }), 3, 1},
      {"two in each part go on", of(500, [](int i) { return i / 40; }), 13, 33},
      {"random, few entries", of(700, [&](int) { return random(9); }), 9, 3},
      {"random, many entries", of(700, [&](int) { return random(500); }), 500, 3},
      {"padding within a part", of(90, [&](int) { return random(12); }), 12, 1, 4},
      {"padding through parts", of(400, [&](int i) { return i % 3 == 0 ? 1 : random(6); }), 6, 1, 1},
  };
}

TEST_CASE("table_gradient: exact sums of each entry's rows") {
  for (const auto& one : cases()) {
    kernels_test::for_each_type([&]<class T>() {
      const auto columns = one.packs * 16 / sizeof(T);
      const auto rows = rows_of(one, columns);
      INFO(one.name << ", " << kName<T>);
      CHECK(exact_table(one, rows, columns) == in_every_order(table_gradient, [&](CudaOnCpu& gpu) {
              return table_of_kernels<T>(gpu, one, rows, columns);
            }));
    });
  }
  CHECK(table_gradient.never_launched().empty());
}

}  // namespace kernels_table_gradient_test
