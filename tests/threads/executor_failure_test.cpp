#include <autopar/runtime/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/loopback.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/synthesised.hpp>

#include <catch_shim.hpp>

#include "../unit/schedule/equal_times.hpp"
#include "fake_engine.hpp"

// Whatever throws in a rank's program, in the engine or in the transport, under whichever schedule and ZeRO level: the
// rank says at which action, every other rank is told, nothing is left under way, and the process goes on.
namespace executor_failure_test {

using namespace autopar;
using testing::PipelineCase;

/// An event of a rank, by its name ("forward", "gathered", "wire send", …) and number.
struct Fault {
  std::size_t rank = 0;
  std::string event;
  int number = 0;
};

/// Counts a rank's events by name, and throws at one of them.
class Events {
 public:
  explicit Events(std::optional<Fault> fault = {}) : fault_(std::move(fault)) {}

  void operator()(const std::string& name) {
    const int number = counts_[name]++;
    if (fault_ && fault_->event == name && fault_->number == number) throw std::runtime_error("scripted failure");
  }
  [[nodiscard]] const std::map<std::string, int>& counts() const { return counts_; }

 private:
  std::optional<Fault> fault_;
  std::map<std::string, int> counts_;
};

/// What became of every rank.
struct Outcome {
  std::vector<std::map<std::string, int>> events;
  std::vector<std::string> actions;  ///< of ranks whose own program threw
  std::vector<std::string> told;     ///< messages of ranks that learnt it from another
  std::vector<Rank> blamed;
  std::string results;  ///< empty = those of one process
  std::size_t under_way = 0;
  int buffers = 0;
};

/// @param in_parts  the engine performs some reductions itself
Outcome run(const PipelineCase& example, const Program& program, const std::optional<Fault>& fault,
            bool in_parts = false) {
  const auto ranks = program.ranks.size();
  Outcome out{.events = std::vector<std::map<std::string, int>>(ranks),
              .actions = std::vector<std::string>(ranks),
              .told = std::vector<std::string>(ranks),
              .blamed = std::vector<Rank>(ranks),
              .results = {}};
  testing::Ledger ledger;
  auto models = testing::make_models(example);
  std::vector<std::size_t> under_way(ranks, 0);
  const auto body = [&](World& world) {
    const auto r = testing::index_of(world);
    Events events(fault && fault->rank == r ? fault : std::nullopt);
    testing::LoggedTransport transport(
        world.make_transport(), [&](const std::string& event) { events("wire " + event.substr(0, event.find(' '))); });
    const auto groups = testing::make_groups(transport, example.pipeline);
    const auto gather_groups = testing::make_groups(transport, example.pipeline);
    const auto tensor_groups = testing::make_tensor_groups(transport, example.pipeline);
    testing::Script script;
    script.in_parts = in_parts;
    script.log = [&](const std::string& event) { events(event.substr(0, event.find(':'))); };
    testing::FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger, script);
    ExecutorHooks hooks;
    hooks.fail = [&](std::string_view action, std::string_view message) { world.fail(action, message); };
    try {
      Executor(engine, transport, {groups, gather_groups, tensor_groups}, hooks).run(program.ranks[r]);
    } catch (const ExecutionError& error) {
      out.actions[r] = error.action();
    } catch (const TransportError& error) {
      out.told[r] = error.what();
      out.blamed[r] = error.peer();
    }
    out.events[r] = events.counts();
    under_way[r] = transport.open();
  };
  try {
    loopback::run(example.pipeline.ranks, body, {.stall = {Seconds(2), Seconds(20)}});  // longer is a hang
  } catch (const TransportError&) {  // of leaving a World that has failed
  }
  for (const auto count : under_way) out.under_way += count;
  out.buffers = ledger.alive;
  if (!fault) out.results = testing::difference(example.pipeline, example.layout, Phase::kStep, models);
  return out;
}

/// Two positions, the first with two replicas in shards, a partial sum past the second, a parameter tied across all.
PipelineCase make_case(ScheduleKind kind, int zero) {
  using enum ChannelKind;
  PipelineCase out;
  out.pipeline.ranks = 3;
  const std::vector<Rank> first{Rank(2), Rank(0)};
  out.pipeline.stages =
      stages_in(traits_of(kind).layout, {first, {Rank(1)}}, kind == ScheduleKind::kInterleaved ? 2 : 1);
  const auto stages = out.pipeline.stages.size();
  for (std::size_t s = 0; s < stages; ++s) {
    out.pipeline.channels.push_back({s == 0 ? kSource : StageId::of(s - 1), StageId::of(s), kBatched, true});
  }
  out.pipeline.channels.push_back({StageId(0), StageId::of(stages - 1), kPartialSum, true});
  out.pipeline.channels.push_back({StageId::of(stages - 1), kSink, kBatched, false});
  for (std::size_t s = stages; s-- > 0;) {
    if (out.pipeline.stages[s] == first) out.pipeline.groups.push_back({{Rank(0), Rank(2)}, StageId::of(s), 2, zero});
  }
  out.pipeline.groups.push_back({{Rank(0), Rank(1), Rank(2)}, StageId::none(), 1, std::min(zero, 1)});
  out.layout = {{2, 3, 1}, 3};
  return out;
}

Program make_program_of(ScheduleKind kind, const PipelineCase& example) {
  const auto& [pipeline, layout] = example;
  if (kind != ScheduleKind::kSynthesised) return make_program(pipeline, layout, kind);
  const Synthesised<testing::EqualTimes> policy{
      .costs = {}, .local = layout.local, .parts_backwards = true, .budget = 40};
  return make_program(pipeline, layout, policy);
}

void check_failure(const Outcome& out, std::size_t failing) {
  CHECK_FALSE(out.actions[failing].empty());
  CHECK(out.under_way == 0);
  CHECK(out.buffers == 0);
  for (std::size_t r = 0; r < out.told.size(); ++r) {
    if (r == failing) continue;
    CHECK(out.actions[r].empty());
    if (out.told[r].empty()) continue;  // it had nothing to wait for, and has ended
    INFO("rank " << r << ": " << out.told[r]);
    CHECK(out.told[r].find("scripted failure") != std::string::npos);
    CHECK(out.told[r].find(out.actions[failing]) != std::string::npos);
    CHECK(out.blamed[r] == Rank::of(failing));
  }
}

/// What failed in a sweep.
struct Swept {
  std::set<std::string> events;
  std::set<std::pair<std::string, std::size_t>> on_ranks;
  int told = 0;  ///< ranks that were still waiting
};

/// @param choose  whether to let a rank fail at the n-th of so many events of a name
template <class Choose>
Swept sweep(Choose choose) {
  Swept swept;
  for (const auto kind : kScheduleKinds) {
    for (int zero = 0; zero <= 3; ++zero) {
      const auto example = make_case(kind == ScheduleKind::kSynthesised ? ScheduleKind::kZbV : kind, zero);
      const auto program = make_program_of(kind, example);
      const auto whole = run(example, program, {});
      REQUIRE(whole.results == "");
      for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
        for (const auto& [event, count] : whole.events[rank]) {
          for (const int number : std::set{0, count / 2, count - 1}) {
            if (!choose(event, rank)) continue;
            INFO(to_string(kind) << ", zero " << zero << ", rank " << rank << ", " << event << " " << number);
            const auto out = run(example, program, Fault{rank, event, number});
            const bool reached = out.events[rank].at(event) > number;
            if (event == "wire wait" && !reached) continue;  // what has ended is not waited for
            check_failure(out, rank);
            swept.events.insert(event);
            swept.on_ranks.emplace(event, rank);
            swept.told += out.told[(rank + 1) % 3].empty() ? 0 : 1;
          }
        }
      }
      CHECK(run(example, program, {}).results == "");  // the process goes on
    }
  }
  return swept;
}

const std::set<std::string> kEvents{
    "accept",          "backward",     "backward_input",      "backward_weight",   "bucket",
    "forward",         "gathered",     "receive_buffer",      "gathering",         "wire all_gather",
    "wire all_reduce", "wire receive", "wire reduce_scatter", "wire send",         "pack",
    "reduced",         "reshard",      "wire wait",           "last backward ends"};

// Most of a run is waiting for a failure to be seen, so that only one in so many is tried each time.
TEST_CASE("executor: exception in any action ends all ranks", "[executor]") {
  constexpr int kOneIn = 11;
  int nth = 0;
  const auto swept = sweep([&](const std::string&, std::size_t) { return nth++ % kOneIn == 0; });
  CHECK(swept.events == kEvents);
  CHECK(swept.told > 50);
}

TEST_CASE("executor: exception in a reduction in parts ends all ranks", "[executor]") {
  for (const int zero : {0, 1, 3}) {
    const auto example = make_case(ScheduleKind::kOneFOneB, zero);
    const auto program = make_program_of(ScheduleKind::kOneFOneB, example);
    const auto whole = run(example, program, {}, true);
    REQUIRE(whole.results == "");
    for (const char* event : {"sum_parts", "wire all_to_all", "wire all_gather", "wire wait", "reduced"}) {
      const auto found = whole.events[0].find(event);
      if (found == whole.events[0].end()) continue;  // shards need no gather
      for (const int number : std::set{0, found->second / 2, found->second - 1}) {
        INFO("zero " << zero << ", " << event << " " << number);
        const auto out = run(example, program, Fault{0, event, number}, true);
        if (out.events[0].at(event) <= number) continue;  // what has ended is not waited for
        check_failure(out, 0);
      }
    }
  }
}

TEST_CASE("executor: exception in any action on any rank ends all", "[.nightly]") {
  const auto swept = sweep([](const std::string&, std::size_t) { return true; });
  CHECK(swept.events == kEvents);
  CHECK(swept.on_ranks.size() >= 3 * kEvents.size() - 4);  // the rank without replicas has no shares
  CHECK(swept.told > 500);
}

/// Two tensor shards of one replica, and a stage behind them.
PipelineCase make_sharded_case() {
  using enum ChannelKind;
  PipelineCase out;
  out.pipeline.ranks = 3;
  out.pipeline.stages = {Mesh({Rank(0), Rank(1)}, 2), Mesh{Rank(2)}};
  out.pipeline.channels = {{kSource, StageId(0), kBatched, true},
                           {StageId(0), StageId(1), kBatched, true},
                           {StageId(1), kSink, kBatched, false}};
  out.layout = {{2, 1, 3}, 3};
  return out;
}

TEST_CASE("executor: exception in tensor-parallel exchange ends all", "[executor]") {
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kZbH1}) {
    const auto example = make_sharded_case();
    const auto program = make_program_of(kind, example);
    const auto whole = run(example, program, {});
    REQUIRE(whole.results == "");
    for (const std::size_t rank : {0, 1}) {
      for (const char* event : {"meanwhile", "wire all_reduce", "wire all_gather", "wire wait"}) {
        const int count = whole.events[rank].at(event);
        for (const int number : std::set{0, count / 2, count - 1}) {
          INFO(to_string(kind) << ", rank " << rank << ", " << event << " " << number);
          const auto out = run(example, program, Fault{rank, event, number});
          if (out.events[rank].at(event) <= number) continue;
          check_failure(out, rank);
        }
      }
    }
  }
}

}  // namespace executor_failure_test
