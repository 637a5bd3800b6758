#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include "damage.hpp"

// Plan files that were altered, through training: refused by name, or trained by as one process trains.
namespace plan_training_test {

namespace ap = autopar;
using Json = nlohmann::ordered_json;

struct NetImpl : nets::MeanSquare<nets::Linears> {
  NetImpl() : MeanSquare(3, {{"first", 4}, {"second", 4}, {"third", 2}}) {
    to(torch::kDouble);
    torch::NoGradGuard off;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kDouble).view(parameter.sizes()) + 1));
    }
  }
};
TORCH_MODULE(Net);

constexpr int kRanks = 2;
constexpr std::int64_t kSamples = 4;  // of a rank

at::Tensor samples_of(int rank) {
  return torch::cos(torch::arange(kSamples * 3, torch::kDouble).view({kSamples, 3}) + rank);
}

/// Gradients of one step, by parameter.
using Gradients = std::vector<at::Tensor>;

Gradients of_one_process() {
  Net net;
  net(torch::cat({samples_of(0), samples_of(1)})).backward();
  Gradients out;
  for (const auto& parameter : net->parameters()) out.push_back(parameter.grad());
  return out;
}

/// @return as far as some rank owns the parameter
Gradients train_by(const ap::Options& options) {
  std::vector<Gradients> found(kRanks);
  ap::loopback::run(kRanks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, Net(), options);
    model(samples_of(world.rank())).backward();
    for (auto& parameter : model->parameters()) {
      found[static_cast<std::size_t>(world.rank())].push_back(model->owns(parameter) ? parameter.grad() : at::Tensor());
    }
  });
  Gradients out = found[0];
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined()) out[i] = found[1][i];
  }
  return out;
}

/// Alters members of a plan so that it stays JSON of the right shape: what a reader of text alone lets pass.
class Alteration {
 public:
  explicit Alteration(unsigned seed) : random_(seed) {}

  [[nodiscard]] std::string on(const std::string& text) {
    Json plan = Json::parse(text);
    for (std::size_t times = 1 + below(2); times > 0; --times) alter(plan);
    return plan.dump(1);
  }
  [[nodiscard]] std::size_t below(std::size_t n) { return random_() % (n == 0 ? 1 : n); }

 private:
  Json& stage(Json& plan) { return plan["stages"][below(plan["stages"].size())]; }
  Json& list(Json& stage) {
    static const std::vector<std::string> kLists{"ops", "atoms", "ranks", "parameters", "recomputed"};
    return stage[kLists[below(kLists.size())]];
  }
  [[nodiscard]] Json number() {
    static const std::vector<std::int64_t> kNumbers{0, 1, 2,  3,    4,          5,  7,
                                                    8, 9, 16, 1000, 2147483647, -1, std::int64_t{1} << 40};
    return kNumbers[below(kNumbers.size())];
  }

  void alter(Json& plan) {
    if (!plan["stages"].is_array() || plan["stages"].empty())
      return alter_member(plan);  // an alteration before this one
    Json& items = list(stage(plan));
    if (!items.is_array()) return alter_member(plan);
    switch (below(8)) {
      case 0:
        if (!items.empty()) items.erase(below(items.size()));
        break;
      case 1:
        if (!items.empty()) items.push_back(Json(items[below(items.size())]));
        break;
      case 2:
        items.push_back(below(4) == 0 ? Json::array({number()}) : number());
        break;
      case 3:
        if (!items.empty()) items[below(items.size())] = number();
        break;
      case 4:
        std::swap(items, list(stage(plan)));
        break;  // often of another stage
      case 5:
        alter_stages(plan["stages"]);
        break;
      case 6:
        alter_member(stage(plan));
        break;
      default:
        alter_member(plan);
        break;
    }
  }
  void alter_stages(Json& stages) {
    const auto at = below(stages.size());
    if (below(3) == 0)
      std::swap(stages[at], stages[below(stages.size())]);
    else if (below(2) == 0)
      stages.push_back(Json(stages[at]));
    else
      stages.erase(at);
  }
  void alter_member(Json& object) {
    static const std::vector<Json> kWords{"gpipe", "1f1b",      "interleaved", "zb-h1", "zb-v", "synth",
                                          "bf16",  "optimizer", true,          1e308,   0.25};
    auto member = object.begin();
    std::advance(member, static_cast<std::ptrdiff_t>(below(object.size())));
    *member = below(2) == 0 ? number() : kWords[below(kWords.size())];
  }

  std::mt19937 random_;
};

/// Trains by `rounds` altered plan files. @return how many were accepted
int train_by_altered(const ap::Options& planned, int rounds, unsigned seed) {
  const TempFolder folder;
  auto options = planned;
  options.plan_file = folder / "plan.json";
  const auto expected = of_one_process();
  static_cast<void>(train_by(options));
  const auto good = ap::read_text_file(options.plan_file);
  options = {.plan_file = options.plan_file, .save_plan = false, .log_level = "error"};
  Alteration alteration(seed);
  ap::test::Damage damage(seed + 1);
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto text = alteration.below(5) == 0 ? damage.on(good) : alteration.on(good);
    ap::write_text_file(options.plan_file, text);
    CAPTURE(round, text);
    Gradients found;
    try {
      found = train_by(options);
    } catch (const ap::Error& error) {
      REQUIRE_FALSE(std::string(error.what()).empty());
      continue;
    }
    ++accepted;
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      REQUIRE(found[i].defined());
      REQUIRE(torch::allclose(found[i], expected[i], 0, 1e-12));
    }
  }
  return accepted;
}

const std::vector<ap::Options> kPlanned{
    {.stages = 2, .microbatches = 2, .schedule = ap::ScheduleKind::kOneFOneB},
    {.stages = 1, .microbatches = 2, .replicas = {2}, .schedule = ap::ScheduleKind::kGPipe},
    {.stages = 2, .microbatches = 2, .schedule = ap::ScheduleKind::kInterleaved},
    {.stages = 2, .microbatches = 3, .schedule = ap::ScheduleKind::kSynthesised, .recompute = ap::Recompute::kAlways},
};

TEST_CASE("altered plan file: refused, or trains as one process", "[fuzz]") {
  int accepted = 0;
  for (unsigned i = 0; i < kPlanned.size(); ++i) accepted += train_by_altered(kPlanned[i], 75, 10 * i);
  CHECK(accepted > 10);
  CHECK(accepted < 200);
}

TEST_CASE("altered plan file: thousands are refused or train correctly", "[.nightly]") {
  int accepted = 0;
  for (unsigned i = 0; i < kPlanned.size(); ++i) accepted += train_by_altered(kPlanned[i], 1250, 1000 + 10 * i);
  CHECK(accepted > 200);
}

}  // namespace plan_training_test
