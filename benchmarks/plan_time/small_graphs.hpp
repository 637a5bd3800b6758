#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models.hpp"

namespace models {

/// Builds small graphs of operators that are tiny (a layer of 32 elements a sample) or big (one of 4096).
class SmallGraph {
 public:
  explicit SmallGraph(bool big) : width_(big ? 4096 : 32) {}

  /// Reads and writes as much as its operands.
  ap::NodeId light(const std::vector<ap::NodeId>& from, double out = 1) {
    const double value = 4 * width_ * out;
    return net_.add("aten::add", {ap::OpClass::kMemory, width_, 3 * value, value, value, 0}, from);
  }
  /// A layer with weights.
  ap::NodeId dense(const std::vector<ap::NodeId>& from, double out = 1) {
    const double columns = width_ * out;
    return net_.add(
        "aten::linear",
        {ap::OpClass::kMatmul, 2 * width_ * columns, 4 * (width_ + columns), 4 * columns, 4 * width_, width_ * columns},
        from);
  }
  /// A few weights, as of a scale or a norm.
  ap::NodeId scale(const std::vector<ap::NodeId>& from) {
    const double value = 4 * width_;
    return net_.add("aten::mul", {ap::OpClass::kMemory, width_, 3 * value, value, value, width_}, from);
  }
  /// One number a sample.
  ap::NodeId number(const std::vector<ap::NodeId>& from) {
    return net_.add("aten::sum", {ap::OpClass::kMemory, width_, 4 * width_, 4, 4, 0}, from);
  }
  ap::ModelProfile finish(ap::NodeId last) { return net_.finish(ap::NodeId(0), 4 * width_, last); }

 private:
  double width_;
  Synthetic net_;
};

/// Two sets of samples through one layer each, all pairs of them, kernels of several widths, their four quarters: the
/// loss of domain adaptation, which mixes samples and so allows one micro-batch.
inline ap::ModelProfile mean_discrepancy(int kernels, bool big) {
  SmallGraph net(big);
  const auto first = net.light({});
  const auto a = net.light({net.dense({first})}), b = net.light({net.dense({first})});
  const auto pairs = net.light({a, b});
  const auto left = net.light({pairs}), right = net.light({pairs});
  const auto distance = net.number({net.light({net.light({left, right})})});
  const auto bandwidth = net.number({net.number({distance})});
  std::vector<ap::NodeId> widths;
  for (int k = 0; k < kernels; ++k) widths.push_back(net.number({net.number({distance, net.number({bandwidth})})}));
  ap::NodeId sum = widths.front();
  for (std::size_t k = 1; k < widths.size(); ++k) sum = net.number({sum, widths[k]});
  std::vector<ap::NodeId> quarters;
  for (int q = 0; q < 4; ++q) quarters.push_back(net.number({net.number({sum})}));
  const auto same = net.number({quarters[0], quarters[1]}), others = net.number({quarters[2], quarters[3]});
  ap::ModelProfile model = net.finish(net.number({net.number({same, others})}));
  for (const ap::NodeId node : model.graph.nodes()) model.graph[node].whole_batch = node.value() > 4;
  return model;
}

/// Planar flow: z = z + u tanh(w z + b), and the sum of log determinants beside it.
inline ap::ModelProfile flow(int layers, bool big) {
  SmallGraph net(big);
  ap::NodeId z = net.light({}), determinants = net.number({z});
  for (int layer = 0; layer < layers; ++layer) {
    const auto inner = net.scale({z});
    const auto bent = net.light({inner});
    const auto slope = net.light({bent});
    const auto determinant = net.number({net.scale({slope})});
    z = net.light({z, net.scale({bent})});
    determinants = net.number({determinants, determinant});
  }
  return net.finish(net.number({net.number({z}), determinants}));
}

/// A transformer whose every block reads one condition, as DiT's: scales, shifts and gates.
inline ap::ModelProfile conditioned(int blocks, bool big) {
  SmallGraph net(big);
  const auto first = net.light({});
  const auto condition = net.light({net.dense({net.light({net.dense({first})})})});
  ap::NodeId x = net.dense({first});
  for (int block = 0; block < blocks; ++block) {
    const auto modulation = net.dense({condition}, 6);
    for (int half = 0; half < 2; ++half) {
      const auto scaled = net.light({net.light({x}), modulation});
      const auto shifted = net.light({scaled, modulation});
      const auto inner = net.dense({net.light({net.dense({shifted}, half == 0 ? 3 : 4)})});
      x = net.light({x, net.light({inner, modulation})});
    }
  }
  return net.finish(net.number({net.dense({net.light({x, condition})})}));
}

/// An autoencoder with a codebook between: distances to codes, three losses.
inline ap::ModelProfile codebook(int depth, bool big) {
  SmallGraph net(big);
  const auto first = net.light({});
  const auto residual = [&](ap::NodeId x) {
    return net.light({x, net.dense({net.light({net.dense({net.light({x})})})})});
  };
  ap::NodeId x = first;
  for (int i = 0; i < depth; ++i) x = residual(net.light({net.dense({x})}));
  const auto flat = net.light({x});
  const auto squares = net.light({net.number({flat}), net.number({net.scale({flat})})});
  const auto distance = net.light({squares, net.dense({flat})});
  const auto code = net.dense({net.light({distance})});
  const auto straight = net.light({flat, net.light({code, flat})});
  const auto commitment = net.number({net.light({code, flat})}), codes = net.number({net.light({flat, code})});
  const auto used = net.number({net.light({net.number({distance})})});
  ap::NodeId y = straight;
  for (int i = 0; i < depth; ++i) y = residual(net.light({net.dense({y})}));
  const auto reconstruction = net.number({net.light({y, first})});
  return net.finish(net.number({net.number({reconstruction, commitment}), codes, used}));
}

/// Layers that read all layers before them, as DenseNet's.
inline ap::ModelProfile concatenations(int blocks, int layers, bool big) {
  SmallGraph net(big);
  ap::NodeId x = net.dense({});
  for (int block = 0; block < blocks; ++block) {
    std::vector<ap::NodeId> made{x};
    for (int layer = 0; layer < layers; ++layer) made.push_back(net.dense({net.scale({net.light(made)})}));
    x = net.dense({net.light(made)});
  }
  return net.finish(net.number({x}));
}

/// UNet++: a triangle of nodes that read all on their level before them and the one below.
inline ap::ModelProfile nested_unet(int levels, bool big) {
  SmallGraph net(big);
  std::vector<std::vector<ap::NodeId>> grid;
  for (int i = 0; i < levels; ++i)
    grid.push_back({net.dense({i == 0 ? net.light({}) : net.light({grid.back().front()})})});
  for (int j = 1; j < levels; ++j) {
    for (int i = 0; i + j < levels; ++i) {
      auto from = grid[static_cast<std::size_t>(i)];
      from.push_back(net.light({grid[static_cast<std::size_t>(i + 1)].back()}));
      // Levels below have one more already.
      grid[static_cast<std::size_t>(i)].push_back(net.light({net.dense({net.light(from)})}));
    }
  }
  std::vector<ap::NodeId> heads(grid.front().begin() + 1, grid.front().end());
  for (auto& head : heads) head = net.number({net.dense({head})});
  return net.finish(net.number(heads));
}

/// Branches side by side between two nodes: many cuts.
inline ap::ModelProfile wide(int branches, int length, bool big) {
  SmallGraph net(big);
  const auto first = net.light({});
  std::vector<ap::NodeId> ends;
  for (int b = 0; b < branches; ++b) {
    ap::NodeId x = first;
    for (int i = 0; i < length; ++i) x = (b + i) % 2 == 0 ? net.dense({x}) : net.light({x});
    ends.push_back(x);
  }
  return net.finish(net.number(ends));
}

/// The same numbers everywhere. @source Marsaglia, "Xorshift RNGs", J. Stat. Softw. 8(14), 2003
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  int operator()(int sides) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<int>(state_ % static_cast<std::uint64_t>(sides));
  }

 private:
  std::uint64_t state_;
};

/// Random compositions in series and side by side.
inline ap::ModelProfile series_parallel(int operators, std::uint64_t seed, bool big) {
  SmallGraph net(big);
  Dice dice(seed);
  const auto one = [&](const std::vector<ap::NodeId>& from) {
    const int kind = dice(4);
    return kind == 0 ? net.dense(from) : kind == 1 ? net.scale(from) : net.light(from);
  };
  const auto grow = [&](const auto& self, ap::NodeId from, int count) -> ap::NodeId {
    if (count <= 1) return one({from});
    if (dice(2) == 0 || count < 4) return self(self, self(self, from, count / 2), count - count / 2);
    const int branches = std::min(2 + dice(3), count - 1);
    std::vector<ap::NodeId> ends;
    for (int b = 0; b < branches; ++b) ends.push_back(self(self, from, (count - 1) / branches));
    return net.light(ends);
  };
  const auto first = net.light({});
  return net.finish(net.number({grow(grow, first, operators - 2)}));
}

/// Each node reads up to three of the few before it.
inline ap::ModelProfile tangled(int operators, std::uint64_t seed, bool big) {
  SmallGraph net(big);
  Dice dice(seed + 100);
  std::vector<ap::NodeId> made{net.light({})};
  while (static_cast<int>(made.size()) < operators - 1) {
    std::vector<ap::NodeId> from;
    for (int i = 1 + dice(3); i > 0; --i) {
      const auto back = static_cast<std::size_t>(dice(std::min(6, static_cast<int>(made.size()))));
      const auto node = made[made.size() - 1 - back];
      if (std::find(from.begin(), from.end(), node) == from.end()) from.push_back(node);
    }
    const int kind = dice(4);
    made.push_back(kind == 0 ? net.dense(from) : kind == 1 ? net.scale(from) : net.light(from));
  }
  const auto last = made.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(6, made.size()));
  return net.finish(net.number({last, made.end()}));
}

struct Named {
  std::string name;
  ap::ModelProfile model;
};

/// Of 10 to 1000 operators, tiny ones and big ones.
inline std::vector<Named> small_graphs() {
  std::vector<Named> all{{"chain-10", chain(10, false)}};
  for (const bool big : {false, true}) {
    const auto add = [&](const std::string& name, ap::ModelProfile model) {
      all.push_back({name + (big ? "/big" : "/tiny"), std::move(model)});
    };
    for (const int kernels : {5, 8}) add("mean-discrepancy-" + std::to_string(kernels), mean_discrepancy(kernels, big));
    for (const int layers : {2, 5, 20, 120}) add("flow-" + std::to_string(layers), flow(layers, big));
    for (const int blocks : {2, 12}) add("conditioned-" + std::to_string(blocks), conditioned(blocks, big));
    for (const int depth : {1, 4}) add("codebook-" + std::to_string(depth), codebook(depth, big));
    add("concatenations-1x12", concatenations(1, 12, big));
    add("concatenations-4x6", concatenations(4, 6, big));
    for (const int levels : {3, 5}) add("nested-unet-" + std::to_string(levels), nested_unet(levels, big));
    add("wide-14x1", wide(14, 1, big));
    add("wide-4x8", wide(4, 8, big));
    for (const int operators : {16, 40, 120, 300}) {
      add("series-parallel-" + std::to_string(operators), series_parallel(operators, 1, big));
      add("tangled-" + std::to_string(operators), tangled(operators, 2, big));
    }
  }
  all.push_back({"tangled-1000/tiny", tangled(1000, 1, false)});
  return all;
}

/// Ranks on the cores of one host, as autopar describes them to itself.
inline ap::Cluster cores(int devices) {
  ap::Device core;
  core.name = "cpu";
  core.memory = ap::Bytes(std::int64_t{8} << 30);
  core.memory_bandwidth = ap::BytesPerSecond(1e10);
  core.f64 = ap::FlopsPerSecond(2e10);
  core.f32 = core.tf32 = ap::FlopsPerSecond(4e10);
  core.f16 = core.bf16 = ap::FlopsPerSecond(1e10);
  core.efficiency = 0.7;
  core.launch = ap::Seconds(2e-6);
  return of_nodes("cores", devices, core, {"host", devices, {ap::Seconds(2e-6), ap::BytesPerSecond(5e9)}}, {});
}

/// Memory of a device with which all of them have three times what a step takes: plans must save.
inline ap::Bytes scarce(const ap::ModelProfile& model, std::int64_t batch, int devices) {
  double bytes = 0;
  for (const auto& parameter : model.parameters) bytes += 4 * static_cast<double>(parameter.bytes.value());
  for (const ap::NodeId node : model.graph.nodes()) bytes += model.graph[node].saved.at(static_cast<double>(batch));
  return ap::Bytes(static_cast<std::int64_t>(3 * bytes / devices));
}

}  // namespace models
