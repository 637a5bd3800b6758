#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

// The timeline of trace_file: what is in it, when it is written, and what bounds it.
namespace trace_test {

namespace ap = autopar;
namespace fs = std::filesystem;
namespace nn = torch::nn;
using torch::Tensor;
using trace_rows::Row;

struct Block : nn::Module {
  Block() : a(register_module("a", nn::Linear(6, 6))), b(register_module("b", nn::Linear(6, 6))) {}
  Tensor forward(const Tensor& x) { return b(torch::relu(a(x))); }
  nn::Linear a, b;
};

struct Net : nn::Module {
  Net() {
    for (int i = 0; i < 4; ++i) layers->push_back(Block());
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return x.pow(2).mean();
  }
  nn::ModuleList layers;
};

using Model = ap::AutoParallel<Net>;

struct Training {
  int ranks = 2;
  int steps = 3;
  bool own_optimizer = true;
  std::function<void(ap::World&, int)> after_step = [](ap::World&, int) {};
};

template <class Optimizer>
void train_steps(ap::World& world, Model& model, Optimizer& optimizer, const Training& training) {
  model->attach(optimizer);
  for (int step = 0; step < training.steps; ++step) {
    optimizer.zero_grad();
    model(torch::ones({4, 6})).backward();
    optimizer.step();
    training.after_step(world, step + 1);
  }
}

void train(const ap::Options& options, const Training& training = {}) {
  ap::loopback::run(training.ranks, [&](ap::World& world) {
    Model model(
        world, [] { return Net(); }, options);
    if (training.own_optimizer) {
      ap::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
      train_steps(world, model, optimizer, training);
    } else {
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
      train_steps(world, model, optimizer, training);
    }
  });
}

template <class Judge>
std::size_t count_if(const std::vector<Row>& rows, Judge judge) {
  return static_cast<std::size_t>(std::ranges::count_if(rows, judge));
}
std::size_t named(const std::vector<Row>& rows, const std::string& begin) {
  return count_if(rows, [&](const Row& row) { return row.name.starts_with(begin); });
}
std::size_t of_category(const std::vector<Row>& rows, const std::string& category) {
  return count_if(rows, [&](const Row& row) { return row.category == category; });
}
bool is_around(const Row& outer, const Row& inner) {
  constexpr double kDigits = 1e-3;  // a nanosecond: ends are sums of what the file says
  return outer.rank == inner.rank && outer.thread == inner.thread && outer.begin <= inner.begin &&
         inner.end <= outer.end + kDigits;
}

TEST_CASE("trace_file: one file has each action of each rank's latest step once", "[trace]") {
  const TempFolder folder;
  train({.stages = 2, .microbatches = 3, .schedule = ap::ScheduleKind::kOneFOneB, .trace_file = folder / "trace.json"});
  const auto trace = ap::read_text_file(folder / "trace.json");
  CAPTURE(trace);
  for (int rank = 0; rank < 2; ++rank) {
    const auto rows = trace_rows::latest_bars_of(trace, rank);
    const auto stage = std::to_string(rank);
    CHECK(named(rows, "forward of stage " + stage) == 3);
    CHECK(named(rows, "backward of stage " + stage) == 3);
    CHECK(of_category(rows, "forward") == 3);
    CHECK(of_category(rows, "backward") == 3);
    CHECK(named(rows, "send of values") == 3 + (rank == 0 ? 3u : 0u));
    CHECK(of_category(rows, "send") == named(rows, "send of "));
    CHECK(of_category(rows, "receive") == named(rows, "receive of "));
    CHECK(of_category(rows, "call") == 1);
    CHECK(trace.find("\"name\":\"rank " + stage + " (") != std::string::npos);
    for (const auto& row : rows) CHECK(row.end >= row.begin);
  }
  CHECK(trace_rows::latest_bars_of(trace, 0).front().step == 3);
  CHECK_FALSE(fs::exists(folder / "trace.json.parts"));
  train({.trace_file = folder / "alone.json"}, {.ranks = 1});
  const auto alone = trace_rows::latest_bars_of(ap::read_text_file(folder / "alone.json"), 0);
  CHECK(named(alone, "forward of stage 0") == 1);
}

TEST_CASE("trace_file: operators lie in their actions, with their modules", "[trace]") {
  const TempFolder folder;
  for (const auto recompute : {ap::Recompute::kNever, ap::Recompute::kAlways}) {
    CAPTURE(static_cast<int>(recompute));
    train({.stages = 2, .microbatches = 2, .recompute = recompute, .trace_file = folder / "trace.json"});
    const auto trace = ap::read_text_file(folder / "trace.json");
    const std::size_t runs = recompute == ap::Recompute::kAlways ? 2 : 1;
    std::set<std::string> modules;
    std::size_t relus = 0, backward_relus = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const auto rows = trace_rows::latest_bars_of(trace, rank);
      for (const auto& row : rows) {
        if (row.category != "operator") continue;
        const bool is_backward = row.name == row.op + " backward";
        CHECK((is_backward || row.name == row.op));
        CHECK(count_if(rows, [&](const Row& outer) {
                return (outer.category == "backward" || (outer.category == "forward" && !is_backward)) &&
                       is_around(outer, row);
              }) == 1);
        modules.insert(row.module);
        if (row.op != "aten::relu") continue;
        CHECK(row.module.starts_with("layers."));
        CHECK(row.module.size() == std::string("layers.0").size());
        (is_backward ? backward_relus : relus) += 1;
      }
    }
    CHECK(relus >= 4 * 2);
    CHECK(relus <= 4 * 2 * runs);
    CHECK(backward_relus == 4 * 2);
    for (const std::string module : {"layers.0.a", "layers.0.b", "layers.0", "layers.3.b"})
      CHECK(modules.contains(module));
  }
}

TEST_CASE("trace_file: optimizers and the time between calls", "[trace]") {
  const TempFolder folder;
  for (const bool own : {true, false}) {
    CAPTURE(own);
    train({.trace_file = folder / "trace.json"}, {.own_optimizer = own});
    const auto rows = trace_rows::bars_of(ap::read_text_file(folder / "trace.json"));
    for (int rank = 0; rank < 2; ++rank) {
      for (int step = 1; step <= 3; ++step) {
        const auto in_step = [&](const std::string& category) {
          return count_if(
              rows, [&](const Row& row) { return row.rank == rank && row.step == step && row.category == category; });
        };
        CHECK(in_step("optimizer") == 1);
        CHECK(in_step("between calls") == (step < 3 ? 1u : 0u));  // the last one has no end
      }
    }
    CHECK(named(rows, own ? "AdamW.step" : "optimizer") == 6);
    for (const auto& step : rows) {
      if (step.category != "optimizer" || step.step == 3) continue;
      CHECK(count_if(rows, [&](const Row& row) {
              return row.category == "between calls" && row.rank == step.rank && row.begin <= step.begin &&
                     step.end <= row.end;
            }) == 1);
    }
  }
}

TEST_CASE("trace_every: the file is written during the training", "[trace]") {
  const TempFolder folder;
  const fs::path file = folder / "trace.json";
  std::vector<std::int64_t> latest;
  const auto look = [&](ap::World& world, int) {
    world.barrier("the trace is written");
    if (world.rank() == 0)
      latest.push_back(
          fs::exists(file) ? trace_rows::latest_bars_of(ap::read_text_file(file), world.size() - 1).front().step : 0);
    world.barrier("the trace was read");
  };
  train({.trace_file = file, .trace_every = 2}, {.steps = 5, .after_step = look});
  CHECK(latest == std::vector<std::int64_t>{0, 2, 2, 4, 4});
  CHECK(trace_rows::latest_bars_of(ap::read_text_file(file), 1).front().step == 5);
  fs::remove(file);
  latest.clear();
  train({.trace_file = file}, {.steps = 2, .after_step = look});
  CHECK(latest == std::vector<std::int64_t>{0, 0});
  CHECK(fs::exists(file));
  fs::remove(file);
  latest.clear();
  train({.trace_file = file, .trace_every = 1}, {.ranks = 1, .steps = 2, .after_step = look});
  CHECK(latest == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("trace_file: a rank keeps its part on disk before the end", "[trace]") {
  const TempFolder folder;
  const auto file = (folder / "trace.json").string();
  std::mutex mutex;
  const auto look = [&](ap::World& world, int step) {
    const std::lock_guard lock(mutex);
    const auto part = file + ".parts/rank-" + std::to_string(world.rank()) + ".json";
    if (step == 15) CHECK_FALSE(fs::exists(part));
    if (step == 16) CHECK(fs::exists(part));
  };
  train({.trace_file = file}, {.steps = 17, .after_step = look});
  CHECK(fs::exists(file));
  CHECK_FALSE(fs::exists(file + ".parts"));
}

TEST_CASE("trace_file: the newest steps are kept, and the file says what is not", "[trace]") {
  const TempFolder folder;
  train({.trace_file = folder / "trace.json"}, {.steps = 20});
  const auto trace = ap::read_text_file(folder / "trace.json");
  CHECK(trace.find("\"labels\":\"4 earlier steps were dropped\"") != std::string::npos);
  std::set<std::int64_t> steps;
  for (const auto& row : trace_rows::bars_of(trace)) steps.insert(row.step);
  CHECK(*steps.begin() == 5);
  CHECK(*steps.rbegin() == 20);
}

TEST_CASE("trace_file: backwards of losses outside the model are in it", "[trace]") {
  struct Rows : nn::Module {
    Rows() : a(register_module("a", nn::Linear(3, 3))) {}
    Tensor forward(const Tensor& x) { return a(x); }
    nn::Linear a;
  };
  const TempFolder folder;
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Rows> model(world, [] { return Rows(); }, {.trace_file = folder / "trace.json"});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    model->attach(optimizer);
    for (int step = 0; step < 2; ++step) {
      model(torch::ones({2, 3})).pow(2).sum().backward();
      optimizer.step();
      model->zero_grad();
    }
    const torch::NoGradGuard no_grad;
    model(torch::ones({2, 3}));
  });
  const auto rows = trace_rows::bars_of(ap::read_text_file(folder / "trace.json"));
  CHECK(of_category(rows, "forward") == 6);
  CHECK(of_category(rows, "backward") == 4);
  CHECK(of_category(rows, "optimizer") == 4);
  CHECK(count_if(rows, [](const Row& row) { return row.category == "call" && row.name == "call"; }) == 6);
  CHECK(count_if(rows, [](const Row& row) { return row.category == "call" && row.name == "backward"; }) == 4);
}

TEST_CASE("trace_file: parts of a killed run are kept, garbage is a warning", "[trace]") {
  const TempFolder folder;
  const fs::path file = folder / "trace.json", parts = file.string() + ".parts";
  const auto keep_parts = [&](ap::World& world, int step) {
    world.barrier("the trace is written");
    if (step == 2 && world.rank() == 0) fs::copy(parts, folder / "kept", fs::copy_options::recursive);
    world.barrier("the parts are copied");
  };
  train({.trace_file = file, .trace_every = 1}, {.after_step = keep_parts});
  REQUIRE_FALSE(fs::exists(parts));
  fs::rename(folder / "kept", parts);  // as if both ranks were killed at step 3
  ap::write_text_file(parts / "rank-7.json", "garbage");
  std::vector<std::string> lines;
  std::mutex mutex;
  ap::loopback::run(2, [&](ap::World& world) {
    world.log().set_writer([&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    });
    Model model(world, [] { return Net(); }, {.trace_file = file});
    model(torch::ones({4, 6})).backward();
  });
  const auto killed = ap::read_text_file(folder / "trace.killed.json");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(trace_rows::latest_bars_of(killed, rank).front().step == 2);
    CHECK(trace_rows::latest_bars_of(ap::read_text_file(file), rank).front().step == 1);
  }
  CHECK(std::ranges::count_if(lines, [](const std::string& line) {
          return line.find("a part of the trace is left out: ") != std::string::npos &&
                 line.find("rank-7.json") != std::string::npos;
        }) == 1);
  CHECK_FALSE(fs::exists(parts));
}

TEST_CASE("without trace_file: nothing is written", "[trace]") {
  const TempFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder / "");
  train({.trace_every = 1});
  fs::current_path(before);
  CHECK(fs::is_empty(folder / ""));
}

}  // namespace trace_test
