// Trains three models on two ranks, with operators joined and not, and prints every bit of their losses and parameters:
// the same text with and without the library's kernels (AUTOPAR_KERNELS), as CPUs have none of them.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

namespace {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

struct Images : nn::Module {
  Images() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto pooled = F::max_pool2d(torch::relu(norm(first(x))), F::MaxPool2dFuncOptions(2));
    return F::cross_entropy(head(pooled.flatten(1)), y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, 3, 8, 8}), torch::randint(10, {n})};
  }
  nn::Conv2d first{nn::Conv2dOptions(3, 8, 3).padding(1)};
  nn::BatchNorm2d norm{8};
  nn::Linear head{8 * 4 * 4, 10};
};

struct Words : nn::Module {
  static constexpr std::int64_t kWidth = 16, kHeads = 4, kWords = 40;
  Words() {
    register_module("table", table);
    register_module("parts", parts);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
    register_module("before", before);
    register_module("behind", behind);
    register_module("head", head);
    register_module("drop", drop);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto read = table(x);
    const auto three =
        parts(before(read)).view({x.size(0), x.size(1), 3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = at::scaled_dot_product_attention(three[0], three[1], three[2]).transpose(1, 2).flatten(2);
    const auto sum = read + drop(out(mixed));
    const auto next = sum + drop(down(F::gelu(up(behind(sum)))));
    return F::cross_entropy(head(next).flatten(0, 1), y.flatten());
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randint(kWords, {n, 6}), torch::randint(kWords, {n, 6})};
  }
  nn::Embedding table{kWords, kWidth};
  nn::Linear parts{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 32}, down{32, kWidth}, head{kWidth, kWords};
  nn::LayerNorm before{nn::LayerNormOptions({kWidth})}, behind{nn::LayerNormOptions({kWidth})};
  nn::Dropout drop{0.1};
};

struct Gates : nn::Module {
  Gates() {
    register_module("up", up);
    register_module("gate", gate);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    return F::mse_loss(down(torch::silu(gate(x)) * torch::tanh(up(x)) + 0.5), y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 12}), torch::randn({n, 12})}; }
  nn::Linear up{12, 24}, gate{12, 24}, down{24, 12};
};

std::mutex one_generator;

std::uint64_t hash_of(const Tensor& tensor, std::uint64_t hash) {
  const auto bytes = tensor.detach().contiguous();
  const auto* data = static_cast<const unsigned char*>(bytes.const_data_ptr());
  for (std::size_t i = 0; i < bytes.nbytes(); ++i) hash = (hash ^ data[i]) * 0x100000001b3ULL;
  return hash;
}

template <class Net>
void train(const char* name, const ap::Options& options) {
  ap::loopback::run(2, [&](ap::World& world) {
    const auto [net, x, y] = [] {
      const std::lock_guard lock(one_generator);
      torch::manual_seed(7);
      auto made = std::make_shared<Net>();
      auto [samples, targets] = Net::batch(8);
      return std::tuple(made, samples, targets);
    }();
    ap::AutoParallel<Net> model(world, net, options);
    ap::optim::AdamW optimizer(model->parameters(), ap::optim::AdamWOptions(1e-2));
    model->attach(optimizer);
    const auto mine = [&](const Tensor& all) { return all.chunk(2)[static_cast<std::size_t>(world.rank())]; };
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto loss = model(mine(x), mine(y));
      loss.backward();
      optimizer.step();
      hash = hash_of(loss, hash);
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) hash = hash_of(item.value(), hash);
    std::printf("%s, precision %s, fusion %s, stages %d: %016llx\n", name, ap::option_text(options.precision).c_str(),
                ap::option_text(options.fusion).c_str(), options.stages, static_cast<unsigned long long>(hash));
  });
}

template <class Net>
void train_all(const char* name) {
  for (const ap::Precision precision : {ap::Precision::kModule, ap::Precision::kBf16}) {
    for (const ap::Switch fusion : {ap::Switch::kOff, ap::Switch::kOn}) {
      for (const int stages : {1, 2}) {
        ap::Options options;
        options.precision = precision;
        options.fusion = fusion;
        options.stages = stages;
        train<Net>(name, options);
      }
    }
  }
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  train_all<Images>("images");
  train_all<Words>("words");
  train_all<Gates>("gates");
  return 0;
}
