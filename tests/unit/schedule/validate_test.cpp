#include <autopar/schedule/validate.hpp>

#include <algorithm>
#include <functional>
#include <string>

#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "random_orders.hpp"
#include "rendezvous.hpp"

using namespace autopar;
using testing::Dice;
using testing::PipelineCase;

namespace {

struct Subject {
  PipelineCase example;
  Phase phase = Phase::kStep;
  Program program;
};

bool accepted(const Subject& subject, const Program& program) {
  return !find_fault(subject.example.pipeline, subject.example.layout, subject.phase, program);
}

/// A reordered program is truly equivalent if a runtime that blocks at every send and reduction still comes to the
/// right result, reductions ascending. Backward phases start from ranks that have run their forwards.
bool equivalent(const Subject& subject, const Program& program) {
  const auto& [pipeline, layout] = subject.example;
  auto ranks = testing::symbolic_ranks(pipeline, layout);
  if (subject.phase == Phase::kBackward) {
    const auto forwards = make_program(pipeline, layout, GPipe{}, Phase::kForward);
    REQUIRE(testing::run_blocking(pipeline, layout, Phase::kForward, forwards, ranks).empty());
  }
  return testing::run_blocking(pipeline, layout, subject.phase, program, ranks).empty();
}

std::vector<Subject> subjects_of(const PipelineCase& example) {
  std::vector<Subject> out;
  const auto& [pipeline, layout] = example;
  out.push_back({example, Phase::kStep, make_program(pipeline, layout, OneFOneB{})});
  out.push_back({example, Phase::kStep, make_program(pipeline, layout, GPipe{})});
  out.push_back({example, Phase::kForward, make_program(pipeline, layout, GPipe{}, Phase::kForward)});
  out.push_back({example, Phase::kBackward, make_program(pipeline, layout, GPipe{}, Phase::kBackward)});
  out.push_back({example, Phase::kStep, make_program(pipeline, layout, testing::RandomOrders{7})});
  out.push_back(
      {example, Phase::kBackward, make_program(pipeline, layout, testing::RandomOrders{7}, Phase::kBackward)});
  out.push_back({example, Phase::kStep, make_program(pipeline, layout, ScheduleKind::kZbH1)});
  return out;
}

/// The schedules that say where stages are.
std::vector<Subject> placed_subjects_of(ScheduleKind kind, const PipelineCase& example) {
  std::vector<Subject> out;
  for (const Phase phase : {Phase::kStep, Phase::kBackward}) {
    out.push_back({example, phase, make_program(example.pipeline, example.layout, kind, phase)});
  }
  return out;
}

std::vector<PipelineCase> small_cases() {
  using enum ChannelKind;
  const StageId s0(0), s1(1), s2(2);
  const Rank r0(0), r1(1), r2(2), r3(3);
  return {
      {{1, {{r0}}, {{kSource, s0, kBatched, true}, {s0, kSink, kBatched, true}}, {}}, {{2}, 2}},
      {{2, {{r0, r1}}, {{kSource, s0, kBatched, false}}, {{{r0, r1}, s0, 2}}}, {{2, 3}, 2}},
      {{2,
        {{r0}, {r1}},
        {{kSource, s0, kBatched, true}, {s0, s1, kBatched, true}, {s1, kSink, kBatched, false}},
        {{{r0, r1}, StageId::none(), 1}}},
       {{3, 2}, 2}},
      {{3,
        {{r0}, {r1, r2}},
        {{kSource, s0, kBatched, false}, {s0, s1, kBatched, true}, {s0, s1, kReplicated, true}},
        {{{r1, r2}, s1, 2}}},
       {{2, 0, 3}, 2}},
      {{4,
        {{r2, r0}, {r1}, {r3}},
        {{kSource, s0, kBatched, false},
         {s0, s1, kPartialSum, true},
         {s0, s2, kBatched, true},
         {s1, s2, kBatched, true},
         {kSource, s2, kReplicated, true}},
        {{{r0, r2}, s0, 1}, {{r0, r2, r3}, StageId::none(), 1}}},
       {{1, 2, 0, 1}, 2}},
      {{2,
        {{r0}, {r0, r1}, {r1, r0}},
        {{kSource, s0, kBatched, false}, {s0, s1, kBatched, true}, {s1, s2, kTotal, true}},
        {{{r0, r1}, s2, 1}, {{r0, r1}, s1, 1}, {{r0, r1}, StageId::none(), 1}}},
       {{2, 0}, 1}},
      {{2,
        {{r0}, {r1}, {r0}},
        {{s0, s1, kBatched, true}, {s1, s2, kReplicated, true}, {s0, s2, kPartialSum, true}},
        {{{r0, r1}, StageId::none(), 1}}},
       {{1, 1}, 2}},
      {{2, {{r0, r1}}, {{kSource, s0, kBatched, false}}, {{{r0, r1}, s0, 2, 1}}}, {{2, 3}, 2}},
      {{2, {{r0, r1}}, {{kSource, s0, kBatched, true}}, {{{r0, r1}, s0, 2, 2}}}, {{1, 0}, 2}},
      {{3, {{r0}, {r2, r1}}, {{s0, s1, kBatched, true}}, {{{r1, r2}, s1, 2, 3}, {{r0, r1, r2}, StageId::none(), 1, 1}}},
       {{1, 1, 1}, 2}},
      {{2, {{r0, r1}, {r1, r0}}, {{s0, s1, kBatched, true}}, {{{r0, r1}, s1, 1, 3}, {{r0, r1}, s0, 1, 2}}},
       {{1, 2}, 1}},
  };
}

std::vector<Subject> small_subjects() {
  std::vector<Subject> out;
  for (const PipelineCase& example : small_cases()) {
    for (Subject& subject : subjects_of(example)) out.push_back(std::move(subject));
  }
  using enum ChannelKind;
  const StageId s0(0), s1(1), s2(2), s3(3);
  const Positions positions{{Rank(1)}, {Rank(0), Rank(2)}};
  for (const ScheduleKind kind : {ScheduleKind::kInterleaved, ScheduleKind::kZbV}) {
    const auto stages = stages_in(traits_of(kind).layout, positions, 2);
    const PipelineCase example{
        {3,
         stages,
         {{kSource, s0, kBatched, false},
          {s0, s1, kBatched, true},
          {s1, s2, kBatched, true},
          {s2, s3, kTotal, true},
          {s3, kSink, kBatched, true}},
         {{{Rank(0), Rank(2)}, kind == ScheduleKind::kZbV ? s2 : s3, 1}, {{Rank(0), Rank(2)}, s1, 1}}},
        {{1, 2, 0}, 2}};
    for (Subject& subject : placed_subjects_of(kind, example)) out.push_back(std::move(subject));
  }
  return out;
}

/// Every program that differs from `program` in one field of one action.
void for_each_changed_field(const Program& program, int ranks, const std::function<void(const Program&)>& visit) {
  const std::vector<std::function<void(Action&)>> changes{
      [](Action& a) { ++a.microbatch; },
      [](Action& a) { --a.microbatch; },
      [](Action& a) { ++a.channel; },
      [](Action& a) { --a.channel; },
      [](Action& a) { a.flow = a.flow == Flow::kValue ? Flow::kGradient : Flow::kValue; },
      [](Action& a) { ++a.samples.begin; },
      [](Action& a) { --a.samples.begin; },
      [](Action& a) { ++a.samples.end; },
      [](Action& a) { --a.samples.end; },
      [](Action& a) { ++a.stage; },
      [](Action& a) { a.stage = StageId(a.stage.value() - 1); },
      [](Action& a) { ++a.group; },
      [](Action& a) { --a.group; },
      [](Action& a) { ++a.bucket; },
      [](Action& a) { --a.bucket; },
      [](Action& a) { a.peer = Rank(a.peer.value() - 1); }};
  Program changed = program;
  for (auto& actions : changed.ranks) {
    for (Action& action : actions) {
      const Action original = action;
      for (const auto& change : changes) {
        change(action);
        visit(changed);
        action = original;
      }
      for (int kind = 0; kind < 9; ++kind) {
        action.kind = static_cast<ActionKind>(kind);
        if (!(action == original)) visit(changed);
        action = original;
      }
      for (int peer = 0; peer <= ranks; ++peer) {  // redirected, also to a rank that does not exist
        action.peer = Rank(peer);
        if (!(action == original)) visit(changed);
        action = original;
      }
    }
  }
}

Program without(Program program, std::size_t rank, std::size_t position) {
  auto& actions = program.ranks[rank];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(position));
  return program;
}

Program doubled(Program program, std::size_t rank, std::size_t position, std::size_t to) {
  auto& actions = program.ranks[rank];
  const Action action = actions[position];
  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), action);
  return program;
}

Program moved(Program program, std::size_t rank, std::size_t from, std::size_t to) {
  auto& actions = program.ranks[rank];
  const Action action = actions[from];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), action);
  return program;
}

}  // namespace

TEST_CASE("validate: dropped, doubled or changed actions are rejected", "[schedule]") {
  int mutants = 0;
  for (const Subject& subject : small_subjects()) {
    REQUIRE(accepted(subject, subject.program));
    REQUIRE(equivalent(subject, subject.program));
    int survivors = 0;
    const auto reject = [&](const Program& mutant) {
      ++mutants;
      if (accepted(subject, mutant)) ++survivors;
    };
    for (std::size_t r = 0; r < subject.program.ranks.size(); ++r) {
      for (std::size_t i = 0; i < subject.program.ranks[r].size(); ++i) {
        reject(without(subject.program, r, i));
        for (std::size_t to = 0; to <= subject.program.ranks[r].size(); ++to) {
          reject(doubled(subject.program, r, i, to));
        }
      }
    }
    for_each_changed_field(subject.program, subject.example.pipeline.ranks, reject);
    REQUIRE(survivors == 0);
  }
  CHECK(mutants > 10000);
}

TEST_CASE("validate: reordering is rejected unless equivalent", "[schedule]") {
  int mutants = 0, rejected = 0;
  for (const Subject& subject : small_subjects()) {
    for (std::size_t r = 0; r < subject.program.ranks.size(); ++r) {
      const auto n = subject.program.ranks[r].size();
      for (std::size_t from = 0; from < n; ++from) {
        for (std::size_t to = 0; to < n; ++to) {
          if (from == to) continue;
          const auto mutant = moved(subject.program, r, from, to);
          const bool ok = accepted(subject, mutant);
          INFO(describe(subject.program.ranks[r][from]) << ", rank " << r << ", from " << from << " to " << to);
          REQUIRE(ok == equivalent(subject, mutant));
          ++mutants;
          rejected += ok ? 0 : 1;
        }
      }
    }
  }
  CHECK(mutants > 2000);
  CHECK(rejected > mutants / 2);
}

TEST_CASE("validate: random mutants are rejected unless equivalent", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    Dice dice(seed + 1000000);
    std::vector<Subject> subjects;
    auto placed_kind = ScheduleKind::kInterleaved;
    if (seed % 3 == 2) {
      const auto kind = placed_kind = dice.chance(50) ? ScheduleKind::kInterleaved : ScheduleKind::kZbV;
      subjects = placed_subjects_of(kind, testing::random_placed_case(seed, traits_of(kind).layout, 6, 6));
    } else {
      subjects =
          subjects_of(seed % 3 == 0 ? testing::random_case(seed, 7, 6) : testing::random_chunked_case(seed, 6, 5));
    }
    if (seed % 2 == 1) {
      const auto shared = testing::in_shards(subjects.front().example, seed);
      subjects = seed % 3 == 2 ? placed_subjects_of(placed_kind, shared) : subjects_of(shared);
    }
    const auto& subject = subjects[static_cast<std::size_t>(dice.below(static_cast<int>(subjects.size())))];
    const auto r = static_cast<std::size_t>(dice.below(subject.example.pipeline.ranks));
    const auto n = static_cast<int>(subject.program.ranks[r].size());
    if (n < 2) continue;
    INFO("seed " << seed);
    const auto from = static_cast<std::size_t>(dice.below(n)), to = static_cast<std::size_t>(dice.below(n));
    REQUIRE(!accepted(subject, without(subject.program, r, from)));
    REQUIRE(!accepted(subject, doubled(subject.program, r, from, to)));
    const auto mutant = moved(subject.program, r, from, to);
    REQUIRE(accepted(subject, mutant) == equivalent(subject, mutant));
    auto swapped = subject.program;
    std::swap(swapped.ranks[r][from], swapped.ranks[r][to]);
    REQUIRE(accepted(subject, swapped) == equivalent(subject, swapped));
  }
}

TEST_CASE("validate: swapped micro-batches are rejected", "[schedule]") {
  const auto example = small_cases()[2];
  const auto program = make_program(example.pipeline, example.layout, GPipe{});
  Subject subject{example, Phase::kStep, program};
  for (auto& actions : subject.program.ranks) {
    for (Action& action : actions) {
      if (action.channel == 1) action.microbatch = 1 - action.microbatch;
      if (action.channel == 1 && !action.samples.empty()) {
        action.samples = BatchSplit(example.pipeline, example.layout).slice(StageId(0), 0, action.microbatch);
      }
    }
  }
  CHECK(!accepted(subject, subject.program));
}

TEST_CASE("validate: reordered buckets are rejected", "[schedule]") {
  const auto [pipeline, layout] = small_cases()[1];
  auto program = make_program(pipeline, layout, GPipe{});
  for (auto& actions : program.ranks) std::swap(actions[actions.size() - 2], actions[actions.size() - 1]);
  CHECK_THROWS_WITH(validate(pipeline, layout, Phase::kStep, program),
                    Catch::Matchers::ContainsSubstring("reduction of bucket 0 over group 0) is out of order"));
}

TEST_CASE("validate: a fault names rank, position and action", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  const auto [pipeline, layout] = small_cases()[2];
  const auto good = make_program(pipeline, layout, OneFOneB{});
  const auto message = [&, &pipeline = pipeline, &layout = layout](const Program& program) -> std::string {
    try {
      validate(pipeline, layout, Phase::kStep, program);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return {};
  };
  REQUIRE(message(good).empty());
  CHECK_THAT(message({}), ContainsSubstring("0 ranks, the pipeline 2"));

  const auto position_of = [&](ActionKind kind) {
    std::size_t i = 0;
    while (good.ranks[1][i].kind != kind) ++i;
    return i;
  };
  const auto receive = position_of(ActionKind::kReceive), forward = position_of(ActionKind::kForward);
  CHECK_THAT(message(without(good, 1, receive)),
             ContainsSubstring("rank 1: receive of values of channel") && ContainsSubstring("is missing"));
  CHECK_THAT(message(doubled(good, 1, forward, 0)), ContainsSubstring("rank 1, action") &&
                                                        ContainsSubstring("forward of stage 1") &&
                                                        ContainsSubstring("twice"));
  CHECK_THAT(message(moved(good, 1, forward, 0)),
             ContainsSubstring("rank 1, action") && ContainsSubstring("comes after the forward that needs its data"));
}

TEST_CASE("validate: two deadlocked ranks are named", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  const Pipeline pipeline{.ranks = 2,
                          .stages = {{Rank(0)}, {Rank(1)}},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, true}},
                          .groups = {}};
  const BatchLayout layout{{2, 0}, 1};
  auto program = make_program(pipeline, layout, GPipe{});
  auto& actions = program.ranks[0];  // forward, send, receive, backward: rank 0 shall receive before it sends
  REQUIRE(actions.size() == 4);
  std::swap(actions[1], actions[2]);
  CHECK_THROWS_WITH(validate(pipeline, layout, Phase::kStep, program),
                    ContainsSubstring("rank 0, action 1 (receive of gradients of channel 0") &&
                        ContainsSubstring("waits for ever: rank 1 is at the receive of values of channel 0"));
}
