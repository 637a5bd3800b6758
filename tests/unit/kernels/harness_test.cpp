#include <cmath>
#include <string>
#include <vector>

#include <catch_shim.hpp>
#include <says.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "unit/kernels/numbers.hpp"

// What runs the kernels: it sees each fault of tests/support/cuda_on_cpu/wrong_kernels.hpp, and no other.
namespace kernels_harness_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;

constexpr autopar::kernels::LaunchShape kTwoWarps{1, 1, 64, 1}, kFewThreads{3, 1, 8, 1};

/// What a kernel makes of 0, 1, 2, …, a number for each thread.
Numbers made_by(const std::string& kernel, const autopar::kernels::LaunchShape& shape, int count = 0) {
  return in_every_order(wrong_kernels, [&](CudaOnCpu& gpu) {
    const auto threads = shape.blocks_x * shape.threads_x;
    Numbers numbers;
    for (unsigned i = 0; i < threads; ++i) numbers.push_back(i);
    const auto* from = gpu.reads<float>("from", numbers);
    auto* const to = gpu.room<float>("to", threads);
    gpu.launch(kernel, shape, from, to, count == 0 ? static_cast<int>(threads) : count);
    return gpu.numbers(to);
  });
}

void check_refused(const std::string& kernel, const autopar::kernels::LaunchShape& shape,
                   std::vector<std::string> parts, int count = 0) {
  INFO(kernel);
  CHECK_NOTHROW(check_says(parts, [&] { made_by(kernel, shape, count); }));
}

TEST_CASE("cuda_on_cpu: out-of-bounds accesses end the launch") {
  CHECK(made_by("copies", kFewThreads)[23] == 23);
  CHECK(std::isnan(made_by("copies", kFewThreads, 20)[20]));
  check_refused("reads_behind", kFewThreads,
                {"reads_behind: thread (7, 0) of block (2, 0)", "0 bytes behind the end of 'from'"});
  check_refused("reads_before", kFewThreads,
                {"thread (0, 0) of block (0, 0)", "4096 bytes before the begin of 'from'"});
  check_refused("writes_behind", kFewThreads, {"thread (7, 0) of block (2, 0)", "0 bytes behind the end of 'to'"});
  check_refused("writes_behind", {1, 1, 5, 1},
                {"writes_behind: written 0 bytes behind the end of 'to'"});  // no page's end
  check_refused("writes_what_is_read", kFewThreads, {"touches 'from', which is only read"});
}

TEST_CASE("cuda_on_cpu: misaligned vectors, bad indices end the launch") {
  check_refused("reads_misaligned_packs", kFewThreads, {"thread (0, 0) of block (0, 0)", "misaligned pack"});
  check_refused("indexes_beyond_an_array", kFewThreads, {"thread (0, 0) of block (0, 0)", "beyond an array"}, 4);
  CHECK(made_by("indexes_beyond_an_array", {1, 1, 8, 1}, 3)[0] == 3);
}

TEST_CASE("cuda_on_cpu: missing barriers and summation order show") {
  CHECK(made_by("exchanges", kTwoWarps)[6] == 7);
  check_refused("exchanges_without_barrier", kTwoWarps, {"'to' has other bits", "a barrier is missing"});
  CHECK(made_by("adds_twice", kTwoWarps)[40] == 64 * 63 * 32);
  check_refused("adds_twice_in_one_place", kTwoWarps, {"'to' has other bits", "a barrier is missing"});
  const auto adds_up = [&](CudaOnCpu& gpu) {
    const auto* from = gpu.reads<float>("from", {1, 0x1p-24, 0x1p-24});
    gpu.launch("adds_blocks_in_turn", {3, 1, 1, 1}, from, gpu.holds<float>("sum", {0}), 3);
    return 0;
  };
  CHECK_NOTHROW(
      check_says({"'sum' has other bits with blocks backwards"}, [&] { in_every_order(wrong_kernels, adds_up); }));
  CHECK(std::isnan(made_by("reads_what_no_thread_has_written", kTwoWarps).back()));
}

TEST_CASE("cuda_on_cpu: deadlocked threads are named") {
  check_refused("waits_apart", kTwoWarps, {"thread (32, 0)", "wrong_kernels.cu line", "the same barrier"});
  check_refused("waits_for_a_warp_that_waits_for_the_block", kTwoWarps,
                {"thread (0, 0) of block (0, 0) waits without end"});
  check_refused("reads_a_lane_that_has_ended", kTwoWarps, {"thread (0, 0) of block (0, 0) reads lane 1"});
  check_refused("shuffles_outside_of_the_mask", kTwoWarps, {"thread (15, 0)", "reads lane 16, which takes no part"});
  CHECK(made_by("goes_on_when_others_have_ended", kTwoWarps)[4] == 5);
}

TEST_CASE("cuda_on_cpu: shuffles read the lanes that CUDA defines") {
  const auto made = made_by("shuffles", kTwoWarps);
  CHECK(made[0] == 3000 + 1 + 0);  // no lane two below: its own
  CHECK(made[31] == 3000 + 31 + 2900);
  CHECK(made[40] == 35000 + 41 + 3800);
}

TEST_CASE("cuda_on_cpu: 16-bit values are rounded to nearest even") {
  const Numbers numbers{0,       -0.0,    1,       1 + 0x1p-11, 1 + 0x3p-11,       65504, 65519.99, 65520, -1e9,
                        0x1p-24, 0x1p-25, 0x3p-25, 0x1p-14,     0x1p-14 - 0x1p-25, 0.1,   INFINITY, NAN};
  const Numbers exact{0,       0, 1,       1,       1 + 0x2p-10, 65504,           65504,    INFINITY, -INFINITY,
                      0x1p-24, 0, 0x2p-24, 0x1p-14, 0x1p-14,     0.0999755859375, INFINITY, NAN};
  const int count = static_cast<int>(numbers.size());
  CudaOnCpu gpu(wrong_kernels, {});
  const auto* from = gpu.reads<float>("from", numbers);
  auto* const half = gpu.room<F16>("half", numbers.size());
  auto* const brain = gpu.room<Bf16>("brain", numbers.size());
  auto* const back = gpu.room<float>("back", numbers.size());
  gpu.launch("to_half", kFewThreads, from, half, count);
  gpu.launch("of_half", kFewThreads, half, back, count);
  gpu.launch("to_brain", kFewThreads, from, brain, count);
  CHECK(kernels_test::worst_error(gpu.numbers(half), exact) == 0);
  CHECK(kernels_test::worst_error(gpu.numbers(back), exact) == 0);
  CHECK(std::signbit(gpu.numbers(half)[1]));
  CHECK(gpu.numbers(brain)[3] == 1);
  CHECK(gpu.numbers(brain)[14] == 0.10009765625);
}

TEST_CASE("cuda_on_cpu: invalid launches are refused") {
  CudaOnCpu gpu(wrong_kernels, {});
  float* const none = nullptr;
  CHECK_NOTHROW(check_says({"no kernel 'copy'", "copies"}, [&] { gpu.launch("copy", kTwoWarps, none, none, 0); }));
  CHECK_NOTHROW(check_says({"takes 3 arguments, got 2"}, [&] { gpu.launch("copies", kTwoWarps, none, none); }));
  CHECK_NOTHROW(
      check_says({"argument 2 has 4 bytes, got 8"}, [&] { gpu.launch("copies", kTwoWarps, none, none, 0l); }));
  CHECK_NOTHROW(check_says({"1 blocks of 2048 threads"}, [&] {
    gpu.launch("copies", {1, 1, 2048, 1}, none, none, 0);
  }));
  const auto* const elsewhere = reinterpret_cast<const float*>(4096);
  CHECK_NOTHROW(check_says({"none of the test's"}, [&] { gpu.launch("copies", kTwoWarps, elsewhere, none, 1); }));
}

}  // namespace kernels_harness_test
