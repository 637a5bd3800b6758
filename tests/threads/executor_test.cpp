#include <autopar/runtime/executor.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/loopback.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/synthesised.hpp>
#include <autopar/schedule/validate.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "../unit/schedule/equal_times.hpp"
#include "../unit/schedule/random_orders.hpp"
#include "../unit/schedule/symbolic_model.hpp"
#include "fake_engine.hpp"
#include "holding_transport.hpp"

namespace executor_test {

using namespace autopar;
using testing::FakeEngine;
using testing::HoldingTransport;
using testing::index_of;
using testing::Ledger;
using testing::LoggedTransport;
using testing::make_groups;
using testing::make_models;
using testing::make_tensor_groups;
using testing::PipelineCase;
using testing::Script;

/// What a rank's program has other ranks take part in, as HoldingTransport names it.
std::vector<std::string> taken_part_in(const std::vector<Action>& actions, Rank self, const Pipeline& pipeline,
                                       const std::vector<GroupId>& groups, const std::vector<GroupId>& tensor_groups,
                                       const Script& script) {
  std::vector<std::string> names;
  const auto add = [&](const char* kind, Rank peer, Tag tag) {
    names.push_back(HoldingTransport::name(kind, peer, tag));
  };
  for (const Action& action : actions) {
    const Tag tag{action.channel, action.microbatch, static_cast<std::int32_t>(action.flow)};
    if (is_collective(action.kind)) {
      const Tag group{groups[static_cast<std::size_t>(action.group)].value, 0, 0};
      const bool gathers = action.kind == ActionKind::kAllGather, in_shards = action.kind == ActionKind::kReduceScatter;
      const bool in_parts = !gathers && script.sums_parts(action);
      if (in_parts) add("parts", Rank::none(), group);
      if (!gathers && !in_parts) add(in_shards ? "scatter" : "reduce", Rank::none(), group);
      if (gathers || (in_parts && !in_shards)) add("gather", Rank::none(), group);
    } else if (is_compute(action.kind)) {
      if (!exchanges_in_compute(pipeline.stages[action.stage.index()], action.kind)) continue;
      for (const char* exchange : {"reduce", "scatter", "gather"})
        add(exchange, Rank::none(), {tensor_groups[action.stage.index()].value, 0, 0});
    } else if (action.peer != self) {
      add(action.kind == ActionKind::kSend ? "send" : "receive", action.peer, tag);
    }
  }
  return names;
}

/// Runs phases one after the other on one thread a rank; empty if all results are the reference's.
template <class Wire = AnyTransport, SchedulePolicy Policy>
std::string run_phases(const PipelineCase& example, const std::vector<Phase>& phases, const Policy& policy,
                       std::uint32_t seed) {
  const auto& [pipeline, layout] = example;
  Ledger ledger;
  auto models = make_models(example);
  std::vector<Program> programs;
  for (const Phase phase : phases) {
    programs.push_back(make_program(pipeline, layout, policy, phase));
  }
  loopback::run(pipeline.ranks, [&](World& world) {
    Wire transport(world.make_transport());
    const auto groups = make_groups(transport, pipeline), tensor_groups = make_tensor_groups(transport, pipeline);
    const auto r = index_of(world);
    std::vector<std::string> expected;
    for (std::size_t p = 0; p < phases.size(); ++p) {
      const auto& actions = programs[p].ranks[r];
      const Script script{.throw_at = {},
                          .bucket_order = seed + 7 * static_cast<std::uint32_t>(r),
                          .eager = seed % 3 == 0,
                          .in_parts = seed % 7 < 3,
                          .log = {}};
      for (auto& name : taken_part_in(actions, world.rank_id(), pipeline, groups, tensor_groups, script))
        expected.push_back(std::move(name));
      FakeEngine engine(models[r], actions, phases[p], ledger, script);
      Executor executor(engine, transport, {.sums = groups, .tensor = tensor_groups});
      executor.run(actions);
    }
    if constexpr (requires { transport.issued(); }) {
      if (transport.issued() != expected)
        throw std::logic_error("messages, sums and exchanges left the program's order");
    }
  });
  if (ledger.alive != 0) return std::to_string(ledger.alive) + " buffers are left";
  for (const Phase phase : phases) {
    auto wrong = testing::difference(pipeline, layout, phase, models);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

/// A step, and a forward and a backward phase, under an order that the seed chooses; whether ranks have several stages,
/// too.
template <class Wire = AnyTransport>
std::string run_random_case(std::uint32_t seed) {
  auto example = seed % 2 == 0 ? testing::random_case(seed, 6, 6) : testing::random_chunked_case(seed, 5, 5);
  if (seed % 5 > 1) example = testing::in_shards(example, seed);
  const auto run = [&](const auto& policy) {
    auto wrong = run_phases<Wire>(example, {Phase::kStep}, policy, seed);
    return wrong.empty() ? run_phases<Wire>(example, {Phase::kForward, Phase::kBackward}, policy, seed) : wrong;
  };
  switch (seed / 2 % 3) {
    case 0:
      return run(OneFOneB{});
    case 1:
      return run(GPipe{});
    default:
      return run(testing::RandomOrders{seed});
  }
}

/// The same under the schedules that part backwards or say where stages are.
template <class Wire = AnyTransport>
std::string run_random_placed_case(ScheduleKind kind, std::uint32_t seed) {
  auto example = testing::random_placed_case(seed, traits_of(kind).layout, 6, 7);
  if (seed % 5 > 1) example = testing::in_shards(example, seed);
  return with_policy(kind, [&](const auto& policy) {
    auto wrong = run_phases<Wire>(example, {Phase::kStep}, policy, seed);
    return wrong.empty() ? run_phases<Wire>(example, {Phase::kForward, Phase::kBackward}, policy, seed) : wrong;
  });
}

/// `stages` stages in a row, one rank each.
PipelineCase row(int stages, int microbatches) {
  PipelineCase out;
  out.pipeline.ranks = stages;
  for (int s = 0; s < stages; ++s) {
    out.pipeline.stages.push_back({Rank(s)});
    out.pipeline.channels.push_back({s == 0 ? kSource : StageId(s - 1), StageId(s), ChannelKind::kBatched, true});
    out.layout.local.push_back(2 * microbatches);
  }
  out.layout.microbatches = microbatches;
  return out;
}

struct EventLog {
  std::mutex mutex;
  std::vector<std::string> lines;
  void operator()(const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }
  [[nodiscard]] std::ptrdiff_t position(const std::string& start) const {
    const auto at = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(start); });
    REQUIRE(at != lines.end());
    return at - lines.begin();
  }
};

TEST_CASE("executor: random pipelines deliver each contribution once", "[executor]") {
  for (std::uint32_t seed = 0; seed < 240; ++seed) {
    INFO("seed " << seed);
    REQUIRE(run_random_case(seed) == "");
  }
}

TEST_CASE("executor: interleaved, ZB-H1, ZB-V equal one process", "[executor]") {
  for (const auto kind : {ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
      INFO(to_string(kind) << ", seed " << seed);
      REQUIRE(run_random_placed_case(kind, seed) == "");
      REQUIRE(run_random_placed_case<HoldingTransport>(kind, seed) == "");
    }
  }
}

TEST_CASE("executor: synthesised orders equal one process", "[executor]") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const auto kind = seed % 2 == 0 ? ScheduleKind::kZbV : ScheduleKind::kInterleaved;
    const auto example = testing::random_placed_case(seed, traits_of(kind).layout, 6, 7);
    const Synthesised<testing::EqualTimes> policy{
        .costs = {}, .local = example.layout.local, .parts_backwards = seed % 3 != 0, .budget = 40};
    INFO("seed " << seed);
    REQUIRE(run_phases(example, {Phase::kStep}, policy, seed) == "");
    REQUIRE(run_phases<HoldingTransport>(example, {Phase::kForward, Phase::kBackward}, policy, seed) == "");
  }
}

TEST_CASE("executor: blocking messages and sums cause no deadlock", "[executor]") {
  for (std::uint32_t seed = 0; seed < 240; ++seed) {
    INFO("seed " << seed);
    REQUIRE(run_random_case<HoldingTransport>(seed) == "");
  }
}

TEST_CASE("executor: reductions start in last backward, program order", "[executor]") {
  PipelineCase example{{.ranks = 2,
                        .stages = {{Rank(0), Rank(1)}},
                        .channels = {{kSource, StageId(0), ChannelKind::kBatched, false}},
                        .groups = {{{Rank(0), Rank(1)}, StageId(0), 5}}},
                       {{3, 4}, 2}};
  const auto program = make_program(example.pipeline, example.layout, OneFOneB{});
  auto models = make_models(example);
  Ledger ledger;
  EventLog log;
  loopback::run(2, [&](World& world) {
    const auto r = index_of(world);
    const auto tell = [&](const std::string& line) { log(line); };
    LoggedTransport transport(world.make_transport(), r == 0 ? tell : std::function<void(const std::string&)>());
    const auto groups = make_groups(transport, example.pipeline);
    Script script{.throw_at = {},
                  .bucket_order = 5 + static_cast<std::uint32_t>(r),
                  .eager = false,
                  .in_parts = false,
                  .log = {}};
    if (r == 0) script.log = tell;
    FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger, script);
    Executor(engine, transport, {groups}).run(program.ranks[r]);
  });
  REQUIRE(testing::difference(example.pipeline, example.layout, Phase::kStep, models) == "");
  const auto end = log.position("last backward ends");
  int bucket = 0;
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(log.lines.size()); ++i) {
    if (!log.lines[static_cast<std::size_t>(i)].starts_with("bucket: ")) continue;
    CHECK(log.lines[static_cast<std::size_t>(i)] ==
          "bucket: reduction of bucket " + std::to_string(bucket++) + " over group 0");
    CHECK(i < end);
    CHECK(i > log.position("backward: backward of stage 0, micro-batch 1"));
  }
  CHECK(bucket == 5);
}

TEST_CASE("executor: reductions start in a stage's own last backward", "[executor]") {
  const std::vector<Rank> both{Rank(0), Rank(1)};
  const PipelineCase example{{.ranks = 2,
                              .stages = {both, both},
                              .channels = {{kSource, StageId(0), ChannelKind::kBatched, false},
                                           {StageId(0), StageId(1), ChannelKind::kBatched, true},
                                           {StageId(0), StageId(1), ChannelKind::kTotal, true}},
                              .groups = {{both, StageId(1), 3}, {both, StageId(0), 1}, {both, StageId::none(), 1}}},
                             {{3, 4}, 2}};
  const auto program = make_program(example.pipeline, example.layout, GPipe{});
  auto models = make_models(example);
  Ledger ledger;
  EventLog log;
  loopback::run(2, [&](World& world) {
    const auto r = index_of(world);
    auto transport = world.make_transport();
    const auto groups = make_groups(transport, example.pipeline);
    Script script{.throw_at = {}, .bucket_order = 3, .eager = true, .in_parts = false, .log = {}};
    if (r == 0) script.log = [&](const std::string& line) { log(line); };
    FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger, script);
    Executor(engine, transport, {groups}).run(program.ranks[r]);
  });
  REQUIRE(testing::difference(example.pipeline, example.layout, Phase::kStep, models) == "");
  const auto last_of_stage_1 = log.position("backward: backward of stage 1, micro-batch 1");
  const auto last_of_stage_0 = log.position("backward: backward of stage 0, micro-batch 1");
  for (int bucket = 0; bucket < 3; ++bucket) {
    const auto started = log.position("bucket: reduction of bucket " + std::to_string(bucket) + " over group 0");
    CHECK(started > last_of_stage_1);
    CHECK(started < last_of_stage_0);
  }
  CHECK(log.position("bucket: reduction of bucket 0 over group 1") > last_of_stage_0);
  CHECK(log.position("bucket: reduction of bucket 0 over group 2") > last_of_stage_0);
}

TEST_CASE("executor: unsupported split backward is refused by name", "[executor]") {
  struct WholeEngine {
    void forward(const Action&) {}
    void backward(const Action&) {}
    Buffer pack(const Action&) { return {}; }
    Buffer receive_buffer(const Action&) { return {}; }
    void accept(const Action&, const Buffer&) {}
    void set_gate(ComputeGate*) {}
    Buffer bucket(const Action&) { return {}; }
    DType bucket_dtype(const Action&) { return DType::kF32; }
    void reduced(const Action&) {}
  };
  loopback::run(1, [&](World& world) {
    WholeEngine engine;
    auto transport = world.make_transport();
    const Action split{.kind = ActionKind::kBackwardInput,
                       .stage = StageId(0),
                       .microbatch = 0,
                       .flow = Flow::kGradient,
                       .samples = {0, 1}};
    CHECK_THROWS_WITH(Executor(engine, transport, {}).run({split}),
                      Catch::Matchers::ContainsSubstring("input backward of stage 0") &&
                          Catch::Matchers::ContainsSubstring("in two parts"));
  });
}

TEST_CASE("executor: receives are posted two compute actions ahead", "[executor]") {
  const auto example = row(2, 8);
  const auto program = make_program(example.pipeline, example.layout, GPipe{}, Phase::kForward);
  auto models = make_models(example);
  Ledger ledger;
  EventLog log;
  loopback::run(2, [&](World& world) {
    const auto r = index_of(world);
    auto transport = world.make_transport();
    Script script;
    if (r == 1) script.log = [&](const std::string& line) { log(line); };
    FakeEngine engine(models[r], program.ranks[r], Phase::kForward, ledger, script);
    Executor(engine, transport, {}).run(program.ranks[r]);
  });
  std::vector<std::ptrdiff_t> forwards;
  for (int m = 0; m < 8; ++m) {
    forwards.push_back(log.position("forward: forward of stage 1, micro-batch " + std::to_string(m)));
  }
  const auto& actions = program.ranks[1];
  int compute = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) ++compute;
    if (action.kind != ActionKind::kReceive || action.peer == Rank(1)) continue;
    const auto posted = log.position("receive_buffer: " + describe(action));
    CHECK(posted < forwards[static_cast<std::size_t>(std::max(compute - kReceivesAhead, 0))]);
    if (compute > kReceivesAhead) CHECK(posted > forwards[static_cast<std::size_t>(compute - kReceivesAhead - 1)]);
  }
}

TEST_CASE("executor: buffers are freed during the step", "[executor]") {
  const auto most_alive = [](int microbatches) {
    const auto example = row(3, microbatches);
    const auto program = make_program(example.pipeline, example.layout, OneFOneB{});
    auto models = make_models(example);
    Ledger ledger;
    loopback::run(3, [&](World& world) {
      const auto r = index_of(world);
      auto transport = world.make_transport();
      FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger);
      Executor(engine, transport, {}).run(program.ranks[r]);
    });
    REQUIRE(ledger.alive == 0);
    return ledger.most.load();
  };
  // Argument gradients (three messages a micro-batch) leave late if their readers are slow; all else is bounded.
  CHECK(most_alive(64) < 64 * 8);
}

TEST_CASE("executor: engine exception is named, leaves no buffers", "[executor]") {
  using enum ChannelKind;
  const StageId s0(0), s1(1), s2(2);
  const PipelineCase example{
      {.ranks = 4,
       .stages = {{Rank(2), Rank(0)}, {Rank(1)}, {Rank(3)}},
       .channels = {{kSource, s0, kBatched, true},
                    {s0, s1, kPartialSum, true},
                    {s0, s2, kBatched, true},
                    {s1, s2, kBatched, true},
                    {s2, kSink, kBatched, false}},
       .groups = {{{Rank(0), Rank(2)}, s0, 2}, {{Rank(0), Rank(2), Rank(3)}, StageId::none(), 1}}},
      {{2, 3, 0, 1}, 3}};
  const auto& [pipeline, layout] = example;
  const auto program = make_program(pipeline, layout, OneFOneB{});
  int thrown = 0;
  for (std::size_t failing = 0; failing < program.ranks.size(); ++failing) {
    for (std::size_t call = 0;; ++call) {
      Ledger ledger;
      auto models = make_models(example);
      std::vector<std::string> errors(program.ranks.size()), causes(program.ranks.size());
      std::vector<Rank> blamed(program.ranks.size());
      std::vector<std::size_t> under_way(program.ranks.size(), 0);
      std::atomic<bool> reached{false};
      const auto body = [&, &pipeline = pipeline](World& world) {
        LoggedTransport transport(world.make_transport());
        const auto groups = make_groups(transport, pipeline);
        const auto r = index_of(world);
        Script script;
        if (r == failing) script.throw_at = call;
        FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger, script);
        ExecutorHooks hooks;
        hooks.fail = [&](std::string_view action, std::string_view message) { world.fail(action, message); };
        try {
          Executor(engine, transport, {groups}, hooks).run(program.ranks[r]);
        } catch (const ExecutionError& error) {
          reached = true;
          try {
            std::rethrow_if_nested(error);
          } catch (const std::runtime_error& cause) {
            causes[r] = cause.what();
          }
          errors[r] = std::string("engine: ") + error.what() + " | " + error.action();
        } catch (const TransportError& error) {
          blamed[r] = error.peer();
          errors[r] = std::string("transport: ") + error.what() + " | " + error.action();
        }
        under_way[r] = transport.open();
      };
      try {
        loopback::run(pipeline.ranks, body);
      } catch (const TransportError&) {
      }
      CHECK(ledger.alive == 0);
      CHECK(under_way == std::vector<std::size_t>(program.ranks.size(), 0));
      if (!reached) break;
      ++thrown;
      INFO(errors[failing]);
      CHECK(errors[failing].starts_with("engine: "));
      CHECK(causes[failing] == "scripted failure");
      CHECK(errors[failing].find(": scripted failure | ") != std::string::npos);
      for (std::size_t r = 0; r < errors.size(); ++r) {
        if (r == failing || errors[r].empty()) continue;  // a rank that had nothing to wait for may have ended
        CHECK(errors[r].find("scripted failure") != std::string::npos);
        CHECK(blamed[r] == Rank::of(failing));
      }
    }
  }
  CHECK(thrown > 20);
}

TEST_CASE("executor: differing programs give an error, not wrong data", "[executor]") {
  const auto example = row(2, 2);
  const auto good = make_program(example.pipeline, example.layout, GPipe{}, Phase::kForward);
  auto other = good;
  for (Action& action : other.ranks[1]) {
    if (action.channel == 1) action.microbatch = 1 - action.microbatch;
  }
  auto models = make_models(example);
  Ledger ledger;
  std::atomic<int> named{0};
  const auto body = [&](World& world) {
    const auto r = index_of(world);
    auto transport = world.make_transport();
    const auto& actions = (r == 0 ? good : other).ranks[r];
    FakeEngine engine(models[r], actions, Phase::kForward, ledger);
    ExecutorHooks hooks;
    hooks.fail = [&](std::string_view action, std::string_view message) { world.fail(action, message); };
    try {
      Executor(engine, transport, {}, hooks).run(actions);
    } catch (const TransportError& error) {
      const std::string text = error.what();
      if (text.find("do not run the same program") != std::string::npos && text.find("(at the ") != std::string::npos) {
        ++named;
      }
      throw;
    }
  };
  CHECK_THROWS_AS(loopback::run(2, body), TransportError);
  CHECK(named >= 1);
  CHECK(ledger.alive == 0);
}

TEST_CASE("executor trace: has every action once with its span", "[executor]") {
  const auto example = testing::random_case(11, 4, 4);
  const auto program = make_program(example.pipeline, example.layout, OneFOneB{});
  auto models = make_models(example);
  Ledger ledger;
  std::vector<std::vector<Action>> traced(program.ranks.size());
  loopback::run(example.pipeline.ranks, [&](World& world) {
    const auto r = index_of(world);
    auto transport = world.make_transport();
    const auto groups = make_groups(transport, example.pipeline);
    FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger);
    ExecutorHooks hooks;
    hooks.trace = [&](const Action& action, auto start, auto end) {
      if (start <= end && start.time_since_epoch().count() > 0) traced[r].push_back(action);
    };
    Executor(engine, transport, {groups}, hooks).run(program.ranks[r]);
  });
  for (std::size_t r = 0; r < traced.size(); ++r) {
    REQUIRE(traced[r].size() == program.ranks[r].size());
    for (const Action& action : program.ranks[r]) {
      CHECK(std::count(traced[r].begin(), traced[r].end(), action) == 1);
    }
  }
}

TEST_CASE("executor trace: order is the program's and the simulation's", "[executor]") {
  for (const auto kind : kScheduleKinds) {
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
      const auto placed =
          kind == ScheduleKind::kSynthesised ? (seed % 2 == 0 ? ScheduleKind::kZbV : ScheduleKind::kZbH1) : kind;
      const auto example = testing::random_placed_case(seed, traits_of(placed).layout, 5, 6);
      const auto& [pipeline, layout] = example;
      const Synthesised<testing::EqualTimes> synthesised{
          .costs = {}, .local = layout.local, .parts_backwards = true, .budget = 40};
      const auto program = kind == ScheduleKind::kSynthesised ? make_program(pipeline, layout, synthesised)
                                                              : make_program(pipeline, layout, kind);
      auto models = make_models(example);
      Ledger ledger;
      std::vector<std::vector<ComputeAction>> traced(program.ranks.size());
      loopback::run(pipeline.ranks, [&, &pipeline = pipeline](World& world) {
        const auto r = index_of(world);
        auto transport = world.make_transport();
        const auto groups = make_groups(transport, pipeline);
        FakeEngine engine(models[r], program.ranks[r], Phase::kStep, ledger);
        ExecutorHooks hooks;
        hooks.trace = [&](const Action& action, auto, auto) {
          if (is_compute(action.kind)) traced[r].push_back({action.kind, action.microbatch, action.stage});
        };
        Executor(engine, transport, {groups}, hooks).run(program.ranks[r]);
      });
      INFO(to_string(kind) << ", seed " << seed);
      CHECK(traced == testing::computes_of(program));
      const auto timeline = simulate(pipeline, program, testing::EqualTimes{});
      for (std::size_t r = 0; r < traced.size(); ++r) {
        Seconds before{};
        std::vector<ComputeAction> simulated;
        for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
          const Action& action = program.ranks[r][i];
          if (!is_compute(action.kind)) continue;
          CHECK(timeline.spans[r][i].start >= before);
          before = timeline.spans[r][i].end;
          simulated.push_back({action.kind, action.microbatch, action.stage});
        }
        CHECK(traced[r] == simulated);
      }
    }
  }
}

}  // namespace executor_test
