#include "torch/cost/measured/stretch.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "profiled.hpp"

using namespace autopar;
using cost::detail::typical_stretch;

namespace stretch_test {

constexpr int kWords = 5000, kWidth = 16, kLayers = 6;

/// A large table, equal layers, and a large head.
test::Profiled profile_words() {
  torch::nn::Embedding table(kWords, kWidth);
  torch::nn::Sequential layers;
  for (int i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(torch::nn::Functional([](const at::Tensor& x) { return x.tanh(); }));
  }
  torch::nn::Linear head(kWidth, kWords);
  struct Net : torch::nn::Module {};
  Net net;
  nets::register_all(net, "table", table, "layers", layers, "head", head);
  return test::profile(net, {at::zeros({4, 3}, at::kLong)},
                       [&](const std::vector<at::Tensor>& in) { return head(layers->forward(table(in[0]))).sum(); });
}

double bytes_of(const ModelProfile& model, const std::vector<NodeId>& atoms, double samples) {
  double bytes = 0, workspace = 0;
  for (const NodeId node : atoms) {
    bytes += model.graph[node].saved.at(samples);
    workspace = std::max(workspace, model.graph[node].workspace.at(samples));
    for (const auto parameter : model.graph[node].parameters)
      bytes += 2 * static_cast<double>(model.parameters[parameter.index()].bytes.value());
  }
  return bytes + workspace;
}

TEST_CASE("typical_stretch: the whole model where memory allows it", "[profiler]") {
  const auto p = profile_words();
  const auto stretch = typical_stretch(p.profile, 4, Bytes(1 << 30), [](NodeId) { return Seconds(1); });
  CHECK(stretch.atoms.size() == p.model().node_count());
  CHECK(std::ranges::is_sorted(stretch.ops));
}

TEST_CASE("typical_stretch: repeated layers without a large table", "[profiler]") {
  const auto p = profile_words();
  const auto one = [](NodeId) { return Seconds(1); };
  constexpr std::int64_t kOfTable = kWords * kWidth * 4;
  const auto stretch = typical_stretch(p.profile, 4, Bytes(kOfTable), one);
  REQUIRE(stretch.atoms.size() >= 2);
  CHECK(bytes_of(p.profile.model, stretch.atoms, 4) <= kOfTable);
  std::set<std::string> names;
  for (const NodeId node : stretch.atoms) names.insert(p.model()[node].name);
  CHECK(names.contains("aten::linear"));
  CHECK(names.contains("aten::tanh"));
  CHECK_FALSE(names.contains("aten::embedding"));
  for (std::size_t i = 1; i < stretch.atoms.size(); ++i)
    CHECK(stretch.atoms[i].value() == stretch.atoms[i - 1].value() + 1);
  CHECK(typical_stretch(p.profile, 4, Bytes(1), one).atoms.empty());
}

TEST_CASE("typical_stretch: what cannot run alone is not in it", "[profiler]") {
  const auto p = profile_words();
  const auto all = [&](const std::string& name) {
    const auto stretch = typical_stretch(p.profile, 4, Bytes(1 << 30), [&](NodeId node) -> std::optional<Seconds> {
      if (p.model()[node].name == name) return std::nullopt;
      return Seconds(1);
    });
    for (const NodeId node : stretch.atoms) CHECK(p.model()[node].name != name);
    return stretch.atoms.size();
  };
  CHECK(all("aten::tanh") <= 2);
  CHECK(all("aten::embedding") + 1 == p.model().node_count());
}

}  // namespace stretch_test
