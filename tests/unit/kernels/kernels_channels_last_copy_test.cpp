#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/channels_last_copy_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_channels_last_copy_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::kernels::ChannelsLastCopyShape;

struct Weight {
  int outputs, inputs, places;

  [[nodiscard]] std::size_t elements() const {
    return static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs) * static_cast<std::size_t>(places);
  }
  [[nodiscard]] int tile() const { return Shape::tile(inputs, places); }
  [[nodiscard]] int tiles() const { return (inputs + tile() - 1) / tile(); }
  [[nodiscard]] autopar::kernels::LaunchShape launch() const {
    return {static_cast<unsigned>(outputs * tiles()), 1, Shape::kLanes, Shape::kWarps};
  }
};

/// [outputs, inputs, places] as [outputs, places, inputs].
Numbers channels_last(const Numbers& contiguous, const Weight& of) {
  Numbers made;
  for (int output = 0; output < of.outputs; ++output)
    for (int place = 0; place < of.places; ++place)
      for (int input = 0; input < of.inputs; ++input)
        made.push_back(contiguous[static_cast<std::size_t>((output * of.inputs + input) * of.places + place)]);
  return made;
}

template <class T>
void check(const Weight& of) {
  INFO(of.outputs << " x " << of.inputs << " x " << of.places << ", " << kName<T>);
  auto given = kernels_test::drawn(of.elements(), 1);
  for (auto& number : given) number *= 1 + 0x1p-9;  // has to be rounded
  Numbers rounded_numbers;
  for (const auto number : given) rounded_numbers.push_back(number_of(rounded<T>(number)));
  const auto laid_out = channels_last(rounded_numbers, of);
  CHECK(laid_out == in_every_order(channels_last_copy, [&](CudaOnCpu& gpu) {
          const auto* from = gpu.reads<float>("weight", given);
          auto* const to = gpu.room<T>("copy", given.size());
          gpu.launch(std::string("to_channels_last_") + kName<T>, of.launch(), to, from, of.inputs, of.places,
                     of.tile(), of.tiles());
          return gpu.numbers(to);
        }));
  const auto before = kernels_test::drawn(of.elements(), 2);
  for (const bool adds : {false, true}) {
    Numbers exact;
    for (std::size_t i = 0; i < given.size(); ++i)
      exact.push_back(number_of(rounded<float>(rounded_numbers[i] + (adds ? before[i] : 0))));
    INFO((adds ? "added" : "written"));
    CHECK(exact == in_every_order(channels_last_copy, [&](CudaOnCpu& gpu) {
            const auto* from = gpu.reads<T>("gradient", laid_out);
            auto* const to = adds ? gpu.holds<float>("sum", before) : gpu.room<float>("sum", given.size());
            gpu.launch(std::string("from_channels_last_") + kName<T>, of.launch(), to, from, of.inputs, of.places,
                       of.tile(), of.tiles(), adds ? 1 : 0);
            return gpu.numbers(to);
          }));
  }
}

TEST_CASE("channels_last_copy: copies both ways, rounds and widens") {
  const std::vector<Weight> weights{
      {2, 64, 9},   {1, 320, 9},             // whole chunks; a block as full as it gets
      {2, 330, 9},  {1, 321, 9},             // two blocks an output; of an odd number
      {3, 3, 49},   {2, 66, 49}, {1, 2, 2},  // a stem's; the most places; the fewest
      {2, 70, 4},   {1, 65, 16},             // an even number of places
      {1, 1100, 2}, {2, 7, 25},
  };
  for (const auto& weight : weights) {
    check<Bf16>(weight);
    check<F16>(weight);
  }
  CHECK(channels_last_copy.never_launched().empty());
}

TEST_CASE("channels_last_copy: every tile fits shared memory, registers") {
  for (int places = 2; places <= Shape::kMostPlaces; ++places) {
    for (const int inputs : {2, 63, 64, 65, 320, 512, 1000, 2048, 8191}) {
      const int tile = Shape::tile(inputs, places);
      INFO(inputs << " inputs, " << places << " places, " << tile);
      CHECK(tile % Shape::kChunk == 0);
      CHECK(tile * Shape::pitch(places) <= Shape::kRoom);
      CHECK(places * (tile / Shape::kChunk) <= Shape::kMostPlaces);
    }
  }
}

}  // namespace kernels_channels_last_copy_test
