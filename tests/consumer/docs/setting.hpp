#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <autopar/autopar.hpp>
#include <autopar/shard/state.hpp>
#include <autopar/training/training.hpp>

namespace ap = autopar;
namespace training = ap::training;

/// What the README's program and the guide's snippets train, and a model that gives rows where that one gives its loss.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int64_t classes) : first(width, classes), second(classes, classes) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::nn::functional::cross_entropy(second(torch::relu(first(x))), y);
  }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

struct RowsImpl : torch::nn::Module {
  RowsImpl() { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{64, 10};
};
TORCH_MODULE(Rows);

using Loader = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

/// What the README's program takes its batches from.
inline Loader loader = [] {
  Loader batches;
  for (int i = 0; i < 3; ++i) batches.emplace_back(torch::randn({4, 5000}), torch::zeros({4}, torch::kLong));
  return batches;
}();

#define SETTING                                                                                   \
  [[maybe_unused]] ap::World &world, [[maybe_unused]] ap::AutoParallel<Net>&model,                \
      [[maybe_unused]] ap::AutoParallel<Rows>&classifier, [[maybe_unused]] ap::optim::AdamW &opt, \
      [[maybe_unused]] const torch::Tensor &x, [[maybe_unused]] const torch::Tensor &y,           \
      [[maybe_unused]] Loader &loader, [[maybe_unused]] const ap::Groups &groups
