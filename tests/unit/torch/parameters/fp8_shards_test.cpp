#include "torch/parameters/fp8_shards.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include <catch_shim.hpp>

namespace autopar::test {
namespace {

using parameters::Fp8Shards;
using parameters::ShardMemory;
using parameters::ShardUnit;

/// A unit on each of its ranks, with a bias between two weights of layers in 8 bits and a weight that is not.
struct Unit {
  Unit(int ranks, std::int64_t width) : sizes{{width, 48}, {width}, {64, width}, {8, 24}} {
    std::vector<Rank> all;
    for (int r = 0; r < ranks; ++r) all.emplace_back(r);
    std::vector<std::vector<std::string>> names;
    std::vector<parameters::GradientForm> forms;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      names.push_back({std::to_string(i)});
      forms.push_back({i, sizes[i]});
      values.push_back(torch::randn(sizes[i]).mul(static_cast<double>(i + 1)));
    }
    auto unit = parameters::make_units(names, forms, all, 3).at(0);
    unit.gathered = at::kBFloat16;
    for (const auto rank : all) {
      auto& own = layers.emplace_back(std::make_unique<fp8::Layers>());
      own->start({"0", "2"}, at::kCPU);
      own->set_histories({{"0", history(5)}, {"2", history(0.03F)}});
      auto memory = std::make_shared<ShardMemory>(unit, rank, at::kCPU);
      for (std::size_t i = 0; i < sizes.size(); ++i) memory->take_over(place(unit, i), values[i]);
      shards.push_back(std::make_unique<Fp8Shards>(
          memory, std::vector<fp8::Layer*>{layer_of(unit, 0, *own), layer_of(unit, 1, *own), layer_of(unit, 2, *own),
                                           layer_of(unit, 3, *own)}));
      memories.push_back(std::move(memory));
    }
  }
  static fp8::History history(float weight) {
    const std::vector<float> other(fp8::Layers::kHistory, 1), own(fp8::Layers::kHistory, weight);
    return {other, own, other};
  }
  static const ShardUnit::Place& place(const ShardUnit& unit, std::size_t parameter) {
    return *unit.find(std::to_string(parameter));
  }
  static fp8::Layer* layer_of(const ShardUnit& unit, std::size_t place, fp8::Layers& layers) {
    return layers.find(unit.places[place].names.front());
  }
  /// What a gather makes of the ranks' messages.
  [[nodiscard]] at::Tensor gathered() const {
    std::vector<at::Tensor> parts;
    for (std::size_t r = 0; r < shards.size(); ++r)
      parts.push_back(shards[r]->pack().chunk(static_cast<std::int64_t>(shards.size()))[r]);
    return torch::cat(parts);
  }

  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<at::Tensor> values;
  std::vector<std::unique_ptr<fp8::Layers>> layers;
  std::vector<std::shared_ptr<ShardMemory>> memories;
  std::vector<std::unique_ptr<Fp8Shards>> shards;
};

TEST_CASE("Fp8Shards: every rank gets the bits of a cast of the 16-bit copy", "[fp8]") {
  torch::manual_seed(4);
  for (const int ranks : {1, 2, 3, 4}) {
    Unit unit(ranks, 80);
    const auto message = unit.gathered();
    for (int r = 0; r < ranks; ++r) {
      INFO("rank " << r << " of " << ranks);
      auto& shards = *unit.shards[static_cast<std::size_t>(r)];
      CHECK(shards.is_ready());
      shards.unpack(message);
      const auto& places = unit.memories[static_cast<std::size_t>(r)]->unit().places;
      for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& name = places[i].names.front();
        const auto copy = unit.values[std::stoul(name)].to(torch::kBFloat16);
        const auto& got = shards.parameter(i);
        const auto* const layer = unit.layers[static_cast<std::size_t>(r)]->find(name);
        if (layer == nullptr) {
          CHECK(torch::equal(got, copy));
          continue;
        }
        auto scale = layer->of_weight();
        scale.most.reset();
        const auto wanted = fused::cast_to_fp8(copy, at::kFloat8_e4m3fn, scale, fused::Fp8Sides::kRows).rows;
        REQUIRE(got.scalar_type() == at::kFloat8_e4m3fn);
        CHECK(torch::equal(got.view(torch::kByte), wanted.view(torch::kByte)));
      }
      shards.release();
      CHECK(shards.parameter(0).storage().nbytes() == 0);
    }
  }
}

TEST_CASE("Fp8Shards: the largest magnitude of all shards is the weight's", "[fp8]") {
  torch::manual_seed(5);
  const Unit unit(3, 80);
  static_cast<void>(unit.gathered());
  for (const std::string name : {"0", "2"}) {
    float most = 0;
    for (const auto& layers : unit.layers) most = std::max(most, layers->find(name)->of_weight().most.item<float>());
    CHECK(most == unit.values[std::stoul(name)].to(torch::kBFloat16).abs().max().item<float>());
  }
}

TEST_CASE("Fp8Shards: little more than half of the bytes, or no gain", "[fp8]") {
  const Unit large(2, 800), small(2, 16);
  const auto bytes_in_16 = [](const Unit& unit) { return 2 * unit.memories[0]->unit().elements; };
  CHECK(large.shards[0]->gains());
  CHECK(static_cast<double>(large.gathered().numel()) < 0.52 * static_cast<double>(bytes_in_16(large)));
  const Unit several(8, 16);  // one rank has most of what is sent in 16 bits
  CHECK_FALSE(several.shards[0]->gains());
  CHECK(small.shards[0]->gains() == (3 * small.gathered().numel() <= 2 * bytes_in_16(small)));
}

TEST_CASE("Fp8Shards: ready when all of its layers are", "[fp8]") {
  const Unit unit(2, 80);
  CHECK(unit.shards[0]->is_ready());
  unit.layers[0]->set_histories({{"0", Unit::history(1)}});
  CHECK_FALSE(unit.shards[0]->is_ready());
}

}  // namespace
}  // namespace autopar::test
