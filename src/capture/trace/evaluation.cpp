#include "capture/trace/evaluation.hpp"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "capture/replay/replay.hpp"
#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {
namespace {

struct Behind {
  std::vector<bool> ops;
  std::unordered_set<StorageId> storages;  ///< what they read and write
};

Behind behind(const OpGraph& graph, const std::vector<ValueId>& values) {
  Behind found{std::vector<bool>(graph.ops.size(), false), {}};
  auto& storages = found.storages;
  for (const auto value : values) storages.insert(graph.value(value).storage);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const auto& node = graph.ops[i];
    // Views write nothing, but a later write through one needs it.
    bool touches = std::any_of(node.writes.begin(), node.writes.end(), [&](auto s) { return storages.contains(s); });
    for_each_output(node, [&](ValueId value) { touches |= storages.contains(graph.value(value).storage); });
    if (!touches) continue;
    found.ops[i] = true;
    storages.insert(node.reads.begin(), node.reads.end());
    storages.insert(node.writes.begin(), node.writes.end());
  }
  return found;
}

bool is_constant(const OpGraph& graph, const Behind& found) {
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (found.ops[i] && graph.ops[i].is_random) return false;
  }
  return std::none_of(graph.values.begin(), graph.values.end(), [&](const ValueInfo& info) {
    return info.is_leaf() && info.kind != ValueKind::kConstant && found.storages.contains(info.storage);
  });
}

}  // namespace

std::vector<bool> ops_behind(const OpGraph& graph, const std::vector<ValueId>& values) {
  return behind(graph, values).ops;
}

std::optional<std::vector<at::Tensor>> evaluate_constants(const OpGraph& graph, const std::vector<ValueId>& values) {
  const auto found = behind(graph, values);
  if (!is_constant(graph, found)) return std::nullopt;
  std::vector<OpId> ops;
  for (std::size_t i = 0; i < found.ops.size(); ++i) {
    if (found.ops[i]) ops.push_back(OpId::of(i));
  }
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset | c10::DispatchKeySet(kTraceKey));
  const at::AutoGradMode no_grad(false);
  replay::Replayer replayer(graph, ops, values, at::kCPU);
  auto environment = replayer.environment();
  replayer.run(environment, {});
  std::vector<at::Tensor> results;
  for (const auto value : values) {
    const auto& info = graph.value(value);
    results.push_back(info.kind == ValueKind::kConstant ? info.constant : environment[value.index()]);
  }
  return results;
}

}  // namespace autopar::trace
