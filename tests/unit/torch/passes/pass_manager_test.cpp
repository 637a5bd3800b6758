#include "torch/passes/pass_manager.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

#include "capture/ir/well_formed.hpp"
#include "torch/passes/pass_list.hpp"
#include "unit/torch/capture/models.hpp"
#include "unit/torch/passes/folded.hpp"
#include "unit/torch/passes/models_of_passes.hpp"

namespace autopar::test {
namespace pass_manager {

using Catch::Matchers::Contains;
using passes::PassManager;
using passes::PassTarget;

constexpr PassTarget kEverything{.device = c10::DeviceType::CPU, .fuses = true, .chunks_logits = true};

TEST_CASE("passes: each changes a program, which trains as before") {
  std::set<std::string> changed;
  for (const bool in_bf16 : {false, true}) {
    for (const auto& [name, model] : models_of_passes()) {
      torch::manual_seed(7);
      auto in = model->arguments(4);
      if (!in_bf16) {
        model->to(torch::kDouble);
        for (auto& tensor : in)
          if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
      }
      auto graph = captured_for_passes(*model, in, in_bf16);
      CHECK(ir::fault_of(graph).empty());
      for (const auto& pass : passes::pass_list()) {
        INFO(name << ", " << pass.name << (in_bf16 ? ", bf16" : ""));
        const auto after = pass.run(graph, kEverything);
        CHECK(ir::fault_of(after).empty());
        if (after.hash() == graph.hash()) continue;
        changed.emplace(pass.name);
        check_folded(*model, graph, after, in, in_bf16 ? 2e-2 : 1e-12);
        graph = after;
      }
    }
  }
  for (const auto& pass : passes::pass_list()) {
    INFO(pass.name);
    CHECK(changed.count(std::string(pass.name)) == 1);
  }
  CHECK(changed.size() == passes::pass_list().size());  // no name twice
}

TEST_CASE("PassManager: passes run on their condition and are logged") {
  Mlp model;
  const auto graph = capture_model(model);
  std::vector<std::string> lines;
  Log log(Rank(0), 1);
  log.set_writer([&](const std::string& line) { lines.push_back(line); });
  const auto has = [&](const std::string& text) {
    return std::ranges::any_of(lines, [&](const auto& line) { return line.find(text) != std::string::npos; });
  };
  const PassManager manager(passes::pass_list());
  static_cast<void>(manager.run(graph, {}, log.logger(LogModule::kPasses)));
  CHECK(lines.empty());
  log.set_level(LogModule::kPasses, LogLevel::kDebug);
  const auto plain = manager.run(graph, {}, log.logger(LogModule::kPasses)).graph;
  CHECK(lines.size() == passes::pass_list().size());
  CHECK(has("Passes] fold_linear: " + std::to_string(graph.ops.size()) + " operators became " +
            std::to_string(plain.ops.size())));
  CHECK(has("fold_selects: nothing to change"));
  CHECK(has("fold_pointwise did not run: operators are not fused"));
  CHECK(has("fold_class_heads did not run: logits are made whole"));
  CHECK(manager.run(graph, kEverything, {}).graph.hash() != plain.hash());
}

TEST_CASE("PassManager: shows the program after any pass") {
  Mlp model;
  const auto graph = capture_model(model);
  PassManager manager(passes::pass_list());
  CHECK_FALSE(manager.run(graph, {}, {}).shown);
  manager.show_after("fold_linear");
  const auto after_linear = manager.run(graph, kEverything, {}).shown;
  REQUIRE(after_linear);
  CHECK(after_linear->title() == "the program after fold_linear");
  CHECK(count_floating(after_linear->graph, "aten::linear") == 3);
  manager.show_after("fold_pointwise");
  const auto not_run = manager.run(graph, {}, {});
  REQUIRE(not_run.shown);
  CHECK(not_run.shown->title() == "the program at the place of fold_pointwise, which did not run");
  CHECK(not_run.shown->graph.hash() == not_run.graph.hash());
  CHECK_THROWS_WITH(manager.show_after("fold_liner"), Contains("graph_after = 'fold_liner' is no pass") &&
                                                          Contains("did you mean 'fold_linear'?") &&
                                                          Contains("hoist_parameter_casts, fold_linear"));
  CHECK_THROWS_AS(manager.show_after("unlike anything"), InvalidArgument);
}

TEST_CASE("PassManager: a pass that breaks the program is named") {
  Mlp model;
  const auto graph = capture_model(model);
  const passes::Pass broken[] = {
      {"turn_around", passes::PassCondition::kAlways, [](OpGraph program, const PassTarget&) {
         std::reverse(program.ops.begin(), program.ops.end());
         return program;
       }}};
  const PassManager manager(broken);
  try {
    static_cast<void>(manager.run(graph, {}, {}));
    FAIL("accepted");
  } catch (const std::logic_error& error) {
    CHECK_THAT(error.what(), Contains("the pass turn_around made a program that is not well-formed"));
  }
}

}  // namespace pass_manager
}  // namespace autopar::test
