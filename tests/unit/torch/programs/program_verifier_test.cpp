#include "torch/programs/program_verifier.hpp"

#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank_model.hpp>
#include <says.hpp>

namespace program_verifier_test {

using namespace autopar;

/// A layer and a number beside it, and how often forward ran.
struct Fixture : test::OneRankModel {
  explicit Fixture(torch::nn::Linear layer = torch::nn::Linear(3, 2))
      : OneRankModel(layer.ptr(), [this, layer](const std::vector<at::Tensor>& tensors) mutable {
          ++forwards;
          return std::vector<at::Tensor>{layer(tensors.at(0)) * scale};
        }) {}

  /// One more call of the program. @return whether it must be captured again
  bool call(bool members_changed = false) {
    const bool outdated = verifier.is_outdated(*program, arguments({batch}), forward, members_changed);
    ++program->verification.calls;
    return outdated;
  }

  double scale = 2;
  int forwards = 0;
  const at::Tensor batch = torch::ones({4, 3});
  std::shared_ptr<programs::CapturedProgram> program = captured({batch});
  programs::ProgramVerifier verifier{*ranks, options, capture};
};

TEST_CASE("ProgramVerifier: asks at calls 2, 4, 8, and so on") {
  Fixture fixture;
  std::vector<int> asked_at;
  for (int call = 1; call <= 16; ++call) {
    const auto before = fixture.forwards;
    CHECK_FALSE(fixture.call());
    if (fixture.forwards != before) asked_at.push_back(call);
  }
  CHECK(asked_at == std::vector{2, 4, 8, 16});
}

TEST_CASE("ProgramVerifier: seen at an interval, a change is an error") {
  Fixture fixture;
  CHECK_FALSE(fixture.call());
  CHECK_FALSE(fixture.call());
  fixture.scale = 3;
  CHECK_FALSE(fixture.call());  // the third call is not asked about
  CHECK_NOTHROW(check_says({"that has changed", "call 3", "recapture()"}, [&] { static_cast<void>(fixture.call()); }));
  CHECK(fixture.program->is_stale());
}

TEST_CASE("ProgramVerifier: where members changed, a change is captured again") {
  Fixture fixture;
  fixture.scale = 3;
  CHECK(fixture.call(/*members_changed=*/true));
  CHECK(fixture.program->is_stale());
}

TEST_CASE("ProgramVerifier: without verify_capture nothing is asked") {
  Fixture fixture;
  fixture.options.verify_capture = false;
  const auto before = fixture.forwards;
  fixture.scale = 3;
  for (int call = 1; call <= 8; ++call) CHECK_FALSE(fixture.call(call == 3));
  CHECK(fixture.forwards == before);
}

TEST_CASE("ProgramVerifier: new batches are captured and compared") {
  Fixture fixture;
  const auto arguments = fixture.arguments({fixture.batch});
  const auto before = fixture.forwards;
  fixture.verifier.verify_batch(*fixture.program, arguments, fixture.forward, 6);
  const auto once = fixture.forwards;
  CHECK(once > before);
  fixture.verifier.verify_batch(*fixture.program, arguments, fixture.forward, 6);
  CHECK(fixture.forwards == once);
  fixture.scale = 3;
  CHECK_THROWS_AS(fixture.verifier.verify_batch(*fixture.program, arguments, fixture.forward, 7), CaptureError);
}

}  // namespace program_verifier_test
