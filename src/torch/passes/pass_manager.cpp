#include "torch/passes/pass_manager.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "capture/ir/well_formed.hpp"

namespace autopar::passes {

namespace {

bool is_met(PassCondition condition, const PassTarget& target) {
  switch (condition) {
    case PassCondition::kAlways:
      return true;
    case PassCondition::kFusion:
      return target.fuses;
    case PassCondition::kChunkedLogits:
      return target.chunks_logits;
  }
  return false;
}

const char* why_not(PassCondition condition) {
  return condition == PassCondition::kFusion
             ? "operators are not fused (fusion = off, or a device without the library's kernels)"
             : "logits are made whole (class_head)";
}

/// Numbers of a program before a pass, to log the pass's effect.
struct Before {
  std::size_t operators = 0;
  std::uint64_t hash = 0;

  [[nodiscard]] std::string to(const OpGraph& after) const {
    if (after.hash() == hash) return "nothing to change";
    return std::to_string(operators) + " operators became " + std::to_string(after.ops.size());
  }
};

}  // namespace

std::string ProgramAfter::title() const {
  return has_run ? "the program after " + pass : "the program at the place of " + pass + ", which did not run";
}

void PassManager::show_after(const std::string& pass) {
  std::vector<std::string> names;
  for (const auto& known : passes_) names.emplace_back(known.name);
  if (std::ranges::find(names, pass) == names.end()) {
    const auto nearest = nearest_word(pass, names);
    std::string all;
    for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
    throw InvalidArgument("graph_after = '" + pass + "' is no pass" +
                          (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") + " There are: " + all);
  }
  shown_ = pass;
}

CompiledProgram PassManager::run(OpGraph graph, const PassTarget& target, const Logger& log) const {
  const bool logs = log.enabled(LogLevel::kDebug);
  CompiledProgram out;
  for (const auto& pass : passes_) {
    const std::string name(pass.name);
    const bool runs = is_met(pass.condition, target);
    if (runs) {
      const Before before = logs ? Before{graph.ops.size(), graph.hash()} : Before{};
      graph = pass.run(std::move(graph), target);
      if (const auto fault = ir::fault_of(graph); !fault.empty())
        throw std::logic_error("the pass " + name + " made a program that is not well-formed: " + fault);
      if (logs) log.debug(name + ": " + before.to(graph));
    } else if (logs) {
      log.debug(name + " did not run: " + why_not(pass.condition));
    }
    if (name == shown_) out.shown = ProgramAfter{graph, name, runs};
  }
  out.graph = std::move(graph);
  return out;
}

}  // namespace autopar::passes
