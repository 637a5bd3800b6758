#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>

namespace models {

namespace ap = autopar;

/// Builds profiles from shapes, without a capture: arithmetic, traffic and saved bytes of each operator in fp32.
class Synthetic {
 public:
  struct Shape {
    ap::OpClass op_class = ap::OpClass::kMatmul;
    double flops = 0;    ///< a sample, forward
    double traffic = 0;  ///< bytes a sample, forward, without parameters
    double out = 0;      ///< bytes a sample
    double saved = 0;    ///< bytes a sample, for the backward
    double weights = 0;  ///< elements
    double launches = 1;
  };

  /// An operator that reads the values of others. @return its node
  ap::NodeId add(const std::string& name, const Shape& shape, const std::vector<ap::NodeId>& from) {
    ap::OpProfile op;
    op.name = name;
    const double weights = 4 * shape.weights;
    op.work = {{shape.op_class,
                ap::DType::kF32,
                {{shape.flops, 0}, {shape.traffic, weights}, {0, shape.launches}},
                {{2 * shape.flops, 0}, {2 * shape.traffic, 2 * weights}, {0, 2 * shape.launches}}}};
    op.saved = {shape.saved, 0};
    op.workspace = {shape.out, 0};
    const auto i = static_cast<std::int32_t>(model_.graph.node_count());
    op.ops = {i};
    // Equal shapes, equal hash: FNV over the numbers that make the operator.
    op.structure = 14695981039346656037ull;
    for (const double number : {static_cast<double>(shape.op_class), shape.flops, shape.traffic, shape.out, shape.saved,
                                shape.weights, shape.launches}) {
      op.structure = (op.structure ^ static_cast<std::uint64_t>(number)) * 1099511628211ull;
    }
    if (shape.weights > 0) {
      op.parameters = {ap::ParameterId::of(model_.parameters.size())};
      model_.parameters.push_back({name + std::to_string(i), ap::Bytes(static_cast<std::int64_t>(weights)), true,
                                   static_cast<std::int64_t>(shape.weights)});
    }
    const ap::NodeId node = model_.graph.add_node(std::move(op));
    out_.push_back(shape.out);
    for (const ap::NodeId before : from)
      model_.graph.add_edge(before, node, {before.value(), {out_[before.index()], 0}, true});
    return node;
  }

  ap::ModelProfile finish(ap::NodeId first, double input_bytes, ap::NodeId last) {
    model_.inputs = {{-1, {input_bytes, 0}, false, {first}}};
    model_.outputs = {{last.value(), {0, 4}, last}};
    return std::move(model_);
  }

 private:
  ap::ModelProfile model_;
  std::vector<double> out_;
};

/// A chain of matrix products; `repeated` layers are all equal, others vary by a factor of up to 4.
inline ap::ModelProfile chain(int operators, bool repeated) {
  Synthetic net;
  std::vector<ap::NodeId> before;
  ap::NodeId first, last;
  for (int i = 0; i < operators; ++i) {
    // Without repetition no two layers are alike.
    const double h = repeated ? 1024 : 512.0 + 1536.0 * ((i * 7919) % 101) / 100 + i * 1e-3;
    last = net.add("aten::linear", {ap::OpClass::kMatmul, 2 * h * h, 8 * h, 4 * h, 4 * h, h * h}, before);
    if (i == 0) first = last;
    before = {last};
  }
  return net.finish(first, 4096, last);
}

/// Encoder layers of equal shape between an embedding and a decoder.
/// @param h, s  hidden size, tokens
inline ap::ModelProfile transformer(double h, int layers, double heads, double s, double vocabulary) {
  const double value = 4 * s * h;
  Synthetic net;
  const auto linear = [&](double in, double out) {
    return Synthetic::Shape{ap::OpClass::kMatmul, 2 * s * in * out, 4 * s * (in + out),
                            4 * s * out,          4 * s * in,       in * out + out};
  };
  // Dropout, residual and layer norm: a mask of bytes, and the sum.
  const Synthetic::Shape norm{ap::OpClass::kMemory, 10 * s * h, 5 * value, value, 2.25 * value, 2 * h, 3};
  const auto first = net.add(
      "aten::embedding", {ap::OpClass::kMemory, 0, 3 * value, value, 1.25 * value, (vocabulary + s + 2) * h, 5}, {});
  ap::NodeId x = first;
  for (int layer = 0; layer < layers; ++layer) {
    const auto qkv = net.add("aten::linear", linear(h, 3 * h), {x});
    const double scores = 4 * heads * s * s;
    const auto attention =
        net.add("aten::attention",
                {ap::OpClass::kAttention, 4 * s * s * h, 6 * scores, value, 3 * value + 2.25 * scores, 0, 6}, {qkv});
    const auto projected = net.add("aten::linear", linear(h, h), {attention});
    const auto middle = net.add("aten::layer_norm", norm, {projected, x});
    auto up = linear(h, 4 * h);
    up.saved += 16 * s * h;  // what gelu keeps
    up.traffic += 32 * s * h;
    const auto wide = net.add("aten::linear", up, {middle});
    const auto narrow = net.add("aten::linear", linear(4 * h, h), {wide});
    x = net.add("aten::layer_norm", norm, {narrow, middle});
  }
  const auto transformed = net.add("aten::linear", linear(h, h), {x});
  auto decoder = linear(h, vocabulary);
  const auto scores = net.add("aten::linear", decoder, {transformed});
  const double logits = 4 * s * vocabulary;
  const auto loss = net.add("aten::nll_loss", {ap::OpClass::kMemory, 0, 3 * logits, 0, logits, 0, 3}, {scores});
  return net.finish(first, 5 * 8 * s, loss);
}

/// BERT of reference/003: hidden size 2048, 96 layers, 32 heads, 512 tokens, 4.9 billion parameters.
inline ap::ModelProfile bert() { return transformer(2048, 96, 32, 512, 30522); }

/// ResNet-152 with filters eight times as wide on 224 x 224 pixels, 3.7 billion parameters (reference/000).
inline ap::ModelProfile resnet152x8() {
  Synthetic net;
  const auto convolution = [&](double in, double out, double kernel, double size, double stride, ap::NodeId from) {
    const double before = 4 * in * size * size, side = size / stride, after = 4 * out * side * side;
    std::vector<ap::NodeId> sources;
    if (from.valid()) sources = {from};
    const auto made = net.add("aten::convolution",
                              {ap::OpClass::kConvolution, 2 * kernel * kernel * in * out * side * side, before + after,
                               after, before, kernel * kernel * in * out},
                              sources);
    return net.add("aten::batch_norm", {ap::OpClass::kMemory, 0, 4 * after, after, after, 2 * out, 2}, {made});
  };
  const double width = 8;
  const auto first = ap::NodeId(0);
  ap::NodeId x = convolution(3, 64 * width, 7, 224, 2, ap::NodeId::none());
  double channels = 64 * width, size = 56;
  const double pooled = 4 * channels * size * size;
  x = net.add("aten::max_pool2d", {ap::OpClass::kMemory, 0, 5 * pooled, pooled, 2 * pooled, 0, 1}, {x});
  const std::vector<std::pair<int, double>> groups{{3, 64}, {8, 128}, {36, 256}, {3, 512}};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (int block = 0; block < groups[g].first; ++block) {
      const double middle = groups[g].second * width, out = 4 * middle, stride = g > 0 && block == 0 ? 2 : 1;
      const auto reduced = convolution(channels, middle, 1, size, 1, x);
      const auto spread = convolution(middle, middle, 3, size, stride, reduced);
      const auto expanded = convolution(middle, out, 1, size / stride, 1, spread);
      const auto skipped = block == 0 ? convolution(channels, out, 1, size, stride, x) : x;
      channels = out;
      size /= stride;
      const double value = 4 * out * size * size;
      x = net.add("aten::relu", {ap::OpClass::kMemory, 0, 4 * value, value, value, 0, 2}, {expanded, skipped});
    }
  }
  const double value = 4 * channels * size * size;
  x = net.add("aten::mean", {ap::OpClass::kMemory, 0, value, 4 * channels, 0, 0, 1}, {x});
  x = net.add("aten::linear",
              {ap::OpClass::kMatmul, 2 * channels * 1000, 4 * channels, 4000, 4 * channels, channels * 1000}, {x});
  x = net.add("aten::nll_loss", {ap::OpClass::kMemory, 0, 12'000, 0, 4000, 0, 3}, {x});
  return net.finish(first, 4 * 3 * 224 * 224, x);
}

/// Links of 8 devices and, for more, between nodes of 8.
inline ap::Cluster of_nodes(std::string name, int devices, ap::Device device, ap::LinkLevel inner,
                            ap::LinkLevel outer) {
  ap::Cluster cluster;
  cluster.name = std::move(name);
  cluster.devices = devices;
  cluster.device = std::move(device);
  inner.span = devices < 8 ? devices : 8;
  outer.span = devices;
  cluster.levels = {std::move(inner)};
  if (devices > 8) cluster.levels.push_back(std::move(outer));
  return cluster;
}

inline ap::Cluster a100s(int devices, std::int64_t gib = 40) {
  const ap::Device device{"A100-" + std::to_string(gib),
                          ap::Bytes(gib << 30),
                          ap::BytesPerSecond(1.555e12),
                          ap::FlopsPerSecond(9.7e12),
                          ap::FlopsPerSecond(19.5e12),
                          ap::FlopsPerSecond(156e12),
                          ap::FlopsPerSecond(312e12),
                          ap::FlopsPerSecond(312e12),
                          0.6,
                          ap::Seconds(5e-6)};
  return of_nodes("a100-" + std::to_string(gib), devices, device,
                  {"NVLink", 8, {ap::Seconds(5e-6), ap::BytesPerSecond(250e9)}},
                  {"InfiniBand", devices, {ap::Seconds(1e-5), ap::BytesPerSecond(22e9)}});
}

/// As examples/clusters/v100-32x*.toml.
inline ap::Cluster v100s(int devices) {
  const ap::Device device{"V100-32",
                          ap::Bytes(std::int64_t{32} << 30),
                          ap::BytesPerSecond(900e9),
                          ap::FlopsPerSecond(7.8e12),
                          ap::FlopsPerSecond(15.7e12),
                          ap::FlopsPerSecond(15.7e12),
                          ap::FlopsPerSecond(125e12),
                          ap::FlopsPerSecond(15.7e12),
                          0.6,
                          ap::Seconds(6e-6)};
  return of_nodes("v100-32", devices, device, {"NVLink", 8, {ap::Seconds(6e-6), ap::BytesPerSecond(130e9)}},
                  {"InfiniBand", devices, {ap::Seconds(1e-5), ap::BytesPerSecond(10e9)}});
}

}  // namespace models
