// What each part of the planner's search is worth: plans a set of models with all parts, then with one part left out.
// One JSON line a part and group of models:
//
//   worse, worst    plans with a longer step than that of the whole search, and the largest ratio
//   better, best    plans with a shorter one, and the smallest ratio
//   lost, gained    cases without a plan that had one, and the other way round
//   unproven        answers that nothing fits, without the smallest change that would
//   seconds, states of all searches, as ratios to those of the whole search
//
//   plan_ablation [part of a group's name] [part of a part's name]
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <autopar/plan/planner.hpp>
#include <autopar/testing/random_instances.hpp>
#include <autopar/testing/random_models.hpp>

#include "plan_time/models.hpp"
#include "plan_time/small_graphs.hpp"

namespace ap = autopar;

namespace {

struct Case {
  ap::ModelProfile model;
  ap::Cluster cluster;
  ap::PlanRequest request;
};

struct Group {
  std::string name;
  std::vector<Case> cases;
};

struct Part {
  std::string name;
  std::function<void(ap::PlanRequest&)> leave_out;
};

std::vector<Part> parts() {
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  const auto budget = [](auto change) { return [change](ap::PlanRequest& request) { change(request.budget); }; };
  using Budget = ap::SearchBudget;
  return {
      {"none", [](ap::PlanRequest&) {}},
      {"branch and bound", budget([](Budget& b) { b.states = 0; })},
      {"bound of partial stagings", budget([](Budget& b) { b.bounds_partial_stagings = false; })},
      {"table of the rest", budget([](Budget& b) { b.rest_cells = 0; })},
      {"starts", budget([](Budget& b) { b.starts = 0; })},
      {"local search of starts", budget([](Budget& b) { b.estimates = 0; })},
      {"local search of nodes", budget([](Budget& b) { b.estimates_of_nodes = b.estimates_of_pieces = 0; })},
      {"pieces", budget([](Budget& b) { b.pieces = 0; })},
      {"comparison before simulation", budget([=](Budget& b) { b.many_actions = kNever; })},
      {"several stages a rank", budget([](Budget& b) { b.chunks = 0; })},
      {"synthesised orders", budget([](Budget& b) { b.synthesised = 0; })},
      {"varied tensor degrees", budget([](Budget& b) { b.degree_actions = 0; })},
      {"deeper pipelines", budget([](Budget& b) { b.deepened = 0; })},
      {"proof of the least memory", budget([](Budget& b) { b.memory_steps = 0; })},
      {"exact remedies", budget([](Budget& b) { b.remedy_steps = 0; })},
  };
}

ap::PlanRequest request_for(std::int64_t batch) {
  ap::PlanRequest request;
  request.batch = batch;
  request.runtime = ap::runtime_capabilities();
  return request;
}

/// Two in five of the graphs of `plan_time small`.
Group small_graphs() {
  Group group{"small", {}};
  int i = 0;
  for (const models::Named& named : models::small_graphs()) {
    for (const bool scarce : {false, true}) {
      for (const int devices : {2, 4, 8}) {
        if (++i % 5 > 1) continue;
        Case one{named.model, devices == 8 ? models::a100s(8) : models::cores(devices), request_for(16 * devices)};
        if (scarce) one.request.options.device_memory = models::scarce(named.model, one.request.batch, devices);
        group.cases.push_back(std::move(one));
      }
    }
  }
  return group;
}

Group large_models() {
  Group group{"large", {}};
  group.cases.push_back({models::bert(), models::v100s(8), request_for(64)});
  group.cases.push_back({models::bert(), models::v100s(32), request_for(256)});
  group.cases.push_back({models::resnet152x8(), models::v100s(32), request_for(1024)});
  for (const int gib : {8, 12, 16, 24}) {
    Case one{models::transformer(1024, 24, 16, 512, 50304), models::a100s(4), request_for(64)};
    one.request.options.device_memory = ap::Bytes(std::int64_t{gib} << 30);
    group.cases.push_back(one);
    one.cluster = models::v100s(8);
    group.cases.push_back(std::move(one));
  }
  for (const bool repeated : {true, false}) {
    group.cases.push_back({models::chain(1000, repeated), models::a100s(64), request_for(1024)});
    group.cases.push_back({models::chain(10'000, repeated), models::a100s(64), request_for(1024)});
  }
  return group;
}

/// All options, most with too little memory.
Group random_cases() {
  Group group{"random", {}};
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    ap::testing::Instance made = ap::testing::random_instance(1000 + seed, 12, 8);
    if (seed % 2 == 1) made.request.runtime = ap::runtime_capabilities();
    group.cases.push_back({std::move(made.model), std::move(made.cluster), std::move(made.request)});
  }
  return group;
}

/// With regions that tensor shards can compute together.
Group tensor_cases() {
  Group group{"tensor", {}};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    ap::testing::Dice dice(seed + 31337);
    Case one{ap::testing::random_model(dice, 9),
             ap::testing::small_cluster(8, ap::Bytes(dice.chance(60) ? 1 << 20 : dice(150, 500) * 1000)),
             request_for(dice(1, 24))};
    ap::testing::add_tensor_regions(one.model, dice);
    one.request.options.max_microbatches = dice(1, 4);
    group.cases.push_back(std::move(one));
  }
  return group;
}

/// What the planner answers: a step, nothing with or without a proof, or a request that contradicts itself.
struct Answer {
  double step = std::numeric_limits<double>::infinity(), seconds = 0, states = 0;
  bool refused = false, proven = true;
};

Answer answer_to(Case one, const Part& part) {
  part.leave_out(one.request);
  Answer answer;
  ap::Planner<> planner;
  planner.observer = [&](const std::string& phase) {
    if (phase.starts_with("searched ")) answer.states += std::stod(phase.substr(9));
  };
  const std::clock_t start = std::clock();
  try {
    const ap::PlanOutcome outcome =
        planner.try_plan(one.model, ap::ProfiledCost(one.cluster, {}), one.cluster, one.request);
    if (const auto* plan = std::get_if<ap::Plan>(&outcome))
      answer.step = plan->step.value();
    else
      answer.proven = std::get<ap::Infeasible>(outcome).remedy.find("less may do") == std::string::npos;
  } catch (const ap::InvalidArgument&) {
    answer.refused = true;
  } catch (const ap::CaptureError&) {
    answer.refused = true;
  }
  answer.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return answer;
}

void compare(const Group& group, const Part& part, const std::vector<Answer>& whole,
             const std::vector<Answer>& without) {
  constexpr double kSame = 1e-9;
  int worse = 0, better = 0, lost = 0, gained = 0, unproven = 0;
  double worst = 1, best = 1, seconds = 0, states = 0, all_seconds = 0, all_states = 0, slowest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const bool had = whole[i].step < std::numeric_limits<double>::infinity();
    const bool has = without[i].step < std::numeric_limits<double>::infinity();
    lost += had && !has ? 1 : 0;
    gained += !had && has ? 1 : 0;
    unproven += without[i].proven ? 0 : 1;
    if (had && has) {
      const double ratio = without[i].step / whole[i].step;
      worse += ratio > 1 + kSame ? 1 : 0;
      better += ratio < 1 - kSame ? 1 : 0;
      worst = std::max(worst, ratio);
      best = std::min(best, ratio);
    }
    seconds += without[i].seconds;
    states += without[i].states;
    all_seconds += whole[i].seconds;
    all_states += whole[i].states;
    slowest = std::max(slowest, without[i].seconds);
  }
  std::cout << R"({"group":")" << group.name << R"(","without":")" << part.name << R"(","cases":)" << whole.size()
            << R"(,"worse":)" << worse << R"(,"worst":)" << worst << R"(,"better":)" << better << R"(,"best":)" << best
            << R"(,"lost":)" << lost << R"(,"gained":)" << gained << R"(,"unproven":)" << unproven << R"(,"seconds":)"
            << seconds / all_seconds << R"(,"states":)" << states / std::max(1.0, all_states)
            << R"(,"slowest_seconds":)" << slowest << '}' << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string group_name = argc > 1 ? argv[1] : "", part_name = argc > 2 ? argv[2] : "";
  for (const Group& group : {random_cases(), tensor_cases(), small_graphs(), large_models()}) {
    if (group.name.find(group_name) == std::string::npos) continue;
    std::vector<Answer> whole;
    for (const Part& part : parts()) {
      const bool is_whole = whole.empty();
      if (!is_whole && part.name.find(part_name) == std::string::npos) continue;
      std::vector<Answer> answers;
      for (const Case& one : group.cases) answers.push_back(answer_to(one, part));
      if (is_whole) whole = answers;
      compare(group, part, whole, answers);
    }
  }
}
