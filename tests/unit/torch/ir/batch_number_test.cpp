#include <cmath>
#include <functional>
#include <limits>

#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"
#include "capture/trace/polymorphism.hpp"

namespace autopar::test {
namespace {

using Function = std::function<double(std::int64_t)>;
constexpr std::array<std::int64_t, 3> kBatches{7, 12, 18};
constexpr std::int64_t kOthers[] = {1, 2, 3, 5, 11, 49, 64, 1000, 123457};

std::vector<BatchInteger> solve(const Function& function) {
  return trace::solve_number(kBatches, {function(kBatches[0]), function(kBatches[1]), function(kBatches[2])});
}

double real(std::int64_t n) { return static_cast<double>(n); }

/// `tolerance`: relative, 0 for bit-equal.
void require_solved(const Function& function, NumberForm form, double tolerance = 0) {
  const auto number = solve(function);
  REQUIRE_FALSE(number.empty());
  CHECK(number.back().form == form);
  CHECK(number.back().role == IntegerRole::kArithmetic);
  for (const auto batch : kOthers) {
    CAPTURE(batch);
    const double expected = function(batch), got = ir::number_at(number, batch);
    if (tolerance == 0)
      CHECK(got == expected);
    else
      CHECK(std::abs(got - expected) <= tolerance * std::abs(expected));
    CHECK(trace::agrees(number, batch, expected));
    if (std::isfinite(expected) && expected != 0) CHECK_FALSE(trace::agrees(number, batch, expected * (1 + 1e-6)));
  }
}

}  // namespace

TEST_CASE("batch number: quotients of integers are solved bitwise", "[polymorphism]") {
  const auto form = NumberForm::kQuotient;
  require_solved([](auto n) { return 1.0 / real(n); }, form);
  require_solved([](auto n) { return -1.0 / real(n); }, form);
  require_solved([](auto n) { return 0.5 / real(n); }, form);
  require_solved([](auto n) { return 1.0 / real(n) * 0.25; }, form);
  require_solved([](auto n) { return 2.0 / real(3 * n); }, form);
  require_solved([](auto n) { return 1.0 / real(n * 784); }, form);
  require_solved([](auto n) { return 1.0 / real(2 * n + 1); }, form);
  require_solved([](auto n) { return 10.0 / real(n + 3); }, form);
}

TEST_CASE("batch number: any factor is solved to the last places", "[polymorphism]") {
  constexpr double kLastPlaces = 4 * std::numeric_limits<double>::epsilon();
  require_solved([](auto n) { return 0.1 / real(n); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 252.0 / real(n); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 0.3 / real(n + 2); }, NumberForm::kQuotient, kLastPlaces);
  require_solved([](auto n) { return 0.3 * (1.0 / real(n)); }, NumberForm::kQuotient, kLastPlaces);
  require_solved([](auto n) { return 1.0 / real(n) / 3.0; }, NumberForm::kQuotient, kLastPlaces);
  require_solved([](auto n) { return std::sqrt(2.0) / real(n); }, NumberForm::kQuotient, kLastPlaces);
  require_solved([](auto n) { return 0.5 * real(n); }, NumberForm::kMultiple);
  require_solved([](auto n) { return 0.1 * real(n); }, NumberForm::kMultiple);
  require_solved([](auto n) { return real(n) + 0.5; }, NumberForm::kMultiple);
  require_solved([](auto n) { return real(n) / 7.0; }, NumberForm::kMultiple, kLastPlaces);
}

TEST_CASE("batch number: integers stay integers", "[polymorphism]") {
  require_solved([](auto n) { return real(n); }, NumberForm::kInteger);
  require_solved([](auto n) { return real(5 * n - 2); }, NumberForm::kInteger);
}

TEST_CASE("batch number: fp32 quotients are solved bitwise", "[polymorphism]") {
  const auto form = NumberForm::kSingleQuotient;
  require_solved([](auto n) { return 1.0f / static_cast<float>(n); }, form);
  require_solved([](auto n) { return 0.5f / static_cast<float>(3 * n); }, form);
  require_solved([](auto n) { return 10.0f / static_cast<float>(n + 1); }, form);
}

TEST_CASE("batch number: pairs of samples are solved", "[polymorphism]") {
  constexpr double kLastPlaces = 4 * std::numeric_limits<double>::epsilon();
  require_solved([](auto n) { return real(n * n); }, NumberForm::kInteger);
  require_solved([](auto n) { return real(n * (n - 1)); }, NumberForm::kInteger);
  require_solved([](auto n) { return real(n * (n - 1) / 2); }, NumberForm::kInteger);
  require_solved([](auto n) { return real(9 * n * n + n); }, NumberForm::kInteger);
  require_solved([](auto n) { return real(3 * n * (2 * n - 1)); }, NumberForm::kInteger);
  require_solved([](auto n) { return 1.0 / real(n * n); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 1.0 / real(n * (n - 1)); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 2.0 / real(n * (n + 1)); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 1.0 / real(2 * n * (2 * n - 1)); }, NumberForm::kQuotient);
  require_solved([](auto n) { return -0.5 / real(n * n); }, NumberForm::kQuotient);
  require_solved([](auto n) { return 0.1 / real(n * (n + 2)); }, NumberForm::kQuotient, kLastPlaces);
  require_solved([](auto n) { return 0.1 * real(n * n); }, NumberForm::kMultiple, kLastPlaces);
  require_solved([](auto n) { return 1.0f / static_cast<float>(n * n); }, NumberForm::kSingleQuotient);
  CHECK(ir::integer_at(trace::solve_integer({7, 12, 18}, {21, 66, 153}), 100) == 4950);
  CHECK(trace::solve_integer({7, 12, 18}, {1, 2, 3}).empty());
  CHECK(trace::solve_integer({7, 12, 18}, {3, 6, 9}).empty());
  CHECK(trace::solve_integer({7, 12, 18}, {50, 145, 325}).empty());  // n² + 1: no product
}

TEST_CASE("batch number: other functions are not solved", "[polymorphism]") {
  const auto refused = [](const Function& function) { return solve(function).empty(); };
  CHECK(refused([](auto n) { return std::sqrt(real(n)); }));
  CHECK(refused([](auto n) { return 1.0 / std::sqrt(real(n)); }));
  CHECK(refused([](auto n) { return std::log(real(n)); }));
  CHECK(refused([](auto n) { return real(n) / real(n - 1); }));
  CHECK(refused([](auto n) { return real(n * n * n); }));
  CHECK(refused([](auto n) { return 1.0 / real(n * n * n); }));
  CHECK(refused([](auto n) { return real(n) * std::sqrt(real(n)); }));
  CHECK(refused([](auto n) { return real(n / 2); }));
  CHECK(refused([](auto n) { return n == 7 ? 0.1 : n == 12 ? 0.2 : 0.3; }));
  CHECK(refused([](auto n) { return n == 7 ? 1.0 : n == 12 ? 2.0 : 4.0; }));
  CHECK(refused([](auto n) { return std::pow(0.9, real(n)); }));
  CHECK(refused([](auto n) { return 1.0 / (real(n) + 1e-8); }));
  CHECK(refused([](auto n) { return 1.0 / real(n) + 1e-13; }));
  CHECK(refused([](auto n) { return 1.0 / real(n / 2); }));
  CHECK(refused([](auto n) { return n > 10 ? 1.0 : 0.0; }));
  CHECK(refused([](auto n) { return n > 10 ? 1.0 / real(n) : std::numeric_limits<double>::infinity(); }));
  CHECK(refused([](auto n) { return n > 10 ? 1.0 / real(n) : std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(refused([](auto n) { return static_cast<float>(std::sqrt(real(n))); }));
}

TEST_CASE("batch number: replay equals the forward", "[polymorphism]") {
  struct Numbers : TestModel {
    Tensors run(const Tensors& in) override {
      const auto x = in[0];
      const auto n = static_cast<double>(x.size(0)), rows = static_cast<double>(x.size(0) * x.size(1));
      const auto table = torch::tensor({1.0 / n, 2.0}, torch::kDouble);
      return {x.sum() * (1.0 / n),
              (x * (0.5 / rows)).sum() + 1.0 / n,
              x.sum() / (0.5 * n),
              x.pow(1.0 / n).sum(),
              x.sum() * (1.0f / static_cast<float>(x.size(0))),
              table[0] * x.sum(),
              torch::add(x, x, 1.0 / rows).sum(),
              x.sum() / (x.size(0) * (x.size(0) + 1)),
              x.sum() * (1.0 / (n * n)),
              x.sum() - x.size(0) * (x.size(0) - 1) / 2,
              x.sum() * (2.0 / (n * (n + 1)))};
    }
    Tensors arguments(std::int64_t n) override { return {torch::rand({n, 3}, torch::kDouble)}; }
  } model;
  const auto forward = [&](const Tensors& in) { return model.run(in); };
  std::vector<trace::InputSpec> inputs;
  for (const auto& tensor : model.arguments(4)) inputs.push_back(trace::input_spec(tensor));
  const auto graph = trace::capture(model, inputs, forward);
  REQUIRE_NOTHROW(trace::verify_capture(graph, model, inputs, forward, kOthers));
  for (const std::int64_t batch : {1, 2, 5, 49}) {
    const auto in = model.arguments(batch);
    replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
    auto environment = replayer.environment();
    environment[graph.inputs[0].index()] = in[0];
    replayer.run(environment, {batch, batch});
    const auto expected = model.run(in);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(batch, i);
      CHECK(torch::equal(environment[graph.outputs[i].index()], expected[i]));
    }
  }
}

TEST_CASE("batch number: a coincidence is found at another batch size", "[polymorphism]") {
  auto model = model_of([](at::Tensor y, at::Tensor x) {
    const auto n = static_cast<double>(x.size(0));
    return y.sum() * (n < 20 ? 1.0 / n : 1.0 / (n + 1));
  });
  const auto forward = [&](const Tensors& in) { return model->run(in); };
  const auto inputs = specs(model->arguments(4));
  const auto graph = trace::capture(*model, inputs, forward);
  const std::vector<std::int64_t> good{1, 5, 19}, bad{20};
  REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, good));
  REQUIRE_THROWS_WITH(trace::verify_capture(graph, *model, inputs, forward, bad),
                      Catch::Matchers::Contains("batch 20"));
}

}  // namespace autopar::test
