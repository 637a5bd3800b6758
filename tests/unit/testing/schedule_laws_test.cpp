#include <autopar/testing/schedule_laws.hpp>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/interleaved.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/schedule.hpp>

#include <catch_shim.hpp>

#include "law_of.hpp"

namespace schedule_laws_test {

using namespace autopar;

using Order = std::vector<ComputeAction>;

/// 1F1B with one change to the order of each stage.
struct ChangedStages {
  using policy_category = schedule_policy_tag;
  std::function<void(Order&, StageId, int microbatches)> change;
  int more_activations = 0;
  Order order(StageId stage, int stages, int microbatches) const {
    Order out = OneFOneB{}.order(stage, stages, microbatches);
    change(out, stage, microbatches);
    return out;
  }
  int peak_activations(StageId stage, int stages, int microbatches) const {
    return OneFOneB{}.peak_activations(stage, stages, microbatches) + more_activations;
  }
};

/// GPipe's orders of ranks with one change.
struct ChangedRanks {
  using policy_category = schedule_policy_tag;
  std::function<void(std::vector<Order>&, const Pipeline&)> change;
  std::vector<Order> rank_orders(const Pipeline& pipeline, int microbatches) const {
    auto out = rank_orders_of(GPipe{}, pipeline, microbatches);
    if (chunk_layout(pipeline).size() != static_cast<int>(pipeline.stages.size()))
      throw InvalidArgument("one stage a rank");
    change(out, pipeline);
    return out;
  }
};

template <class P>
std::string law_broken_by(const P& policy, const testing::ScheduleLawOptions& options = {}) {
  return testing::broken_law([&] { testing::check_schedule_laws(policy, options); });
}

std::string law_broken_by_stages(std::function<void(Order&, StageId, int)> change) {
  return law_broken_by(ChangedStages{std::move(change)});
}

/// Each micro-batch forward and at once backward; every second stage begins with the last one.
void against_one_another(Order& order, StageId stage, int microbatches) {
  order.clear();
  for (int i = 0; i < microbatches; ++i) {
    const int m = stage.value() % 2 == 0 ? i : microbatches - 1 - i;
    order.push_back({ActionKind::kForward, m});
    order.push_back({ActionKind::kBackward, m});
  }
}

constexpr auto kOnce = "every micro-batch is once forward and, later, once backward, in stages of its own";

TEST_CASE("check_schedule_laws: finds broken orders of stages", "[laws]") {
  CHECK(law_broken_by_stages([](Order&, StageId, int) {}).empty());
  CHECK(law_broken_by_stages([](Order& order, StageId, int) { order.pop_back(); }) == kOnce);
  CHECK(law_broken_by_stages([](Order& order, StageId, int) { order.push_back(order.back()); }) == kOnce);
  CHECK(law_broken_by_stages([](Order& order, StageId, int) { std::reverse(order.begin(), order.end()); }) == kOnce);
  CHECK(law_broken_by(ChangedStages{[](Order&, StageId, int) {}, 1}) ==
        "`peak_activations` is the most that is ever forward and not wholly backward");
  int calls = 0;
  CHECK(law_broken_by_stages([&](Order& order, StageId stage, int microbatches) {
          if (++calls % 2 == 0) order = GPipe{}.order(stage, stage.value() + 1, microbatches);
        }) == "equal pipelines get equal orders");
  CHECK(law_broken_by_stages([](Order&, StageId, int) { throw std::out_of_range("no such stage"); }) ==
        "a pipeline that there is no order for is refused by InvalidArgument");
  CHECK(law_broken_by_stages([](Order&, StageId stage, int) {
          if (stage.value() > 2) throw InvalidArgument("at most three stages");
        }) == "there is an order for every pipeline whose stages lie as the schedule wants them");
}

TEST_CASE("check_schedule_laws: finds deadlocked orders", "[laws]") {
  struct Stubborn : ChangedStages {
    int peak_activations(StageId, int, int) const { return 1; }
  };
  const Stubborn stubborn{{against_one_another}};
  CHECK(law_broken_by(stubborn) == "the orders do not wait for one another in a circle");
  CHECK(law_broken_by(ChangedRanks{[](std::vector<Order>& orders, const Pipeline& pipeline) {
          const bool row = pipeline.channels == testing::in_a_row(pipeline.stages).channels;
          const bool plain = std::ranges::all_of(pipeline.channels, [](const Channel& channel) {
            return channel.kind == ChannelKind::kTotal || channel.from == kSource;
          });
          if (row || plain) return;
          for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
            Order order;
            against_one_another(order, StageId::of(s),
                                static_cast<int>(orders[pipeline.stages[s].rank(0).index()].size()) / 2);
            for (ComputeAction& compute : order) compute.stage = StageId::of(s);
            for (const Rank rank : pipeline.stages[s].ranks()) orders[rank.index()] = order;
          }
        }}) == "the validator accepts every program in these orders");
}

TEST_CASE("check_schedule_laws: finds broken orders of ranks", "[laws]") {
  CHECK(law_broken_by(ChangedRanks{[](std::vector<Order>&, const Pipeline&) {}}).empty());
  CHECK(law_broken_by(ChangedRanks{[](std::vector<Order>& orders, const Pipeline&) { orders.pop_back(); }}) == kOnce);
  CHECK(law_broken_by(ChangedRanks{[](std::vector<Order>& orders, const Pipeline& pipeline) {
          const auto& last = orders[pipeline.stages.back().rank(0).index()];
          if (pipeline.stages.size() > 1) orders[pipeline.stages.front().rank(0).index()].push_back(last.front());
        }}) == kOnce);
  CHECK(law_broken_by(Interleaved{}, {.layout = StageLayout::kLooped}).empty());
  CHECK(law_broken_by(Interleaved{}, {.layout = StageLayout::kVShaped}) ==
        "there is an order for every pipeline whose stages lie as the schedule wants them");
}

TEST_CASE("check_schedule_laws: the message has ranks and orders", "[laws]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(testing::check_schedule_laws(ChangedStages{[](Order& order, StageId, int) { order.pop_back(); }}),
                    ContainsSubstring("input: stages on ranks [") && ContainsSubstring("the policy gave: stage 0: F0"));
}

}  // namespace schedule_laws_test
