#include <autopar/runtime/executor.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/runtime/loopback.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/validate.hpp>
#include <autopar/schedule/zb_h1.hpp>

#include <catch_shim.hpp>

#include "holding_transport.hpp"

// Compute actions that gather parameters and sum gradients into shards (ZeRO 3): in which order, and how much is whole
// meanwhile.
namespace gathering_compute_test {

using namespace autopar;
using testing::HoldingTransport;

/// What one rank held and issued.
struct Seen {
  int most_buckets = 0, most_parameters = 0, most_in_backwards = 0;  ///< whole at a time
  int gathered_while_there = 0;
  std::vector<std::string> issued;
};

/// What a backward does, one after the other: needs a layer's parameters, lets go of them, has made its gradients.
struct Doing {
  enum Kind { kNeeds, kLetsGo, kFills } kind;
  int layer;
};
using Course = std::vector<Doing>;

/// A stage of layers, each of which is a reduction group: a backward goes through them in the order of the groups.
class LayeredEngine {
 public:
  /// @param fills  whether a backward reaches a layer
  LayeredEngine(int layers, Course backward, std::size_t members, std::size_t self, std::function<bool(int)> fills,
                Seen& seen)
      : layers_(layers),
        backward_(std::move(backward)),
        members_(members),
        self_(self),
        fills_(std::move(fills)),
        seen_(seen),
        sums_(static_cast<std::size_t>(layers), 0) {}

  void forward(const Action&) {
    for (int layer = layers_; layer-- > 0;) need(layer);
  }
  void backward(const Action&) {
    in_backward_ = true;
    for (const auto [kind, layer] : backward_) {
      if (kind == Doing::kNeeds) need(layer);
      if (kind == Doing::kLetsGo) gate_->reshard(layer, 0);
      if (kind == Doing::kFills) add_gradient(layer);
    }
  }
  void backward_input(const Action&) {
    for (int layer = 0; layer < layers_; ++layer) need(layer);
  }
  void backward_weight(const Action& action) { backward(action); }
  Buffer pack(const Action&) { return {}; }
  Buffer receive_buffer(const Action&) { return {}; }
  void accept(const Action&, const Buffer&) {}
  void set_gate(ComputeGate* gate) { gate_ = gate; }

  Buffer bucket(const Action& action) {
    seen_.issued.push_back("sum " + std::to_string(action.group));
    whole_.insert(action.group);
    filled_.erase(action.group);
    note();
    const std::int64_t own = gradients_[action.group];
    gradients_[action.group] = 0;
    const auto buffer = of_members(own);
    on_their_way_[action.group].push_back(buffer);
    return buffer;
  }
  DType bucket_dtype(const Action&) { return DType::kI64; }
  void reduced(const Action& action) {
    auto& way = on_their_way_[action.group];
    std::int64_t sum = 0;
    std::memcpy(&sum, way.front().data + self_ * sizeof sum, sizeof sum);
    sums_[static_cast<std::size_t>(action.group)] += sum;
    way.pop_front();
    whole_.erase(action.group);
  }
  Buffer gathering(const Action& action) {
    seen_.issued.push_back("gather " + std::to_string(action.group));
    seen_.gathered_while_there += there_.count(action.group) > 0 ? 1 : 0;
    parameters_.insert(action.group);
    note();
    return of_members(action.group);
  }
  void gathered(const Action& action) { there_.insert(action.group); }
  void reshard(const Action& action) {
    parameters_.erase(action.group);
    there_.erase(action.group);
  }

  [[nodiscard]] const std::vector<std::int64_t>& sums() const { return sums_; }

 private:
  [[nodiscard]] Buffer of_members(std::int64_t value) const {
    auto memory = std::make_shared<std::vector<std::int64_t>>(members_, value);
    return {reinterpret_cast<std::byte*>(memory->data()), members_ * sizeof value, memory};
  }
  void need(int layer) {
    gate_->unshard(layer, 0);
    if (there_.count(layer) == 0) throw std::logic_error("layer " + std::to_string(layer) + " is not there");
  }
  void add_gradient(int layer) {
    if (!fills_(layer)) return;
    gradients_[layer] += layer + 1;
    filled_.insert(layer);
    note();
    gate_->reshard(layer, 0);  // who read its parameters has run
    gate_->gradients_ready(layer, 0);
  }
  void note() {
    std::set<int> buckets = whole_;
    buckets.insert(filled_.begin(), filled_.end());
    seen_.most_buckets = std::max(seen_.most_buckets, static_cast<int>(buckets.size()));
    seen_.most_parameters = std::max(seen_.most_parameters, static_cast<int>(parameters_.size()));
    if (in_backward_) seen_.most_in_backwards = std::max(seen_.most_in_backwards, static_cast<int>(parameters_.size()));
  }

  int layers_;
  Course backward_;
  bool in_backward_ = false;
  std::size_t members_, self_;
  std::function<bool(int)> fills_;
  Seen& seen_;
  std::vector<std::int64_t> sums_;
  std::map<int, std::int64_t> gradients_;
  std::map<int, std::deque<Buffer>> on_their_way_;
  std::set<int> whole_, filled_, parameters_, there_;
  ComputeGate* gate_ = nullptr;
};
static_assert(SplitBackwardEngine<LayeredEngine> && ShardingEngine<LayeredEngine>);

struct Example {
  Pipeline pipeline;
  BatchLayout layout;
  Course backward = {};  ///< of each compute action
};

/// Three replicas of one stage; the last has no samples.
Example replicated(int layers, const std::function<int(int)>& filled_after, int microbatches = 1) {
  const std::vector<Rank> all{Rank(0), Rank(1), Rank(2)};
  Example out{
      {.ranks = 3, .stages = {all}, .channels = {}, .groups = {}}, {{microbatches, microbatches, 0}, microbatches}, {}};
  for (int layer = 0; layer < layers; ++layer) {
    out.pipeline.groups.push_back(
        {.ranks = all, .stage = StageId(0), .buckets = 1, .zero = 3, .filled_after = filled_after(layer)});
    out.backward.insert(out.backward.end(), {{Doing::kNeeds, layer}, {Doing::kFills, layer}});
  }
  return out;
}

/// Layers that are recomputed before their backward, so many at a time; of their parameters some are kept for it.
struct Again {
  int together = 1, kept = 1;
};
Example recomputing(int layers, Again again, int microbatches = 1) {
  std::vector<int> order, filled_after;
  Course backward;
  for (int first = 0; first < layers; first += again.together) {
    const int end = std::min(first + again.together, layers);
    for (int layer = end; layer-- > first;) {
      order.push_back(layer);
      backward.push_back({Doing::kNeeds, layer});
      if (layer >= first + again.kept) backward.push_back({Doing::kLetsGo, layer});
    }
    for (int layer = first; layer < end; ++layer) {
      if (layer >= first + again.kept) order.push_back(layer);
      filled_after.push_back(static_cast<int>(order.size()));
      backward.insert(backward.end(), {{Doing::kNeeds, layer}, {Doing::kFills, layer}});
    }
  }
  auto out = replicated(
      layers, [&](int layer) { return filled_after[static_cast<std::size_t>(layer)]; }, microbatches);
  out.pipeline.backward_gathers = {order};
  out.backward = std::move(backward);
  return out;
}

template <class Wire, SchedulePolicy Policy>
std::vector<Seen> run(
    const Example& example, const Policy& policy, const std::function<bool(int)>& fills = [](int) { return true; }) {
  const auto& [pipeline, layout, backward] = example;
  const auto program = make_program(pipeline, layout, policy);
  validate(pipeline, layout, Phase::kStep, program);
  const auto layers = static_cast<int>(pipeline.groups.size());
  std::vector<Seen> seen(3);
  loopback::run(3, [&, &pipeline = pipeline, &layout = layout, &backward = backward](World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    Wire wire(world.make_transport());
    const auto sums = wire.make_group(pipeline.groups.front().ranks),
               gathers = wire.make_group(pipeline.groups.front().ranks);
    LayeredEngine engine(layers, backward, 3, r, fills, seen[r]);
    const std::vector<GroupId> groups(static_cast<std::size_t>(layers), sums), gather_groups(groups.size(), gathers);
    Executor(engine, wire, {groups, gather_groups}).run(program.ranks[r]);
    for (int layer = 0; layer < layers; ++layer) {
      const std::int64_t want = fills(layer) ? std::int64_t{2} * layout.microbatches * (layer + 1) : 0;
      if (engine.sums()[static_cast<std::size_t>(layer)] != want)
        throw std::logic_error("layer " + std::to_string(layer) + " has a wrong sum");
    }
  });
  return seen;
}

constexpr int kLayers = 9;
int itself(int layer) { return layer + 1; }

template <class Wire>
void check_that_little_is_whole() {
  std::vector<std::string> want;
  for (int layer = kLayers; layer-- > 0;) want.push_back("gather " + std::to_string(layer));
  want.push_back("gather 0");
  for (int layer = 0; layer < kLayers; ++layer) {
    if (layer + 1 < kLayers) want.push_back("gather " + std::to_string(layer + 1));
    want.push_back("sum " + std::to_string(layer));
  }
  for (const auto& seen : run<Wire>(replicated(kLayers, itself), OneFOneB{})) CHECK(seen.issued == want);
  const auto several = run<Wire>(replicated(kLayers, itself, 3), OneFOneB{});
  for (std::size_t rank = 0; rank < several.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(several[rank].issued == several[0].issued);
    CHECK(several[rank].most_buckets <= 2);
    CHECK(several[rank].most_parameters <= (rank < 2 ? kLayers : 1));
  }
}

TEST_CASE("ZeRO compute action: bucket reduces while the next one fills") {
  check_that_little_is_whole<AnyTransport>();
  check_that_little_is_whole<HoldingTransport>();
}

TEST_CASE("ZeRO bucket filling late: reduced at one place on all ranks") {
  const auto late = [](int layer) { return layer == 2 ? kLayers : itself(layer); };
  const auto seen = run<HoldingTransport>(replicated(kLayers, late, 2), OneFOneB{});
  for (const auto& each : seen) CHECK(each.issued == seen[0].issued);
  const auto& issued = seen[0].issued;
  const auto compute = issued.begin() + kLayers;  // a backward: behind the gatherings of a forward
  CHECK(std::find(compute, issued.end(), "sum 1") < std::find(compute, issued.end(), "gather 4"));
  CHECK(std::find(compute, issued.end(), "sum 2") > std::find(compute, issued.end(), "gather 8"));
}

TEST_CASE("ZeRO bucket without gradient: reduced where others reduce it") {
  for (const int missing : {0, 3, kLayers - 1}) {
    const auto seen =
        run<HoldingTransport>(replicated(kLayers, itself, 2), OneFOneB{}, [&](int layer) { return layer != missing; });
    for (const auto& each : seen) CHECK(each.issued == seen[0].issued);
    CHECK(seen[0].most_buckets <= 3);
  }
}

TEST_CASE("ZeRO weight backward: reductions follow all gathers") {
  const auto seen = run<HoldingTransport>(replicated(kLayers, itself, 3), ZbH1{});
  for (const auto& each : seen) CHECK(each.issued == seen[0].issued);
  const auto first = std::find(seen[0].issued.begin(), seen[0].issued.end(), "sum 0");
  REQUIRE(first != seen[0].issued.end());
  CHECK(*(first - 1) == "gather " + std::to_string(kLayers - 1));
}

TEST_CASE("ZeRO recompute: only layers not kept are gathered twice") {
  for (const Again again : {Again{4, 1}, Again{4, 2}, Again{3, 2}, Again{kLayers, 1}, Again{2, 1}}) {
    INFO(again.together << " layers together, " << again.kept << " kept");
    const auto example = recomputing(kLayers, again, 2);
    for (const auto& seen : {run<AnyTransport>(example, OneFOneB{}), run<HoldingTransport>(example, OneFOneB{})}) {
      for (std::size_t rank = 0; rank < seen.size(); ++rank) CHECK(seen[rank].issued == seen[0].issued);
      const auto& order = example.pipeline.backward_gathers.front();
      std::vector<std::string> want;
      for (const int layer : order) want.push_back("gather " + std::to_string(layer));
      std::vector<std::string> gathered;
      const auto compute = seen[0].issued.begin() + kLayers;  // the first backward: behind the gatherings of a forward
      for (auto each = compute; gathered.size() < want.size(); ++each) {
        if (each->starts_with("gather")) gathered.push_back(*each);
      }
      CHECK(gathered == want);
      for (const auto& each : seen) CHECK(each.most_buckets <= 2);
    }
  }
}

TEST_CASE("ZeRO backward: holds kept layers, the current and the next") {
  const auto most = [](const Example& example) {
    const auto seen = run<HoldingTransport>(example, OneFOneB{});
    return seen[0].most_in_backwards;
  };
  CHECK(most(recomputing(kLayers, {4, 1})) <= 2);
  CHECK(most(recomputing(kLayers, {4, 2})) <= 3);
  CHECK(most(recomputing(kLayers, {4, 4})) <= 5);
  CHECK(most(recomputing(kLayers, {4, 4})) >= 4);
}

TEST_CASE("ZeRO regather: not while the parameter is still read") {
  auto example = replicated(2, itself);
  example.pipeline.backward_gathers = {{1, 0, 1}};
  example.pipeline.groups[0].filled_after = 2;
  example.pipeline.groups[1].filled_after = 3;
  example.backward = {{Doing::kNeeds, 1}, {Doing::kNeeds, 0}, {Doing::kNeeds, 1}, {Doing::kLetsGo, 1},
                      {Doing::kNeeds, 0}, {Doing::kFills, 0}, {Doing::kNeeds, 1}, {Doing::kFills, 1}};
  const auto seen = run<HoldingTransport>(example, OneFOneB{});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(std::count(seen[rank].issued.begin(), seen[rank].issued.end(), "gather 1") == 3);
    CHECK(seen[rank].gathered_while_there == 0);
  }
}

TEST_CASE("backward_gathers: missing or foreign entry is refused") {
  auto pipeline = replicated(3, itself).pipeline;
  const auto layout = replicated(3, itself).layout;
  const auto refused = [&](std::vector<std::vector<int>> listed) {
    pipeline.backward_gathers = std::move(listed);
    CHECK_THROWS_AS(make_program(pipeline, layout, OneFOneB{}), InvalidArgument);
  };
  refused({{0, 1}});
  refused({{0, 1, 2, 3}});
  refused({{0, 1, -1, 2}});
  refused({{0, 1, 2}, {}});
  pipeline.groups.back().zero = 2;
  refused({{0, 1, 2}});
  pipeline.backward_gathers = {{1, 0, 1}};
  CHECK_NOTHROW(make_program(pipeline, layout, OneFOneB{}));
}

TEST_CASE("find_fault: too many or too few gathers are a fault") {
  const auto example = recomputing(4, {4, 1});
  const auto good = make_program(example.pipeline, example.layout, OneFOneB{});
  CHECK_FALSE(find_fault(example.pipeline, example.layout, Phase::kStep, good).has_value());
  auto once = example.pipeline;
  once.backward_gathers.clear();
  CHECK(find_fault(once, example.layout, Phase::kStep, good).has_value());
  const auto plain = make_program(once, example.layout, OneFOneB{});
  CHECK(find_fault(example.pipeline, example.layout, Phase::kStep, plain).has_value());
}

TEST_CASE("find_fault: misplaced reduction is a fault") {
  const auto example = replicated(3, itself);
  const auto& [pipeline, layout, backward] = example;
  const auto good = make_program(pipeline, layout, OneFOneB{});
  const auto fault_with = [&, &pipeline = pipeline, &layout = layout](int group, int after, std::size_t ranks) {
    auto program = good;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (auto& action : program.ranks[r]) {
        if (action.kind == ActionKind::kReduceScatter && action.group == group) action.after = after;
      }
    }
    return find_fault(pipeline, layout, Phase::kStep, program).has_value();
  };
  CHECK_FALSE(fault_with(0, 2, 0));
  CHECK(fault_with(2, 4, 3));  // more than are gathered
  CHECK(fault_with(1, 1, 3));  // of less than the sum before it
  CHECK(fault_with(0, 1, 1));  // elsewhere than on the other members
}

}  // namespace gathering_compute_test
