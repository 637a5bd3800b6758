#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/model/staging.hpp>

#include <catch_shim.hpp>

#include <autopar/schedule/batch_split.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;

TEST_CASE("slices: equal those of the program's batch split") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    testing::Dice dice(seed);
    Constraints constraints;
    constraints.world = dice(1, 5);
    constraints.batch = dice(1, 40);
    const int microbatches = dice(1, 6), replicas = dice(1, constraints.world);
    const int stages = replicas == constraints.world || dice.chance(50) ? 1 : 2;
    Pipeline pipeline{constraints.world, place({replicas}, RankPlacement::kReplicasTogether), {}, {}};
    if (stages == 2) pipeline.stages.push_back({Rank(replicas)});
    const BatchSplit split(pipeline, {constraints.local_batches(), microbatches});
    std::int64_t smallest = 0, largest = 0, total = 0, most = 0;
    bool regular = true;
    for (int q = 0; q < replicas; ++q) {
      std::int64_t mine = 0;
      for (int m = 0; m < microbatches; ++m) {
        const auto n = split.slice(StageId(0), q, m).size();
        mine += n;
        regular = regular && n > 0;
        largest = std::max(largest, n);
        if (n > 0) smallest = smallest == 0 ? n : std::min(smallest, n);
      }
      total += mine;
      most = std::max(most, mine);
    }
    const SliceTable table(constraints);
    const SliceSizes& slices = table.at(microbatches, replicas, stages);
    CHECK(total == constraints.batch);
    CHECK(slices.smallest == smallest);
    CHECK(slices.largest == largest);
    CHECK(slices.regular == regular);
    std::int64_t heaviest = 0;
    for (const auto& [samples, times] : slices.heaviest) heaviest += samples * times;
    CHECK(heaviest == most);
  }
}
