#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <autopar/autopar.hpp>

/// Random trainings of which the memory is predicted and measured: models of several families whose tensors are large
/// beside everything else, options, optimizers. A number gives the same case every time.
namespace memory_cases {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

enum class Family { kPerceptron, kConvolution, kTransformer, kTable };
enum class Norm { kNone, kLayer, kBatch };

struct Recipe {
  Family family = Family::kPerceptron;
  int64_t width = 256, depth = 3, length = 16;  ///< length: of a sequence, side of an image
  int64_t classes = 256;                        ///< also the rows of tables
  Norm norm = Norm::kNone;
  bool dropout = false, tied = false, frozen = false, fused_attention = false;
  bool returns_outputs = false;  ///< in place of a loss
};

/// One module for all recipes.
struct Net : nn::Module {
  explicit Net(const Recipe& made_from) : recipe(made_from) {
    const auto w = recipe.width;
    switch (recipe.family) {
      case Family::kPerceptron: {
        for (int64_t i = 0; i < recipe.depth; ++i) add_linear(w, w);
        if (!recipe.tied) add_linear(w, recipe.classes);
        break;
      }
      case Family::kConvolution: {
        for (int64_t i = 0; i < recipe.depth; ++i) {
          const int64_t kernel = i % 2 == 0 ? 3 : 5;
          convolutions.push_back(
              register_module("conv" + std::to_string(i),
                              nn::Conv2d(nn::Conv2dOptions(i == 0 ? 3 : w, w, kernel).padding(kernel / 2))));
          if (recipe.norm == Norm::kBatch)
            batch_norms_2d.push_back(register_module("norm" + std::to_string(i), nn::BatchNorm2d(w)));
        }
        add_linear(w * (recipe.length / 4) * (recipe.length / 4), recipe.classes);
        break;
      }
      case Family::kTransformer: {
        table = register_module("table", nn::Embedding(recipe.classes, w));
        for (int64_t i = 0; i < recipe.depth; ++i) {
          for (const auto& [from, to] : {std::pair{w, 3 * w}, {w, w}, {w, 4 * w}, {4 * w, w}}) add_linear(from, to);
          for (int j = 0; j < 2; ++j) add_layer_norm(w);
        }
        if (!recipe.tied) add_linear(w, recipe.classes);
        break;
      }
      case Family::kTable: {
        table = register_module("table", nn::Embedding(recipe.classes, w));
        for (int64_t i = 0; i < recipe.depth; ++i) add_linear(w, w);
        if (!recipe.tied) add_linear(w, recipe.classes);
        break;
      }
    }
    if (recipe.family == Family::kPerceptron && recipe.norm != Norm::kNone) {
      for (int64_t i = 0; i < recipe.depth; ++i) {
        if (recipe.norm == Norm::kLayer)
          add_layer_norm(w);
        else
          batch_norms.push_back(register_module("norm" + std::to_string(i), nn::BatchNorm1d(w)));
      }
    }
    if (recipe.frozen) parameters().front().set_requires_grad(false);
  }

  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto out = outputs(x);
    return recipe.returns_outputs ? out : F::cross_entropy(out, y);
  }

  Recipe recipe;
  std::vector<nn::Linear> linears;
  std::vector<nn::Conv2d> convolutions;
  std::vector<nn::BatchNorm2d> batch_norms_2d;
  std::vector<nn::BatchNorm1d> batch_norms;
  std::vector<nn::LayerNorm> layer_norms;
  nn::Embedding table{nullptr};

 private:
  void add_linear(int64_t from, int64_t to) {
    linears.push_back(register_module("linear" + std::to_string(linears.size()), nn::Linear(from, to)));
  }
  void add_layer_norm(int64_t width) {
    layer_norms.push_back(register_module("layer_norm" + std::to_string(layer_norms.size()),
                                          nn::LayerNorm(nn::LayerNormOptions({width}))));
  }
  Tensor dropped(const Tensor& x) {
    return recipe.dropout ? F::dropout(x, F::DropoutFuncOptions().p(0.1).training(true)) : x;
  }

  Tensor outputs(const Tensor& x) {
    switch (recipe.family) {
      case Family::kPerceptron:
        return perceptron(x);
      case Family::kConvolution:
        return convolution(x);
      case Family::kTransformer:
        return transformer(x);
      case Family::kTable:
        return tabled(x);
    }
    return {};
  }
  Tensor perceptron(Tensor x) {
    for (size_t i = 0; i < static_cast<size_t>(recipe.depth); ++i) {
      x = linears[i](x);
      if (recipe.norm == Norm::kLayer) x = layer_norms[i](x);
      if (recipe.norm == Norm::kBatch) x = batch_norms[i](x);
      x = dropped(i % 2 == 0 ? torch::relu(x) : torch::gelu(x));
    }
    return recipe.tied ? linears.front()(x) : linears.back()(x);
  }
  Tensor convolution(Tensor x) {
    for (size_t i = 0; i < convolutions.size(); ++i) {
      x = convolutions[i](x);
      if (recipe.norm == Norm::kBatch) x = batch_norms_2d[i](x);
      x = torch::relu(x);
      if (i < 2) x = F::max_pool2d(x, F::MaxPool2dFuncOptions(2));
    }
    return linears.back()(dropped(x.flatten(1)));
  }
  Tensor transformer(const Tensor& ids) {
    auto x = dropped(table(ids));
    for (int64_t i = 0; i < recipe.depth; ++i) x = block(x, static_cast<size_t>(i));
    const auto flat = x.select(1, -1);
    return recipe.tied ? F::linear(flat, table->weight) : linears.back()(flat);
  }
  Tensor block(Tensor x, size_t i) {
    constexpr int64_t kHeads = 4;
    const auto n = x.size(0), s = x.size(1), w = recipe.width;
    const auto qkv =
        linears[4 * i](layer_norms[2 * i](x)).view({n, s, 3, kHeads, w / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    Tensor mixed;
    if (recipe.fused_attention) {
      mixed = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
    } else {
      const auto scores = torch::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(w / kHeads));
      mixed = torch::matmul(dropped(torch::softmax(scores, -1)), qkv[2]);
    }
    x = x + dropped(linears[4 * i + 1](mixed.transpose(1, 2).reshape({n, s, w})));
    return x + dropped(linears[4 * i + 3](torch::gelu(linears[4 * i + 2](layer_norms[2 * i + 1](x)))));
  }
  Tensor tabled(const Tensor& ids) {
    auto x = table(ids).mean(1);
    for (size_t i = 0; i < static_cast<size_t>(recipe.depth); ++i) x = dropped(torch::tanh(linears[i](x)));
    return recipe.tied ? F::linear(x, table->weight) : linears.back()(x);
  }
};

enum class Stepper { kSgd, kMomentum, kRmsProp, kAdagrad, kAdam, kAdamW, kFusedSgd, kFusedAdamW, kLamb };

inline std::unique_ptr<torch::optim::Optimizer> made(Stepper kind, const std::vector<Tensor>& parameters) {
  namespace optim = torch::optim;
  switch (kind) {
    case Stepper::kSgd:
      return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.01));
    case Stepper::kMomentum:
      return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.01).momentum(0.9));
    case Stepper::kRmsProp:
      return std::make_unique<optim::RMSprop>(parameters, optim::RMSpropOptions(1e-3));
    case Stepper::kAdagrad:
      return std::make_unique<optim::Adagrad>(parameters, optim::AdagradOptions(1e-3));
    case Stepper::kAdam:
      return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(1e-3));
    case Stepper::kAdamW:
      return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(1e-3));
    case Stepper::kFusedSgd:
      return std::make_unique<autopar::optim::SGD>(parameters, optim::SGDOptions(0.01).momentum(0.9));
    case Stepper::kFusedAdamW:
      return std::make_unique<autopar::optim::AdamW>(parameters, optim::AdamWOptions(1e-3));
    case Stepper::kLamb:
      return std::make_unique<autopar::optim::LAMB>(parameters, autopar::optim::LAMBOptions(1e-3));
  }
  return nullptr;
}

/// How calls are added up for one step.
enum class Accumulation { kNone, kInGrad, kUnsynchronised };

struct Case {
  int number = 0;
  Recipe recipe;
  int ranks = 1;
  int64_t batch = 0;  ///< of all ranks
  autopar::Options options;
  Stepper stepper = Stepper::kSgd;
  Accumulation accumulation = Accumulation::kNone;
  double cap = 1;  ///< memory of a rank, as a part of what one process takes

  [[nodiscard]] std::string describe() const {
    constexpr const char* kFamilies[] = {"perceptron", "convolution", "transformer", "table"};
    constexpr const char* kNorms[] = {"", ", layer norm", ", batch norm"};
    constexpr const char* kSteppers[] = {"sgd",   "momentum",  "rmsprop",     "adagrad", "adam",
                                         "adamw", "fused sgd", "fused adamw", "lamb"};
    constexpr const char* kAccumulations[] = {"", ", accumulates", ", no_sync"};
    std::ostringstream out;
    out << "case " << number << ": " << kFamilies[static_cast<int>(recipe.family)] << " width " << recipe.width
        << " depth " << recipe.depth << " length " << recipe.length << " classes " << recipe.classes
        << kNorms[static_cast<int>(recipe.norm)] << (recipe.dropout ? ", dropout" : "") << (recipe.tied ? ", tied" : "")
        << (recipe.frozen ? ", frozen" : "") << (recipe.fused_attention ? ", fused attention" : "")
        << (recipe.returns_outputs ? ", outputs" : "") << "; " << ranks << " ranks, batch " << batch << ", stages "
        << options.stages << ", micro-batches " << options.microbatches << ", "
        << autopar::option_text(options.schedule) << ", zero " << options.zero << ", recompute "
        << autopar::option_text(options.recompute) << ", shards " << options.tensor_parallel << ", "
        << kSteppers[static_cast<int>(stepper)] << kAccumulations[static_cast<int>(accumulation)] << ", memory " << cap;
    return out.str();
  }
};

/// Arguments for all ranks' samples.
inline std::pair<Tensor, Tensor> batch_of(const Case& one) {
  const auto& recipe = one.recipe;
  const auto n = one.batch;
  const auto labels = torch::arange(n, torch::kLong).remainder(recipe.classes);
  switch (recipe.family) {
    case Family::kPerceptron:
      return {torch::ones({n, recipe.width}), labels};
    case Family::kConvolution:
      return {torch::ones({n, 3, recipe.length, recipe.length}), labels};
    default:
      return {torch::arange(n * recipe.length, torch::kLong).remainder(recipe.classes).view({n, recipe.length}),
              labels};
  }
}

/// Draws with a generator whose numbers are the same everywhere.
class Draws {
 public:
  explicit Draws(int number) : generator_(static_cast<std::uint32_t>(number) * 7919u + 17u) {
    for (int i = 0; i < 8; ++i) static_cast<void>(generator_());
  }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[generator_() % choices.size()];
  }
  bool one_in(unsigned n) { return generator_() % n == 0; }
  double uniform(double low, double high) { return low + (high - low) * (generator_() / 4294967296.0); }

 private:
  std::mt19937 generator_;
};

inline Recipe draw_recipe(Draws& draws) {
  Recipe recipe;
  recipe.family =
      draws.of({Family::kPerceptron, Family::kPerceptron, Family::kConvolution, Family::kTransformer, Family::kTable});
  recipe.dropout = draws.one_in(3);
  recipe.tied = draws.one_in(5);
  recipe.frozen = draws.one_in(6);
  recipe.returns_outputs = draws.one_in(5);
  recipe.fused_attention = draws.one_in(2);
  recipe.norm = draws.of({Norm::kNone, Norm::kLayer, Norm::kBatch});
  switch (recipe.family) {
    case Family::kPerceptron:
      recipe.width = recipe.classes = draws.of<int64_t>({256, 384, 512, 768});
      recipe.depth = draws.of<int64_t>({3, 4, 6, 8});
      if (!recipe.tied) recipe.classes = draws.of<int64_t>({128, 512, 1024});
      break;
    case Family::kConvolution:
      recipe.width = draws.of<int64_t>({16, 32, 48});
      recipe.depth = draws.of<int64_t>({2, 3, 5});
      recipe.length = draws.of<int64_t>({16, 24, 32});
      break;
    case Family::kTransformer:
      recipe.width = draws.of<int64_t>({64, 128, 192});
      recipe.depth = draws.of<int64_t>({1, 2, 3});
      recipe.length = draws.of<int64_t>({16, 32, 48});
      recipe.classes = draws.of<int64_t>({512, 2048});
      break;
    case Family::kTable:
      recipe.width = draws.of<int64_t>({128, 256, 384});
      recipe.depth = draws.of<int64_t>({2, 4});
      recipe.classes = draws.of<int64_t>({1024, 4096});
      break;
  }
  return recipe;
}

inline Case draw(int number) {
  Draws draws(number);
  Case one;
  one.number = number;
  one.recipe = draw_recipe(draws);
  one.ranks = draws.of({1, 2, 2, 3, 4, 4});
  const auto samples = one.recipe.family == Family::kPerceptron ? draws.of<int64_t>({32, 64, 128, 256})
                       : one.recipe.family == Family::kTable    ? draws.of<int64_t>({32, 96})
                                                                : draws.of<int64_t>({4, 8, 16});
  one.batch = samples * one.ranks;
  one.stepper = draws.of({Stepper::kSgd, Stepper::kMomentum, Stepper::kMomentum, Stepper::kRmsProp, Stepper::kAdagrad,
                          Stepper::kAdam, Stepper::kAdamW, Stepper::kFusedSgd, Stepper::kFusedAdamW, Stepper::kLamb});
  if (one.recipe.frozen && one.stepper == Stepper::kAdagrad) {  // which makes state for what it never steps, too
    one.stepper = Stepper::kRmsProp;
  }
  if (draws.one_in(5)) one.accumulation = draws.of({Accumulation::kInGrad, Accumulation::kUnsynchronised});
  auto& options = one.options;
  options.gradient_accumulation = one.accumulation != Accumulation::kNone;
  options.microbatches = draws.of({0, 0, 1, 2, 4});
  options.zero = draws.of({-1, -1, 0, 1, 2, 3});
  options.recompute = draws.of({autopar::Recompute::kToFit, autopar::Recompute::kToFit, autopar::Recompute::kNever,
                                autopar::Recompute::kAlways});
  options.schedule = draws.of<std::optional<autopar::ScheduleKind>>(
      {std::nullopt, std::nullopt, autopar::ScheduleKind::kGPipe, autopar::ScheduleKind::kOneFOneB,
       autopar::ScheduleKind::kZbH1, autopar::ScheduleKind::kInterleaved, autopar::ScheduleKind::kZbV,
       autopar::ScheduleKind::kSynthesised});
  options.stages = draws.one_in(2) ? 0 : 1 + static_cast<int>(draws.uniform(0, one.ranks));
  one.cap = std::exp(draws.uniform(std::log(0.1), std::log(1.5)));
  return one;
}

/// The same with gradients that are sent in bf16, on several ranks.
inline Case draw_rounded(int number) {
  Case one = draw(number);
  one.batch = one.batch / one.ranks * std::max(2, one.ranks);
  one.ranks = std::max(2, one.ranks);
  one.options.reduce_dtype = autopar::ReduceDtype::kBf16;
  return one;
}

/// The same in tensor shards, on two ranks or four.
inline Case draw_in_shards(int number) {
  Case one = draw(number);
  one.recipe.tied = one.recipe.returns_outputs = false;  // there is a class head
  const auto samples = one.batch / one.ranks;
  one.ranks = one.ranks % 2 == 0 ? one.ranks : 4;
  one.batch = samples * one.ranks;
  one.options.tensor_parallel = number % 3 == 0 ? one.ranks : 2;
  one.options.sequence_parallel = number % 2 == 0 ? autopar::Switch::kOn : autopar::Switch::kAuto;
  one.options.stages = std::min(one.options.stages, one.ranks / one.options.tensor_parallel);
  one.cap *= 1.5;
  return one;
}

}  // namespace memory_cases
