#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <rank_memory.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

#include <algorithm>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Compute actions under ZeRO 2 and 3: what they gather and sum, in which order, what is whole meanwhile, and what views
// of parameters see.
namespace compute_actions_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;

constexpr int kRanks = 2, kLayers = 12;
constexpr double kMargin = 0.1;  ///< Options::memory_margin: what plans leave free for what they do not count
constexpr int64_t kWidth = 256;

/// Layers of one size, each a unit of its own, as linear layers or as products with matrices that autograd keeps.
struct Row : nn::Module {
  explicit Row(bool is_linear) : linear(is_linear) {
    for (int i = 0; i < kLayers; ++i) {
      if (linear)
        layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(kWidth, kWidth)));
      else
        matrices.push_back(register_parameter("matrix" + std::to_string(i), torch::randn({kWidth, kWidth}) / 16));
    }
  }
  Tensor forward(const Tensor& x) {
    auto h = x;
    for (int i = 0; i < kLayers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      h = torch::tanh(linear ? layers[at](h) : torch::matmul(h, matrices[at]));
    }
    return h.to(torch::kFloat).pow(2).mean();
  }
  bool linear;
  std::vector<nn::Linear> layers;
  std::vector<Tensor> matrices;
};

/// What a rank issued, in the order in which it started, of one kind for one micro-batch: 'g' a gathering, 's' a sum,
/// and the group.
std::vector<std::pair<char, int>> issued_in_backward(const std::string& trace, int microbatch) {
  static const std::regex event(
      "\"name\":\"(gathering|reduction into shards) of bucket 0 over group ([0-9]+)(, backward)?, "
      "micro-batch ([0-9]+)\"[^}]*\"ts\":([0-9.e+]+)");
  std::vector<std::pair<double, std::pair<char, int>>> found;
  for (std::sregex_iterator at(trace.begin(), trace.end(), event), end; at != end; ++at) {
    const auto& match = *at;
    const bool gathers = match[1].str() == "gathering";
    if (std::stoi(match[4].str()) != microbatch || (gathers && !match[3].matched)) continue;
    found.push_back({std::stod(match[5].str()), {gathers ? 'g' : 's', std::stoi(match[2].str())}});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<char, int>> out;
  for (const auto& [time, what] : found) out.push_back(what);
  return out;
}

/// Steps; the trace of each rank's last one, how much less was predicted than a rank held, and what the steps made.
struct Run {
  std::vector<std::string> traces{kRanks};
  std::vector<double> errors = std::vector<double>(kRanks);
  numerics::Snapshot state;
};
template <class Make>
Run trained(ap::Options options, const Make& make, const Tensor& x) {
  using Net = std::invoke_result_t<Make>;
  Run out;
  const TempFolder folder;
  options.trace_file = folder / "trace.json";
  options.trace_every = 1;
  torch::set_num_threads(1);
  CHECK_NOTHROW(ap::loopback::run(kRanks, [&](ap::World& world) {
    auto& ledger = RankMemory::install().open();
    const auto r = static_cast<std::size_t>(world.rank());
    const RankMemory::Scope scope(ledger);
    ap::AutoParallel<Net> model(
        world, [&] { return nets::seeded(3, make); }, options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    model->attach(optimizer);
    model->prepare(x);
    ledger.forget_peak();
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(x).backward();
      optimizer.step();
    }
    const auto predicted = static_cast<double>(model->plan().stages.front().peak_memory.value());
    out.errors[r] = predicted / static_cast<double>(ledger.peak()) - 1;
    world.barrier("the trace is written");
    out.traces[r] = trace_rows::latest_step_of(ap::read_text_file(folder / "trace.json"), world.rank());
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
  }));
  return out;
}

struct Way {
  int zero = 3;
  bool linear = true;
  ap::Precision precision = ap::Precision::kModule;
  ap::RecomputeOption recompute = ap::Recompute::kNever;
  ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB;

  [[nodiscard]] ap::Options options() const {
    return {.stages = 1,
            .microbatches = 2,
            .zero = zero,
            .replicas = {kRanks},
            .schedule = schedule,
            .recompute = recompute,
            .precision = precision};
  }
};
Run trained(const Way& way) {
  return trained(
      way.options(), [&] { return Row(way.linear); }, torch::randn({2, kWidth}));
}

std::string describe(const Way& way) {
  return "zero " + std::to_string(way.zero) + (way.linear ? ", linear, " : ", matrices, ") +
         ap::option_text(way.precision) + ", recompute " + way.recompute.text() + ", " + ap::name_of(way.schedule);
}

/// How many units are gathered and not yet summed, at most. Throws if one is summed before it is gathered, or out of
/// order.
int most_whole(const std::vector<std::pair<char, int>>& issued) {
  std::set<int> whole;
  std::size_t most = 0;
  int summed = 0;
  for (const auto& [what, group] : issued) {
    if (what == 'g') {
      whole.insert(group);
      most = std::max(most, whole.size());
    } else if (group != summed++ || whole.erase(group) == 0) {
      throw numerics::Failure("unit " + std::to_string(group) + " is summed too early or too late");
    }
  }
  return static_cast<int>(most);
}

TEST_CASE("ZeRO 3: buckets reduce when full, few layers are unsharded") {
  for (const Way& way :
       {Way{}, Way{3, false}, Way{3, true, ap::Precision::kBf16}, Way{3, false, ap::Precision::kBf16}}) {
    INFO(describe(way));
    const auto run = trained(way);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const auto issued = issued_in_backward(run.traces[0], microbatch);
      REQUIRE(issued.size() == 2 * kLayers);
      CHECK(most_whole(issued) == 2);
      CHECK(issued_in_backward(run.traces[1], microbatch) == issued);
    }
    for (const double error : run.errors) CHECK(error > -kMargin);
  }
}

// What is recomputed needs all its parameters before its backward begins.
TEST_CASE("ZeRO 3 recompute: bucket reduces before next segment gathers") {
  for (const Way& way : {Way{3, true, ap::Precision::kModule, ap::Recompute::kAlways},
                         Way{3, false, ap::Precision::kBf16, ap::Recompute::kAlways}}) {
    INFO(describe(way));
    const auto run = trained(way);
    const auto issued = issued_in_backward(run.traces[0], 1);
    REQUIRE(issued.size() == 2 * kLayers);
    CHECK(issued_in_backward(run.traces[1], 1) == issued);
    const int most = most_whole(issued);
    INFO("parameters of " << most << " layers are whole");
    CHECK(most < kLayers);
  }
}

TEST_CASE("ZeRO 2: gradient buckets are reduced one at a time") {
  for (const Way& way :
       {Way{2}, Way{2, false}, Way{2, true, ap::Precision::kBf16}, Way{2, false, ap::Precision::kBf16}}) {
    INFO(describe(way));
    const auto run = trained(way);
    const auto issued = issued_in_backward(run.traces[0], 1);
    REQUIRE(issued.size() >= static_cast<std::size_t>(kLayers));
    for (std::size_t unit = 0; unit < issued.size(); ++unit)
      CHECK(issued[unit] == std::pair('s', static_cast<int>(unit)));
    for (const double error : run.errors) CHECK(error > -kMargin);
  }
}

TEST_CASE("ZeRO 3, split backward: reduces after gathers, in one order") {
  const auto run = trained({3, true, ap::Precision::kModule, ap::Recompute::kNever, ap::ScheduleKind::kZbH1});
  const auto issued = issued_in_backward(run.traces[0], 0);
  REQUIRE(issued.size() == 3 * kLayers);
  for (std::size_t i = 0; i < issued.size(); ++i) CHECK(issued[i].first == (i < 2 * kLayers ? 'g' : 's'));
  CHECK(issued_in_backward(run.traces[1], 0) == issued);
}

// ---------------------------------------------------------------- segments that read more than stays for their
// backward

constexpr int64_t kWide = 2880;  ///< a layer of nearly 32 MiB

/// In a module of their own, so that they are recomputed together. The only bias is in one unit with what comes behind
/// them.
struct Block : nets::Linears {
  explicit Block(int count) : Linears(kWide, last_biased(count)) {}
  static std::vector<nets::Layer> last_biased(int count) {
    auto chain = nets::repeated("layer", count, kWide);
    for (auto& layer : chain) layer.has_bias = &layer == &chain.back();
    return chain;
  }
  Tensor forward(const Tensor& x) { return torch::tanh(Linears::forward(x)); }
};
struct Wide : nn::Module {
  explicit Wide(int count) : block(std::make_shared<Block>(count)) {
    nets::register_all(*this, "block", block, "last", last);
  }
  Tensor forward(const Tensor& x) { return last(block->forward(x)).pow(2).mean(); }

  std::shared_ptr<Block> block;
  nn::Linear last{nn::LinearOptions(kWide, 8).bias(false)};
};

Run trained_wide(int in_block, const Way& way) {
  auto options = way.options();
  options.microbatches = way.precision == ap::Precision::kModule ? 1 : 2;
  return trained(
      options, [&] { return Wide(in_block); }, torch::linspace(-1, 1, 2 * kWide).view({2, kWide}));
}

void check_wide_segment(ap::Precision precision) {
  const int bytes = precision == ap::Precision::kBf16 ? 2 : 4;
  const int kept = static_cast<int>(ap::kKeptForBackward.value() / (kWide * kWide * bytes)), in_block = kept + 3;
  const auto again = trained_wide(
                 in_block, {.precision = precision, .recompute = ap::RecomputeOption::of_modules({"block", "last"})}),
             once = trained_wide(in_block, {.precision = precision});
  const auto issued = issued_in_backward(again.traces[0], 0);
  CHECK(issued_in_backward(again.traces[1], 0) == issued);
  CHECK_NOTHROW(most_whole(issued));
  std::vector<int> gathered, wanted{0};  // groups count from the last reader
  for (const auto& [what, group] : issued) {
    if (what == 'g') gathered.push_back(group);
  }
  for (int group = in_block; group > 0; --group) wanted.push_back(group);
  for (int group = kept + 1; group <= in_block; ++group) wanted.push_back(group);
  CHECK(gathered == wanted);
  for (const double error : again.errors) CHECK(error > -kMargin);
  REQUIRE(again.state.size() == once.state.size());
  for (const auto& [name, tensor] : once.state)
    CHECK_NOTHROW(check_close(numerics::find(again.state, name), tensor, 0, name));
}

TEST_CASE("wide segment: reshards what it needs last and gathers again") { check_wide_segment(ap::Precision::kModule); }

TEST_CASE("wide segment in bf16: reshards and gathers again", "[.nightly]") {
  check_wide_segment(ap::Precision::kBf16);
}

TEST_CASE("wide segment, split backward: memory is as planned", "[.nightly]") {
  const auto run =
      trained_wide(12, {.recompute = ap::RecomputeOption::of_modules({"block"}), .schedule = ap::ScheduleKind::kZbH1});
  for (const double error : run.errors) CHECK(error > -kMargin);
}

// ---------------------------------------------------------------- views of parameters

/// Reads parameters through views that are made elsewhere than they are read.
struct Views : nn::Module {
  Views() {
    a = register_parameter("a", torch::randn({4, 4}));
    b = register_parameter("b", torch::randn({4, 4}));
    c = register_parameter("c", torch::randn({16}));
    d = register_parameter("d", torch::randn({4, 4}));
    e = register_parameter("e", torch::randn({4, 4}));
  }
  Tensor forward(const Tensor& x) {
    const auto square = c.view({4, 4}), turned = d.t(), stopped = b.detach(), part = e.narrow(0, 0, 2);
    auto h = torch::tanh(torch::matmul(x, a));
    h = torch::tanh(torch::matmul(h, stopped) + torch::matmul(h, b));
    h = torch::tanh(torch::matmul(torch::tanh(torch::matmul(h, square)), turned));
    h = torch::tanh(torch::matmul(h, square.detach()) + torch::matmul(h.narrow(1, 0, 2), part));
    return (h * a.detach().mean()).pow(2).mean() + part.sum() * 0.01;
  }
  Tensor a, b, c, d, e;
};

std::shared_ptr<Views> made_views() { return nets::made<Views>(7); }
Tensor views_input(int step, int64_t begin, int64_t end) {
  return torch::sin(torch::arange(begin * 4, end * 4, torch::kDouble) * (1.3 + step)).view({end - begin, 4});
}

TEST_CASE("parameter views: see current values after free and regather") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  constexpr int64_t kSamples = 4;
  for (const int zero : {1, 2, 3}) {
    for (const ap::Recompute recompute : {ap::Recompute::kNever, ap::Recompute::kAlways}) {
      for (const ap::ScheduleKind schedule :
           {ap::ScheduleKind::kOneFOneB, ap::ScheduleKind::kGPipe, ap::ScheduleKind::kZbH1}) {
        for (const int stages : {1, 2}) {
          INFO("zero " << zero << ", recompute " << ap::option_text(recompute) << ", " << ap::option_text(schedule)
                       << ", " << stages << " stages");
          const int ranks = 2 * stages;
          const auto net = made_views();
          torch::optim::SGD expected(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
          for (int step = 0; step < 3; ++step) {
            expected.zero_grad();
            net->forward(views_input(step, 0, ranks * kSamples)).backward();
            expected.step();
          }
          const auto want = numerics::copies_of(net->named_parameters());
          CHECK_NOTHROW(ap::loopback::run(ranks, [&](ap::World& world) {
            ap::AutoParallel<Views> model(world, made_views(),
                                          {.stages = stages,
                                           .microbatches = 2,
                                           .zero = zero,
                                           .replicas = std::vector<int>(static_cast<std::size_t>(stages), 2),
                                           .schedule = schedule,
                                           .recompute = recompute});
            torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
            model->attach(optimizer);
            const auto begin = world.rank() * kSamples;
            for (int step = 0; step < 3; ++step) {
              optimizer.zero_grad();
              model(views_input(step, begin, begin + kSamples)).backward();
              optimizer.step();
            }
            for (const auto& item : model->named_parameters()) {
              check_close(model->gather(item.value()), numerics::find(want, item.key()), 1e-12, item.key());
            }
          }));
        }
      }
    }
  }
}

}  // namespace compute_actions_test
