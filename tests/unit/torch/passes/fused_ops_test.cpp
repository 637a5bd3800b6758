#include "torch/fused/fused_ops.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "capture/ir/well_formed.hpp"
#include "ops/registry.hpp"
#include "torch/passes/pass_list.hpp"
#include "torch/passes/pass_manager.hpp"
#include "unit/torch/passes/folded.hpp"
#include "unit/torch/passes/models_of_passes.hpp"

namespace autopar::test {
namespace fused_ops {

using fused::FusedOp;

/// "max_pool2d"
std::string short_name(const FusedOp& op) { return std::string(op.name.substr(op.name.find("::") + 2)); }

/// Gives libtorch's dispatcher each reference as an overload of its operator.
void register_references() {
  static const auto references = [] {
    torch::Library library(torch::Library::FRAGMENT, "autopar", std::nullopt, __FILE__, __LINE__);
    for (const auto& op : fused::fused_ops()) {
      const auto arguments = std::string(op.schema).substr(short_name(op).size());
      library.def((short_name(op) + ".reference" + arguments).c_str(), op.reference());
    }
    return library;
  }();
  static_cast<void>(references);
}

/// The program with references in the place of fused operators, whose names are added to `found`.
OpGraph with_references(OpGraph graph, std::set<std::string>& found) {
  for (auto& node : graph.ops) {
    for (const auto& op : fused::fused_ops()) {
      if (node.op.schema().name() != op.name) continue;
      node.op = ops::operator_named(op.name, "reference");
      found.emplace(op.name);
    }
  }
  return graph;
}

}  // namespace fused_ops

TEST_CASE("fused operators: schema and definition match the name") {
  fused::register_fused_ops();
  fused::register_fused_ops();
  for (const auto& op : fused::fused_ops()) {
    INFO(op.name);
    CHECK(std::string(op.schema).starts_with(fused_ops::short_name(op) + "("));
    CHECK(fused::fused_operator(op.name).schema().name() == op.name);
    const auto& def = ops::definition_of(op.name);
    CHECK(def.name == op.name);
    CHECK(def.over_samples != nullptr);
  }
}

TEST_CASE("fused operators: train as their references in fp64") {
  fused::register_fused_ops();
  fused_ops::register_references();
  std::set<std::string> found;
  for (const bool chunks_logits : {false, true}) {
    for (const auto& [name, model] : models_of_passes()) {
      INFO(name << (chunks_logits ? ", chunked logits" : ""));
      torch::manual_seed(11);
      model->to(torch::kDouble);
      auto in = model->arguments(4);
      for (auto& tensor : in)
        if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
      const passes::PassTarget target{.fuses = true, .chunks_logits = chunks_logits};
      const auto fused =
          passes::PassManager(passes::pass_list()).run(captured_for_passes(*model, in, false), target, {}).graph;
      check_folded(*model, fused, fused_ops::with_references(fused, found), in, 1e-12);
    }
  }
  // Cross entropy of 16-bit logits is in single precision.
  for (const auto& [name, model] : models_of_passes()) {
    INFO(name << ", bf16");
    torch::manual_seed(11);
    const auto in = model->arguments(4);
    const auto fused =
        passes::PassManager(passes::pass_list()).run(captured_for_passes(*model, in, true), {.fuses = true}, {}).graph;
    check_folded(*model, fused, fused_ops::with_references(fused, found), in);
  }
  for (const auto& op : fused::fused_ops()) {
    INFO(op.name);
    CHECK(found.contains(std::string(op.name)));
  }
}

TEST_CASE("fused operators: applying a pattern twice changes nothing") {
  for (const auto& [name, model] : models_of_passes()) {
    const auto in = model->arguments(4);
    const auto graph = captured_for_passes(*model, in, false);
    for (const auto& op : fused::fused_ops()) {
      INFO(name << ", " << op.name);
      const auto once = op.pattern(graph);
      CHECK(ir::fault_of(once).empty());
      CHECK(op.pattern(once).hash() == once.hash());
    }
  }
}

}  // namespace autopar::test
