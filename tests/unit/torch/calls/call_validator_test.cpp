#include "torch/calls/call_validator.hpp"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank.hpp>
#include <says.hpp>

namespace call_validator_test {

using namespace autopar;
using calls::CallHeader;
using calls::CallKind;

/// Rank 0 of two: what rank 1 says is what this rank says, altered.
class WithAnother final : public test::OneRank {
 public:
  [[nodiscard]] int size() const override { return 2; }
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view) override {
    std::vector<Blob> all(2, Blob(mine.begin(), mine.end()));
    if (mine.size() != sizeof(CallHeader) || !alter) return all;
    CallHeader header;
    std::memcpy(&header, mine.data(), sizeof(header));
    said.push_back(header);
    alter(header);
    std::memcpy(all[1].data(), &header, sizeof(header));
    return all;
  }

  std::function<void(CallHeader&)> alter = [](CallHeader&) {};
  std::vector<CallHeader> said;  ///< by this rank
};

/// Gradients that a test states.
struct StatedGradients final : calls::PendingGradients {
  [[nodiscard]] bool accumulating() const override { return inside; }
  [[nodiscard]] bool has_accumulated() const override { return waiting; }
  [[nodiscard]] double loss_scale() const override { return scale; }
  bool inside = false, waiting = false;
  double scale = 1;
};

struct Fixture {
  calls::CallArguments arguments(const std::vector<at::Tensor>& tensors) {
    calls::CallArguments arguments;
    CHECK(validator.inspect({tensors, std::string(tensors.size(), 'T')}, arguments) == nullptr);
    return arguments;
  }

  WithAnother ranks;
  torch::nn::Linear net{3, 2};
  Options options;
  calls::Progress progress;
  calls::LateFailure late_failure;
  parameters::ParameterStore parameters{*net, Rank(0)};
  calls::StepWatches watches{parameters, true};
  StatedGradients gradients;
  calls::CallValidator validator{ranks, *net, 1, options, parameters, watches, gradients, progress, late_failure};
};

TEST_CASE("CallValidator: the key tells apart what is captured apart") {
  Fixture fixture;
  const auto batch = torch::ones({4, 3});
  const auto key = fixture.validator.key_of(fixture.arguments({batch}));
  CHECK(fixture.validator.key_of(fixture.arguments({torch::ones({8, 3})})) == key);  // another batch
  CHECK(fixture.validator.key_of(fixture.arguments({torch::ones({4, 5})})) != key);
  CHECK(fixture.validator.key_of(fixture.arguments({batch, batch})) != key);
  fixture.net->eval();
  CHECK(fixture.validator.key_of(fixture.arguments({batch})) != key);
  fixture.net->train();
  fixture.net->bias.requires_grad_(false);
  CHECK(fixture.validator.key_of(fixture.arguments({batch})) != key);
  fixture.net->bias.requires_grad_(true);
  const torch::NoGradGuard no_grad;
  CHECK(fixture.validator.key_of(fixture.arguments({batch})) != key);
}

TEST_CASE("CallValidator: bad arguments are reported, not thrown") {
  Fixture fixture;
  calls::CallArguments arguments;
  const auto error = fixture.validator.inspect({{torch::ones({4, 3}), torch::ones({5, 3})}, "TT"}, arguments);
  REQUIRE(error != nullptr);
  CHECK_THROWS_AS(std::rethrow_exception(error), InvalidArgument);
  CHECK_THROWS_AS(fixture.validator.agree(CallKind::kSave, "folder", error), InvalidArgument);
}

TEST_CASE("CallValidator: batches of all ranks add up") {
  Fixture fixture;
  fixture.ranks.alter = [](CallHeader& other) {
    other.samples = 5;
    other.needs_capture = true;
    other.has_pending = true;
  };
  auto arguments = fixture.arguments({torch::ones({4, 3})});
  const auto agreed = fixture.validator.agree_on_call(arguments, "key", {}, nullptr, false);
  CHECK(agreed.batch == 9);
  CHECK(agreed.layout.local == std::vector<std::int64_t>{4, 5});
  CHECK(agreed.is_stale);
  CHECK(agreed.has_pending);
  CHECK_FALSE(agreed.members_changed);
  CHECK(calls::first_sample(agreed.layout, Rank(1)) == 4);
}

TEST_CASE("CallValidator: what keeps one rank from a replay keeps all") {
  Fixture fixture;
  fixture.ranks.alter = [](CallHeader& other) { other.obstacles = 8; };
  auto arguments = fixture.arguments({torch::ones({4, 3})});
  calls::KnownProgram known;
  known.obstacles = [] { return std::uint8_t{2}; };
  CHECK(fixture.validator.agree_on_call(arguments, "key", known, nullptr, false).obstacles == 10);
  REQUIRE_FALSE(fixture.ranks.said.empty());
  CHECK(fixture.ranks.said.back().obstacles == 2);
}

TEST_CASE("CallValidator: a batch that is empty everywhere is refused") {
  Fixture fixture;
  auto arguments = fixture.arguments({torch::ones({0, 3})});
  CHECK_THROWS_AS(fixture.validator.agree_on_call(arguments, "key", {}, nullptr, false), InvalidArgument);
}

TEST_CASE("CallValidator: a difference between ranks is refused by name") {
  Fixture fixture;
  const auto refused = [&](const std::string& words, const std::function<void(CallHeader&)>& alter) {
    fixture.ranks.alter = alter;
    CHECK_NOTHROW(check_says({words, "rank 0", "rank 1"}, [&] { fixture.validator.agree(CallKind::kSave, "folder"); }));
  };
  refused("different AutoParallel models", [](CallHeader& other) { other.model = 2; });
  refused("different members", [](CallHeader& other) { other.kind = CallKind::kLoad; });
  refused("different numbers of calls", [](CallHeader& other) { ++other.serial; });
  refused("loss scales", [](CallHeader& other) { other.loss_scale = 2; });
  refused("called backward", [](CallHeader& other) { ++other.loss_backwards; });
  refused("disagree about arguments", [](CallHeader& other) { ++other.key; });
}

TEST_CASE("CallValidator: gradients of the loss are told once") {
  Fixture fixture;
  fixture.validator.note_loss_gradient(torch::ones({}));
  fixture.validator.note_loss_gradient(torch::full({}, 0.5));
  fixture.validator.agree(CallKind::kSync, "");
  fixture.validator.agree(CallKind::kSync, "");
  REQUIRE(fixture.ranks.said.size() == 2);
  CHECK(fixture.ranks.said[0].loss_backwards == 2);
  CHECK(fixture.ranks.said[0].loss_factors == 1.5);
  CHECK(fixture.ranks.said[1].loss_backwards == 0);
}

TEST_CASE("CallValidator: headers state gradients and progress") {
  Fixture fixture;
  fixture.gradients.inside = fixture.gradients.waiting = true;
  fixture.gradients.scale = 8;
  fixture.progress.calls = 7;
  const auto header = fixture.validator.header(CallKind::kForward);
  CHECK(header.accumulates);
  CHECK(header.has_pending);
  CHECK(header.loss_scale == 8);
  CHECK(header.serial == 7);
  CHECK_FALSE(fixture.validator.header(CallKind::kGather).accumulates);
}

TEST_CASE("CallValidator: a rank that runs alone calls nothing") {
  Fixture fixture;
  {
    const auto alone = fixture.validator.alone();
    CHECK_THROWS_AS(fixture.validator.agree(CallKind::kGather, "weight"), InvalidArgument);
  }
  CHECK_NOTHROW(fixture.validator.agree(CallKind::kGather, "weight"));
}

}  // namespace call_validator_test
