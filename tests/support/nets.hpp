#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

/// Small nets that several tests train. A test names sizes and layers; what else it needs, it derives.
namespace nets {

using torch::Tensor;

/// To be held while a module is seeded and made: the default generator is one for all threads of a process.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// What `make()` draws from this seed, whatever other threads draw.
template <class Make>
auto seeded(std::uint64_t seed, const Make& make) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return make();
}

/// A net of this seed, whatever other threads draw.
template <class Net, class... Arguments>
std::shared_ptr<Net> made(std::uint64_t seed, const Arguments&... arguments) {
  return seeded(seed, [&] { return std::make_shared<Net>(arguments...); });
}

/// What is computed between two layers, element by element.
using Activation = std::function<Tensor(const Tensor&)>;

/// Registers layers under their names: `register_all(*this, "first", first, "second", second)`.
template <class Part, class... Rest>
void register_all(torch::nn::Module& net, const char* name, const Part& part, const Rest&... rest) {
  net.register_module(name, part);
  if constexpr (sizeof...(rest) > 0) register_all(net, rest...);
}

/// Values by sines, which draw nothing: ranks that are threads share a generator.
inline void fill(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : net.parameters()) {
    const auto places = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((places * 1.7 + ++phase).sin().mul(0.5).view_as(parameter));
  }
}

/// A linear layer: the name that it is registered under, and what it makes.
struct Layer {
  std::string name;
  std::int64_t width;
  bool has_bias = true;
};

/// `count` layers of one width: `name`0, `name`1, …
inline std::vector<Layer> repeated(const std::string& name, int count, std::int64_t width) {
  std::vector<Layer> chain;
  for (int i = 0; i < count; ++i) chain.push_back({name + std::to_string(i), width});
  return chain;
}

/// Linear layers with an activation between any two: [n, inputs] to [n, width of the last].
struct Linears : torch::nn::Module {
  Linears(std::int64_t inputs, const std::vector<Layer>& chain, Activation between_them = torch::tanh)
      : between(std::move(between_them)) {
    append(inputs, chain);
  }
  Tensor forward(const Tensor& x) {
    auto h = layers.front()(x);
    for (std::size_t i = 1; i < layers.size(); ++i) h = layers[i](between(h));
    return h;
  }
  Activation between;
  std::vector<torch::nn::Linear> layers;

 protected:
  explicit Linears(Activation between_them) : between(std::move(between_them)) {}
  void append(std::int64_t inputs, const std::vector<Layer>& chain) {
    for (const auto& [name, width, has_bias] : chain) {
      layers.push_back(
          register_module(name, torch::nn::Linear(torch::nn::LinearOptions(inputs, width).bias(has_bias))));
      inputs = width;
    }
  }
};

/// A `table` in front of linear layers, of which a test says how they get its rows.
struct Tabled : Linears {
  /// @param rows  of the table that the first layer reads side by side
  Tabled(const torch::nn::EmbeddingOptions& options, std::int64_t rows, const std::vector<Layer>& chain,
         Activation between_them = torch::tanh)
      : Linears(std::move(between_them)), table(register_module("table", torch::nn::Embedding(options))) {
    append(rows * options.embedding_dim(), chain);
  }
  torch::nn::Embedding table;
};

/// Linear layers of one width, in a list of modules `layers`; a test writes down what they make.
struct LayerList : torch::nn::Module {
  LayerList(std::int64_t count, std::int64_t width, bool has_bias = true) {
    torch::nn::ModuleList list;
    for (std::int64_t i = 0; i < count; ++i) {
      layers.emplace_back(torch::nn::LinearOptions(width, width).bias(has_bias));
      list->push_back(layers.back());
    }
    register_module("layers", list);
  }
  std::vector<torch::nn::Linear> layers;
};

/// Linear layers `a`, of [n, inputs] to [n, hidden], and `b`, to [n, outputs]; a test writes down what they make.
struct TwoLinears : torch::nn::Module {
  TwoLinears(std::int64_t inputs, std::int64_t hidden, std::int64_t outputs) : a(inputs, hidden), b(hidden, outputs) {
    register_all(*this, "a", a, "b", b);
  }
  torch::nn::Linear a, b;
};

/// A module `net` of layers in a row. Its maker writes them in braces, which alone say the order of their draws.
struct Sequence : torch::nn::Module {
  explicit Sequence(const torch::nn::Sequential& layers) : net(register_module("net", layers)) {}
  Tensor forward(const Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net;
};

/// Two linear layers `a` and `b`, with a batch norm and relu between: [n, inputs] to [n, outputs].
struct BatchNormed : torch::nn::Module {
  BatchNormed(std::int64_t inputs, const torch::nn::BatchNorm1dOptions& options, std::int64_t outputs)
      : a(inputs, options.num_features()), norm(options), b(options.num_features(), outputs) {
    register_all(*this, "a", a, "norm", norm, "b", b);
  }
  Tensor forward(const Tensor& x) { return b(torch::relu(norm(a(x)))); }
  torch::nn::Linear a;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear b;
};

/// A recurrent layer between a table and a linear layer: ids [n, time] to [n, outputs], of the mean over time.
/// @pre the layer is batch first
template <class Cells, class CellsOptions>
struct Recurrent : torch::nn::Module {
  Recurrent(std::int64_t words, const CellsOptions& options, std::int64_t outputs)
      : table(words, options.input_size()),
        layer(options),
        last(options.hidden_size() * (options.bidirectional() ? 2 : 1), outputs) {
    register_all(*this, "table", table, "layer", layer, "last", last);
  }
  Tensor forward(const Tensor& ids) { return last(std::get<0>(layer(table(ids))).mean(1)); }
  torch::nn::Embedding table;
  Cells layer;
  torch::nn::Linear last;
};

/// Random parameters p0, p1, … of these sizes, for forwards that a test writes down itself.
struct Parameters : torch::nn::Module {
  explicit Parameters(const std::vector<std::vector<std::int64_t>>& sizes, at::ScalarType type = torch::kDouble) {
    for (const auto& each : sizes)
      p.push_back(register_parameter("p" + std::to_string(p.size()), torch::randn(each, type)));
  }
  std::vector<Tensor> p;
};

/// A parameter `weight` of these sizes whose elements are 0, 1, 2, …, in double precision.
struct CountedWeight : torch::nn::Module {
  explicit CountedWeight(const std::vector<std::int64_t>& sizes)
      : weight(register_parameter("weight",
                                  torch::arange(c10::multiply_integers(sizes)).to(torch::kDouble).view(sizes))) {}
  Tensor weight;
};

/// `Net` with a loss for its end: the mean of its squared results.
template <class Net>
struct MeanSquare : Net {
  using Net::Net;
  Tensor forward(const Tensor& x) { return Net::forward(x).pow(2).mean(); }
};

/// `Net` with a loss for its end: the cross entropy of its results, as logits [n, classes], against y [n].
template <class Net>
struct CrossEntropy : Net {
  using Net::Net;
  Tensor forward(const Tensor& x, const Tensor& y) { return torch::nn::functional::cross_entropy(Net::forward(x), y); }
};

}  // namespace nets
