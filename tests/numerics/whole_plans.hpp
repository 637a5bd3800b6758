#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

/// A model of parameters of many forms, its data, and the kinds of plans under which ranks hold them: whole, in shards,
/// in slices, in shards of slices, and not at all. For tests of what looks at whole parameters.
namespace whole_plans {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;

inline constexpr double kTolerance = 1e-12;

/// Pairs of layers that tensor shards have in slices of rows, of columns and of two ranges of rows; a module of two
/// names; a scalar; what is frozen and what nobody reads.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "first", first, "mixed", mixed, "up", up, "down", down, "gate_and_up", gate_and_up, "out",
                       out, "mixed_again", mixed, "head", head);
    scale = register_parameter("scale", torch::tensor(1.5));
    frozen = register_parameter("frozen", torch::ones({6}), false);
    unread = register_parameter("unread", torch::ones({3, 2}));
    nets::fill(*this);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::tanh(mixed(torch::tanh(first(x))));
    h = h + down(torch::gelu(up(h))) * scale;
    const auto halves = gate_and_up(h).chunk(2, -1);
    h = h + out(torch::silu(halves[0]) * halves[1]) + frozen;
    return F::mse_loss(head(torch::tanh(mixed(h))), y);
  }

  nn::Linear first{4, 6}, mixed{6, 6}, up{6, 10}, down{10, 6}, gate_and_up{6, 16};
  nn::Linear out{nn::LinearOptions(8, 6).bias(false)}, head{6, 1};
  Tensor scale, frozen, unread;
};

using Model = ap::AutoParallel<Net>;

inline Tensor samples(std::int64_t begin, std::int64_t end) {
  return (torch::arange(begin * 4, end * 4, torch::kDouble) * 0.7).sin().view({end - begin, 4});
}
inline Tensor targets(std::int64_t begin, std::int64_t end) {
  return (torch::arange(begin, end, torch::kDouble) * 0.3).cos().view({end - begin, 1});
}

inline constexpr std::int64_t kSamples = 4;  ///< of each rank

inline Tensor loss_on(Model& model, const ap::World& world) {
  const auto begin = world.rank() * kSamples;
  return model(samples(begin, begin + kSamples), targets(begin, begin + kSamples));
}
inline Tensor loss_of(Net& net, int ranks) {
  return net.forward(samples(0, ranks * kSamples), targets(0, ranks * kSamples));
}

struct Kind {
  std::string name;
  int ranks = 1;
  ap::Options options;
};

inline std::vector<Kind> kinds() {
  const auto replicas = [](std::vector<int> counts, int zero) {
    return ap::Options{.stages = static_cast<int>(counts.size()), .microbatches = 2, .zero = zero, .replicas = counts};
  };
  const auto shards = [](int tensor, int count, int zero) {
    ap::Options options{.stages = 1, .microbatches = 1, .zero = zero, .replicas = {count}};
    options.tensor_parallel = tensor;
    return options;
  };
  auto offloaded = replicas({2}, 1), offloaded_whole = replicas({2}, 0), offloaded_slices = shards(2, 1, 0);
  offloaded.offload = offloaded_whole.offload = offloaded_slices.offload = ap::Offload::kOptimizer;
  std::vector<Kind> all{{"one rank", 1, replicas({1}, 0)}, {"replicas", 2, replicas({2}, 0)},
                        {"zero 1", 2, replicas({2}, 1)},   {"zero 2", 3, replicas({3}, 2)},
                        {"zero 3", 2, replicas({2}, 3)},   {"stages", 2, replicas({1, 1}, 0)}};
  all.push_back({"stages and zero 1", 3, replicas({2, 1}, 1)});
  all.push_back({"stages and zero 3", 4, replicas({2, 2}, 3)});
  all.push_back({"2 slices", 2, shards(2, 1, 0)});
  all.push_back({"3 slices", 3, shards(3, 1, 0)});
  all.push_back({"2 slices of replicas", 4, shards(2, 2, 0)});
  all.push_back({"zero 1 of slices", 4, shards(2, 2, 1)});
  all.push_back({"zero 3 of slices", 4, shards(2, 2, 3)});
  all.push_back({"offload", 2, offloaded});
  all.push_back({"offload of wholes", 2, offloaded_whole});
  all.push_back({"offload of slices", 2, offloaded_slices});
  for (const int ranks : {2, 4}) all.push_back({"the planner's choice on " + std::to_string(ranks), ranks, {}});
  return all;
}

/// Under each kind of plan. The work throws where something is wrong.
inline void under_all_plans(const std::function<void(ap::World&, const Kind&)>& work) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& kind : kinds()) {
    INFO(kind.name);
    CHECK_NOTHROW(ap::loopback::run(kind.ranks, [&](ap::World& world) { work(world, kind); }));
  }
}

/// All parameters, whole, on every rank, equal `net`'s; what a rank holds are its parts of them.
inline void check_parameters(Model& model, const Net& net, const std::string& when) {
  const auto want = net.named_parameters();
  for (const auto& item : model->named_parameters()) {
    check_close(model->gather(item.value()), want[item.key()], kTolerance, when + ", gathered " + item.key());
    if (!model->owns(item.value())) continue;
    check_close(item.value(), numerics::held_part(want[item.key()], model->shard(item.value())), kTolerance,
                when + ", " + item.key());
  }
}

/// The same of gradients.
inline void check_gradients(Model& model, const Net& net, const std::string& when) {
  const auto want = net.named_parameters();
  for (const auto& item : model->named_parameters()) {
    const auto& gradient = want[item.key()].grad();
    const auto mine = model->owns(item.value()) ? numerics::held_part(gradient, model->shard(item.value())) : Tensor();
    check_close(item.value().grad(), mine, kTolerance, when + ", gradient of " + item.key());
  }
}

}  // namespace whole_plans
