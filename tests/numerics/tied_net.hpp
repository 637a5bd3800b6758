#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

/// A small model whose parameters do not divide evenly, its data, a step of it, and what users see of its parameters,
/// for tests of where parameters are held.
namespace tied_net {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;

inline constexpr double kTolerance = 1e-12;
inline constexpr int64_t kSamples = 4;  ///< of each rank

/// A table that is tied to the last layer, a norm, a scalar, more elements than two ranks divide evenly.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "table", table, "a", a, "norm", norm, "b", b);
    scale = register_parameter("scale", torch::tensor(1.5));
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    auto h = norm(torch::tanh(a(table(ids).flatten(1))));
    h = torch::tanh(b(h)) * scale;
    return F::cross_entropy(F::linear(h, table->weight), y);
  }
  nn::Embedding table{9, 5};
  nn::Linear a{15, 11};
  nn::LayerNorm norm{nn::LayerNormOptions({11})};
  nn::Linear b{11, 5};
  Tensor scale;
};

inline std::shared_ptr<Net> made() { return nets::made<Net>(11); }

inline Tensor ids(int step, int64_t begin, int64_t end) {
  return (torch::arange(begin * 3, end * 3, torch::kLong) * (3 + step)).remainder(9).view({end - begin, 3});
}
inline Tensor labels(int step, int64_t begin, int64_t end) {
  return (torch::arange(begin, end, torch::kLong) * 2 + step).remainder(9);
}

template <class Model>
void train_step(ap::World& world, Model& model, torch::optim::Optimizer& optimizer, int step) {
  optimizer.zero_grad();
  const auto begin = world.rank() * kSamples;
  model(ids(step, begin, begin + kSamples), labels(step, begin, begin + kSamples)).backward();
  static_cast<void>(model->clip_grad_norm_(0.5));
  optimizer.step();
}

template <class Model>
void check_state(ap::World& world, Model& model, const numerics::Snapshot& want, const std::string& when) {
  for (const auto& item : model->named_parameters()) {
    check_close(model->gather(item.value()), numerics::find(want, item.key()), kTolerance,
                when + ", gathered " + item.key());
    if (!model->owns(item.value())) continue;
    const auto part = numerics::held_part(numerics::find(want, item.key()), model->shard(item.value()));
    check_close(item.value(), part, kTolerance, when + ", " + item.key());
  }
  const auto state = model->gather_state();
  if (world.rank() != 0) return;
  for (const auto& item : state)
    check_close(item.value(), numerics::find(want, item.key()), kTolerance, when + ", all " + item.key());
}

inline int ranks_of(const ap::Options& options) {
  return std::accumulate(options.replicas.begin(), options.replicas.end(), 0);
}

inline void check_ranks(int ranks, const std::function<void(ap::World&)>& body) {
  torch::set_num_threads(1);
  CHECK_NOTHROW(ap::loopback::run(ranks, body));
}

}  // namespace tied_net
