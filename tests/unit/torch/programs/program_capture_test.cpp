#include "torch/programs/program_capture.hpp"

#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace program_capture_test {

using namespace autopar;

/// Scales what a layer makes by a number that is no parameter; dropout tells modes apart.
struct ScaledImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return dropout(layer(x)) * scale; }

  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(3, 2));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
  double scale = 2;
};

struct Fixture : test::OneRankModel {
  explicit Fixture(std::shared_ptr<ScaledImpl> model = std::make_shared<ScaledImpl>(), Options code = {})
      : OneRankModel(
            model,
            [model](const std::vector<at::Tensor>& tensors) {
              return std::vector<at::Tensor>{at::Tensor(), model->forward(tensors.at(0))};
            },
            std::move(code)),
        net(std::move(model)) {}

  std::shared_ptr<ScaledImpl> net;
  const at::Tensor batch = torch::ones({4, 3});
};

TEST_CASE("ProgramCapture: a program is captured, rewritten and analysed") {
  Fixture fixture;
  const auto program = fixture.captured({fixture.batch});
  CHECK(program->captured.parameters.size() == 2);
  CHECK(program->graph.ops.size() <= program->captured.ops.size());
  REQUIRE(program->plan.outputs.size() == 1);
  CHECK(program->plan.outputs[0].kind == algebra::OutputKind::kBatched);
  CHECK(program->returned.count == 2);  // the first is undefined
  CHECK(program->returned.positions == std::vector<std::size_t>{1});
  CHECK(program->partition.parts.empty());
  CHECK_FALSE(program->is_stale());
}

TEST_CASE("ProgramCapture: a change since the capture is described") {
  Fixture fixture;
  const auto program = fixture.captured({fixture.batch});
  const auto arguments = fixture.arguments({fixture.batch});
  CHECK_FALSE(fixture.capture.change_since(*program, arguments, fixture.forward).has_value());
  fixture.net->scale = 3;
  const auto change = fixture.capture.change_since(*program, arguments, fixture.forward);
  REQUIRE(change.has_value());
  CHECK(change->op.find("mul") != std::string::npos);
}

TEST_CASE("ProgramCapture: a first plan carries evaluation where stages may be") {
  Options one_stage, two_stages;
  two_stages.stages = 2;
  for (const auto& options : {one_stage, two_stages}) {
    Fixture fixture(std::make_shared<ScaledImpl>(), options);
    const auto modes = fixture.capture.capture_other_modes(fixture.arguments({fixture.batch}), fixture.forward);
    CHECK(modes.planned == nullptr);  // the call itself trains
    CHECK(modes.others.size() == (options.stages == 2 ? 1 : 0));
    CHECK(fixture.net->is_training());
  }
}

TEST_CASE("ProgramCapture: training is captured when evaluation comes first") {
  Fixture fixture;
  fixture.net->eval();
  const auto modes = fixture.capture.capture_other_modes(fixture.arguments({fixture.batch}), fixture.forward);
  REQUIRE(modes.planned != nullptr);
  CHECK(modes.planned->captured.hash() != fixture.captured({fixture.batch})->captured.hash());
  CHECK_FALSE(fixture.net->is_training());
}

TEST_CASE("ProgramCapture: two settings of element types are refused") {
  Options options;
  options.precision = Precision::kBf16;
  auto net = std::make_shared<ScaledImpl>();
  net->to(torch::kDouble);
  Fixture fixture(net, options);
  CHECK_THROWS_AS(fixture.captured({fixture.batch.to(torch::kDouble)}), InvalidArgument);
}

}  // namespace program_capture_test
