#include <autopar/training/epochs.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <torch/data/samplers/distributed.h>

#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"

namespace epochs_test {

using autopar::training::Epochs;
using autopar::training::GlobalRandomSampler;
using Numbers = std::vector<std::size_t>;

TEST_CASE("GlobalRandomSampler: a global batch is the same for every number of ranks") {
  constexpr std::size_t kSize = 29, kBatch = 12;
  GlobalRandomSampler alone(kSize, 1, 0, 7);
  alone.set_epoch(3);
  alone.reset();
  std::vector<GlobalRandomSampler> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(kSize, 3, rank, 7);
    ranks.back().set_epoch(3);
    ranks.back().reset();
  }
  std::set<std::size_t> seen;
  for (int batch = 0; batch < 2; ++batch) {
    Numbers joined;
    for (auto& rank : ranks) {
      const auto share = rank.next(kBatch / 3).value();
      joined.insert(joined.end(), share.begin(), share.end());
    }
    CHECK(joined == alone.next(kBatch).value());
    seen.insert(joined.begin(), joined.end());
  }
  CHECK(seen.size() == 24);
  CHECK(*seen.rbegin() < kSize);
  CHECK(alone.next(kBatch).value().size() == 5);
  CHECK(ranks[2].next(kBatch / 3).value().size() == 1);  // of 5, by 3 ranks
  CHECK_FALSE(alone.next(kBatch).has_value());
  CHECK_FALSE(ranks[2].next(1).has_value());
}

TEST_CASE("GlobalRandomSampler: the order is that of seed and epoch, on any system") {
  const auto order = [](std::uint64_t seed, std::size_t epoch) {
    GlobalRandomSampler sampler(6, 1, 0, seed);
    sampler.set_epoch(epoch);
    sampler.reset();
    return sampler.next(6).value();
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(1, 1));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(std::uint64_t{1} << 32, 0) != order(0, 0));
  auto sorted = order(5, 5);
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == Numbers{0, 1, 2, 3, 4, 5});
}

template <class Sampler>
void check_goes_on(int ranks) {
  autopar::loopback::run(ranks, [](autopar::World& world) {
    Epochs<Sampler> whole(world, 50);
    for (int batch = 0; batch < 40; ++batch) {
      Epochs<Sampler> resumed(world, 50);
      resumed.load(whole.save());
      CHECK(resumed.save() == whole.save());
      CHECK(resumed.next(7) == whole.next(7));
      CHECK(resumed.save() == whole.save());
    }
    CHECK(whole.epoch() >= 5);
  });
}

TEST_CASE("Epochs: goes on at the saved place") {
  check_goes_on<GlobalRandomSampler>(1);
  check_goes_on<GlobalRandomSampler>(2);
  check_goes_on<torch::data::samplers::DistributedRandomSampler>(2);
  check_goes_on<torch::data::samplers::DistributedSequentialSampler>(2);
}

TEST_CASE("Epochs: with other numbers of ranks the global batches stay") {
  std::string saved;
  Numbers expected;
  autopar::loopback::run(1, [&](autopar::World& world) {
    Epochs order(world, 50, 11);
    for (int batch = 0; batch < 6; ++batch) expected = order.next(12);
    CHECK(order.epoch() == 1);
    expected = order.next(12);
  });
  autopar::loopback::run(3, [&](autopar::World& world) {
    Epochs order(world, 50, 11);
    for (int batch = 0; batch < 6; ++batch) static_cast<void>(order.next(4));
    CHECK(order.taken() == 24);
    if (world.rank() == 0) saved = order.save();
  });
  autopar::loopback::run(2, [&](autopar::World& world) {
    Epochs order(world, 50, 11);
    order.load(saved);
    const auto first = world.rank() * 6;
    CHECK(order.next(6) == Numbers(expected.begin() + first, expected.begin() + first + 6));
  });
}

TEST_CASE("Epochs: shares of a batch are all of it, whatever the ranks") {
  constexpr std::size_t kSize = 53, kBatch = 12;  // an epoch has 4 batches, and 5 samples that are left out
  std::vector<Numbers> expected;
  std::vector<std::string> places;
  autopar::loopback::run(1, [&](autopar::World& world) {
    Epochs order(world, kSize, 5);
    for (int batch = 0; batch < 10; ++batch) {
      places.push_back(order.save());
      expected.push_back(order.share(kBatch));
    }
    CHECK(order.epoch() == 2);
    CHECK(order.taken() == 24);
  });
  for (const int ranks : {2, 3, 5, 16}) {  // also more than samples
    std::vector<std::vector<Numbers>> shares(10, std::vector<Numbers>(static_cast<std::size_t>(ranks)));
    autopar::loopback::run(ranks, [&](autopar::World& world) {
      Epochs order(world, kSize, 5);
      for (std::size_t batch = 0; batch < 10; ++batch) {
        Epochs resumed(world, kSize, 5);
        resumed.load(places[batch]);
        auto mine = order.share(kBatch);
        const auto again = resumed.share(kBatch);
        shares[batch][static_cast<std::size_t>(world.rank())] = again == mine ? mine : Numbers{};
      }
    });
    for (std::size_t batch = 0; batch < 10; ++batch) {
      Numbers joined;
      for (const auto& share : shares[batch]) {
        joined.insert(joined.end(), share.begin(), share.end());
        CHECK(share.size() <= (kBatch + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks));
      }
      CHECK(joined == expected[batch]);
    }
  }
}

TEST_CASE("Epochs: refuses batches without samples, and foreign texts") {
  autopar::loopback::run(1, [](autopar::World& world) {
    Epochs order(world, 5);
    CHECK_THROWS_WITH(order.next(6), Catch::Matchers::Contains("an epoch has 5 samples a rank"));
    CHECK_THROWS_WITH(order.share(6), Catch::Matchers::Contains("an epoch has less than a batch of 6 samples"));
    static_cast<void>(order.next(2));
    const auto before = order.save();
    for (const std::string text : {"", "1", "1,", ",1", "-1,0", "0,-1", "0,1,", "a,b", "0,99999999999999999999"})
      CHECK_THROWS_WITH(order.load(text), Catch::Matchers::Contains("is not what Epochs saved"));
    CHECK(order.save() == before);
  });
}

}  // namespace epochs_test
