#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/max_pool_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_max_pool_test {

using namespace cuda_on_cpu;
using autopar::kernels::PoolWindows;
using kernels_test::Numbers;

struct Case {
  int images, packs;    ///< of channels
  PoolWindows windows;  ///< without the result's size
  bool ceil_mode = false;
  unsigned most_blocks = 65535;  ///< of rows
};

/// How many windows there are (libtorch's pooling_output_shape).
int windows_in(int size, int kernel, int stride, int padding, bool ceil_mode) {
  const int beyond = size + 2 * padding - kernel;
  const int count = (ceil_mode ? beyond + stride - 1 : beyond) / stride + 1;
  return ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
}

PoolWindows with_result_size(const Case& one) {
  auto of = one.windows;
  of.out_height = windows_in(of.height, of.kernel_height, of.stride_height, of.padding_height, one.ceil_mode);
  of.out_width = windows_in(of.width, of.kernel_width, of.stride_width, of.padding_width, one.ceil_mode);
  return of;
}

/// Images [n, height, width, channels].
struct Operands {
  std::size_t images, channels;
  PoolWindows of;
  Numbers x, dy, other;
};

struct Outcome {
  Numbers y, positions, dx, dx_of_two;
};

/// Multiples of 1/4, many of them equal: every type has them, and their sums.
Numbers drawn_in_quarters(std::size_t count, unsigned seed) {
  auto made = kernels_test::drawn(count, seed);
  for (auto& number : made) number = std::round(4 * number) / 4;
  return made;
}

Operands operands_of(const Case& one, std::size_t elements_of_pack) {
  const auto of = with_result_size(one);
  const auto images = static_cast<std::size_t>(one.images), channels = one.packs * elements_of_pack;
  const auto elements = images * of.height * of.width * channels;
  const auto results = images * of.out_height * of.out_width * channels;
  Operands made{images,
                channels,
                of,
                drawn_in_quarters(elements, 1),
                drawn_in_quarters(results, 2),
                drawn_in_quarters(results, 3)};
  for (std::size_t i = 0; i < elements; ++i) {
    if (i % 29 == 5) made.x[i] = NAN;
    if (i % channels == 1) made.x[i] = -INFINITY;  // all of a channel
  }
  made.dy[results / 2] = INFINITY;  // which no neighbour is to get a share of
  return made;
}

/// Calls `visit(y, x, position within the window)` for all that lies in each window, row by row.
template <class Visit>
void for_each_in_windows(const Operands& operands, const Visit& visit) {
  const auto& of = operands.of;
  const auto at = [&](std::size_t image, int height, int width, int row, int column, std::size_t channel) {
    return ((image * height + row) * width + column) * operands.channels + channel;
  };
  for (std::size_t image = 0; image < operands.images; ++image)
    for (int row = 0; row < of.out_height; ++row)
      for (int column = 0; column < of.out_width; ++column)
        for (std::size_t channel = 0; channel < operands.channels; ++channel)
          for (int position = 0; position < of.kernel_height * of.kernel_width; ++position) {
            const int r = row * of.stride_height - of.padding_height + position / of.kernel_width;
            const int c = column * of.stride_width - of.padding_width + position % of.kernel_width;
            if (r < 0 || r >= of.height || c < 0 || c >= of.width) continue;
            visit(at(image, of.out_height, of.out_width, row, column, channel),
                  at(image, of.height, of.width, r, c, channel), position);
          }
}

/// In double precision: the first of the largest, the last NaN.
template <class T>
Outcome exact_outcome(const Operands& operands) {
  constexpr std::size_t kNone = SIZE_MAX;
  const auto results = operands.dy.size(), elements = operands.x.size();
  Outcome made{Numbers(results), Numbers(results), Numbers(elements), Numbers(elements)};
  std::vector<std::size_t> from(results, kNone);
  for_each_in_windows(operands, [&](std::size_t y, std::size_t x, int position) {
    const double each = operands.x[x];
    if (from[y] != kNone && !(each > made.y[y]) && !std::isnan(each)) return;
    made.y[y] = each;
    made.positions[y] = position;
    from[y] = x;
  });
  for (std::size_t y = 0; y < results; ++y) {
    made.dx[from[y]] += operands.dy[y];
    made.dx_of_two[from[y]] += operands.dy[y] + operands.other[y];
  }
  for (auto* sums : {&made.dx, &made.dx_of_two})
    for (auto& sum : *sums) sum = number_of(rounded<T>(sum));
  return made;
}

autopar::kernels::LaunchShape over_rows_of_images(const Case& one, std::size_t rows, int width) {
  constexpr unsigned kThreads = 256, kMostThreadsX = 64;
  const auto packs = static_cast<unsigned>(one.packs);
  const auto threads_x = std::bit_floor(std::min(packs, kMostThreadsX));
  const auto threads_y = std::min(std::bit_ceil(static_cast<unsigned>(width)), kThreads / threads_x);
  return {kernels_test::blocks_for(packs, threads_x), std::min(static_cast<unsigned>(rows), one.most_blocks), threads_x,
          threads_y};
}

template <class T>
Outcome outcome_of_kernels(CudaOnCpu& gpu, const Case& one, const Operands& operands) {
  const auto& of = operands.of;
  const auto results = operands.dy.size();
  const std::string type = kName<T>, forward = "max_pool_" + type, backward = "max_pool_gradient_" + type;
  const auto out_rows = operands.images * of.out_height, rows = operands.images * of.height;
  const auto* x = gpu.reads<T>("x", operands.x);
  auto* const y = gpu.room<T>("y", results);
  auto* const y_alone = gpu.room<T>("y without positions", results);
  auto* const positions = gpu.room<std::uint8_t>("positions", results);
  std::uint8_t* const no_positions = nullptr;
  const auto shape = over_rows_of_images(one, out_rows, of.out_width);
  gpu.launch(forward, shape, x, y, positions, static_cast<int>(out_rows), one.packs, of);
  gpu.launch(forward, shape, x, y_alone, no_positions, static_cast<int>(out_rows), one.packs, of);
  CHECK(kernels_test::worst_error(gpu.numbers(y_alone), gpu.numbers(y)) == 0);

  const auto* dy = gpu.reads<T>("dy", operands.dy);
  const auto* other = gpu.reads<T>("the other dy", operands.other);
  const T* const no_other = nullptr;
  auto* const dx = gpu.room<T>("dx", operands.x.size());
  auto* const dx_of_two = gpu.room<T>("dx of two", operands.x.size());
  const auto of_images = over_rows_of_images(one, rows, of.width);
  gpu.launch(backward, of_images, dy, no_other, positions, dx, static_cast<int>(rows), one.packs, of);
  gpu.launch(backward, of_images, dy, other, positions, dx_of_two, static_cast<int>(rows), one.packs, of);
  return {gpu.numbers(y), gpu.numbers(positions), gpu.numbers(dx), gpu.numbers(dx_of_two)};
}

template <class T>
void check(const Case& one) {
  const auto operands = operands_of(one, 16 / sizeof(T));
  const auto exact = exact_outcome<T>(operands);
  const auto made = in_every_order(max_pool, [&](CudaOnCpu& gpu) { return outcome_of_kernels<T>(gpu, one, operands); });
  const auto& of = operands.of;
  INFO(one.images << " images of " << of.height << " x " << of.width << ", windows of " << of.kernel_height << " x "
                  << of.kernel_width << ", " << one.packs << " packs of " << kName<T>);
  CHECK(kernels_test::worst_error(made.y, exact.y) == 0);
  CHECK(made.positions == exact.positions);
  CHECK(kernels_test::worst_error(made.dx, exact.dx) == 0);
  CHECK(kernels_test::worst_error(made.dx_of_two, exact.dx_of_two) == 0);
}

TEST_CASE("max_pool: maxima, positions and gradients are exact") {
  const std::vector<Case> cases{
      {1, 1, {1, 1, 0, 0, 1, 1, 1, 1, 0, 0}},
      {2, 1, {6, 8, 0, 0, 2, 2, 2, 2, 0, 0}},
      {1, 3, {7, 9, 0, 0, 3, 3, 2, 2, 1, 1}},            // windows that overlap, and lie across the border
      {3, 2, {5, 7, 0, 0, 2, 3, 1, 2, 1, 0}, false, 2},  // more rows than blocks
      {2, 1, {7, 6, 0, 0, 3, 2, 3, 3, 0, 1}, true},      // the last windows end beyond the border; gaps between them
      {1, 1, {8, 5, 0, 0, 2, 4, 3, 1, 1, 2}, true},
      {1, 2, {4, 5, 0, 0, 1, 1, 3, 2, 0, 0}},      // elements that lie in no window
      {1, 1, {16, 17, 0, 0, 15, 17, 2, 1, 7, 8}},  // 255 positions
  };
  for (const auto& one : cases) kernels_test::for_each_type([&]<class T>() { check<T>(one); });
  check<Bf16>(
      {1,
       66,
       {3, 9, 0, 0, 2, 2, 1, 2, 0, 1}});  // two blocks of channels, the last with few; fewer threads than columns
  CHECK(max_pool.never_launched().empty());
}

}  // namespace kernels_max_pool_test
