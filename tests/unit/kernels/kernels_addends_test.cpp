#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/addends_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_addends_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;

constexpr std::size_t kOfPack = 8;
constexpr unsigned kThreads = autopar::kernels::AddendsShape::kThreads;

/// In fp32 and in the order of members, so that another order gives other bits.
Numbers sum_of(const Numbers& addends, std::size_t members, const Numbers& before) {
  Numbers sum;
  for (std::size_t i = 0; i < before.size(); ++i) {
    auto made = static_cast<float>(before[i]);
    for (std::size_t member = 0; member < members; ++member)
      made += static_cast<float>(addends[member * before.size() + i]);
    sum.push_back(made);
  }
  return sum;
}

TEST_CASE("addends: sums in fp32 in the order of members, added, written or rounded") {
  for (const std::size_t members : {1, 2, 3, 9}) {
    for (const std::size_t packs : {std::size_t{1}, std::size_t{kThreads}, std::size_t{kThreads} + 3}) {
      const auto elements = packs * kOfPack;
      auto addends = kernels_test::drawn(members * elements, 5);
      for (std::size_t i = 0; i < addends.size(); i += 3) addends[i] *= 1 << 20;
      const auto before = kernels_test::drawn(elements, 6);
      const auto count = static_cast<int>(members);
      const auto all = static_cast<long long>(packs);
      const autopar::kernels::LaunchShape shape{kernels_test::blocks_for(packs, kThreads), 1, kThreads, 1};
      CAPTURE(members, packs);
      for (const int adds : {0, 1}) {
        const auto made = in_every_order(cuda_on_cpu::addends, [&](CudaOnCpu& gpu) {
          auto* const sum = gpu.holds<float>("sum", before);
          gpu.launch("add_up_f32", shape, gpu.reads<Bf16>("addends", addends), count, all, sum, adds);
          return gpu.numbers(sum);
        });
        CHECK(made == sum_of(addends, members, adds != 0 ? before : Numbers(elements, 0)));
      }
      auto rounded_sum = sum_of(addends, members, Numbers(elements, 0));
      for (auto& number : rounded_sum) number = number_of(rounded<Bf16>(number));
      const auto made = in_every_order(cuda_on_cpu::addends, [&](CudaOnCpu& gpu) {
        auto* const sum = gpu.room<Bf16>("sum", elements);
        gpu.launch("add_up_bf16", shape, gpu.reads<Bf16>("addends", addends), count, all, sum);
        return gpu.numbers(sum);
      });
      CHECK(made == rounded_sum);
    }
  }
}

}  // namespace kernels_addends_test
