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

namespace ap = autopar;

/// What the guide's snippets take from its first program, and a model that gives rows where that one gives its loss.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int64_t classes) : layer(width, classes) { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::nn::functional::cross_entropy(layer(x), y);
  }
  torch::nn::Linear layer;
};
TORCH_MODULE(Net);

struct RowsImpl : torch::nn::Module {
  RowsImpl() { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{64, 10};
};
TORCH_MODULE(Rows);

using Loader = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

#define SETTING                                                                                   \
  [[maybe_unused]] ap::World &world, [[maybe_unused]] ap::AutoParallel<Net>&model,                \
      [[maybe_unused]] ap::AutoParallel<Rows>&classifier, [[maybe_unused]] ap::optim::AdamW &opt, \
      [[maybe_unused]] const torch::Tensor &x, [[maybe_unused]] const torch::Tensor &y,           \
      [[maybe_unused]] Loader &loader, [[maybe_unused]] const ap::Groups &groups
