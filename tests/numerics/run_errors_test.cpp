#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// What a program is told whose operators fail while they run: which, of which module, and nothing of libtorch's
// insides.
namespace run_errors_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using Catch::Matchers::Contains;
using torch::Tensor;

struct Net : nets::Tabled {
  Net() : Tabled({16, 8}, 1, {{"body", 16}, {"head", 4}}, torch::relu) {}
  Tensor forward(const Tensor& ids) { return Linears::forward(table(ids).mean(1)); }
};

struct Told {
  std::vector<std::string> errors, lines;
};

/// Runs `body` on each rank; what it throws, and what the ranks log.
template <class Body>
Told told(int ranks, const Body& body) {
  Told out{std::vector<std::string>(static_cast<std::size_t>(ranks)), {}};
  std::mutex mutex;
  try {
    ap::loopback::run(ranks, [&](ap::World& world) {
      world.log().set_writer([&](const std::string& line) {
        const std::lock_guard lock(mutex);
        out.lines.push_back(line);
      });
      try {
        body(world);
      } catch (const std::exception& error) {
        out.errors[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {  // `out` has it
  }
  return out;
}

std::shared_ptr<Net> made_net() { return nets::made<Net>(3); }

struct Case {
  const char* name;
  int ranks;
  ap::Options options;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"one rank", 1, {}},
      {"replicas", 2, {.stages = 1, .zero = 0, .replicas = {2}}},
      {"ZeRO 1", 2, {.stages = 1, .zero = 1, .replicas = {2}}},
      {"ZeRO 2", 2, {.stages = 1, .zero = 2, .replicas = {2}}},
      {"ZeRO 3", 2, {.stages = 1, .zero = 3, .replicas = {2}}},
      {"stages", 2, {.stages = 2, .microbatches = 2, .zero = 0}},
      {"tensor shards", 2, {.stages = 1, .tensor_parallel = 2, .zero = 0}},
      {"recomputed", 2, {.stages = 2, .microbatches = 2, .zero = 0, .recompute = ap::Recompute::kAlways}},
  };
  return all;
}

bool has_frames(const std::string& text) {
  return text.find("frame #") != std::string::npos || text.find("Exception raised from") != std::string::npos;
}

void train(ap::World& world, const ap::Options& options, const Tensor& ids, const Tensor& labels) {
  ap::AutoParallel<Net> model(world, made_net(), options);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  model->attach(optimizer);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    model->train_step(F::cross_entropy, ids, labels).backward();
    optimizer.step();
  }
}

const Tensor& ids() {
  static const auto numbers = (torch::arange(24, torch::kLong) * 5).remainder(16).view({8, 3});
  return numbers;
}

TEST_CASE("wrong target dtype: error names operator, module, no frames") {
  torch::set_num_threads(1);
  const auto labels = torch::arange(8, torch::kInt).remainder(4);  // must be int64
  for (const auto& one : cases()) {
    const auto out = told(one.ranks, [&](ap::World& world) { train(world, one.options, ids(), labels); });
    std::string all;
    for (const auto& error : out.errors) all += error + "\n";
    CAPTURE(one.name, all);
    CHECK_THAT(all, Contains("aten::") && Contains("(near head") && Contains("expected scalar type Long"));
    for (const auto& error : out.errors) {
      CHECK_FALSE(error.empty());
      CHECK_FALSE(has_frames(error));
    }
    for (const auto& line : out.lines) CHECK_FALSE(has_frames(line));
  }
}

TEST_CASE("log_level = debug: log has libtorch's frames") {
  torch::set_num_threads(1);
  const auto labels = torch::arange(8, torch::kInt).remainder(4);
  const auto out = told(1, [&](ap::World& world) { train(world, {.log_level = "debug"}, ids(), labels); });
  CHECK(std::ranges::any_of(out.lines, has_frames));
  CHECK_FALSE(has_frames(out.errors[0]));
}

TEST_CASE("index out of range: rank names operator, others the rank") {
  torch::set_num_threads(1);
  for (const auto& one : cases()) {
    const auto out = told(one.ranks, [&](ap::World& world) {
      auto own = ids().clone();
      if (world.rank() == one.ranks - 1) own[0][0] = 99;
      train(world, one.options, own, torch::arange(8, torch::kLong).remainder(4));
    });
    std::string all;
    for (const auto& error : out.errors) all += error + "\n";
    CAPTURE(one.name, all);
    CHECK_THAT(all, Contains("aten::embedding (near table") && Contains("out of range"));
    CHECK_FALSE(has_frames(all));
  }
}

/// A forward of one batch size, as written for a call with 16 samples.
struct Sixteen : nets::Linears {
  Sixteen() : Linears(64, {{"head", 2}}) {}
  Tensor forward(const Tensor& x) { return Linears::forward(x.view({16, 64})).mean(); }
};

/// What a forward of no batch size is.
struct Mismatched : nets::Linears {
  Mismatched() : Linears(64, {{"head", 2}}) {}
  Tensor forward(const Tensor& x) { return Linears::forward(x.view({x.size(0), -1, 2})).mean(); }
};

template <class Net>
std::string told_of_capture(std::int64_t samples) {
  const auto out = told(1, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, std::make_shared<Net>());
    model(torch::ones({samples, 8, 8}));
  });
  return out.errors[0];
}

TEST_CASE("hard-coded size in forward: told apart from other failures") {
  const auto fixed = told_of_capture<Sixteen>(16);
  CAPTURE(fixed);
  CHECK_THAT(fixed, Contains("aten::view") && Contains("several sizes (7, 12 and 18 samples)") &&
                        Contains("it runs with the 16 samples of this call alone") && Contains("x.size(0)"));
  const auto always = told_of_capture<Mismatched>(16);
  CAPTURE(always);
  CHECK_THAT(always, Contains("several sizes (7, 12 and 18 samples)") && !Contains("of this call alone"));
  // The way out.
  struct AnySize : nets::Linears {
    AnySize() : Linears(64, {{"head", 2}}) {}
    Tensor forward(const Tensor& x) { return Linears::forward(x.view({x.size(0), 64})).mean(); }
  };
  CHECK(told_of_capture<AnySize>(16).empty());
}

}  // namespace run_errors_test
