#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Arguments that number samples: positions within each rank's batch, or in the global one.
namespace local_indices_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int kSteps = 2;

/// One rank's part of a step. `numbers` count from this rank's first sample.
struct Batch {
  Tensor x, numbers, y;
};

Tensor random_numbers(int64_t below, at::IntArrayRef sizes) {
  return below == 0 ? torch::empty(sizes, torch::kLong) : torch::randint(below, sizes, torch::kLong);
}

/// Two rounds of messages from three neighbours each, of graphs whose nodes are the samples.
struct GraphNet : nn::Module {
  GraphNet() { nets::register_all(*this, "embed", embed, "pass", pass, "head", head); }
  Tensor forward(const Tensor& x, const Tensor& neighbours, const Tensor& y) {
    auto h = torch::tanh(embed(x));
    h = torch::tanh(pass(h + h.index({neighbours}).mean(1)));
    const auto messages = h.index_select(0, neighbours.flatten()).view({-1, 3, 6}).sum(1);
    return F::mse_loss(head(h + messages), y);
  }
  static Tensor loss(auto& model, const Batch& batch) { return model(batch.x, batch.numbers, batch.y); }
  static Batch batch(int64_t n) { return {torch::randn({n, 4}), random_numbers(n, {n, 3}), torch::randn({n, 2})}; }
  static constexpr int kPosition = 1;
  static constexpr const char* kPicker = "aten::index";
  nn::Linear embed{4, 6}, pass{6, 6}, head{6, 2};
};

/// CLIP's loss: row i of the logits belongs to the other view's label i.
struct ContrastiveNet : nn::Module {
  ContrastiveNet() { nets::register_all(*this, "image", image, "text", text); }
  Tensor forward(const Tensor& x) {
    const auto a = F::normalize(torch::tanh(image(x))), b = F::normalize(torch::tanh(text(x.flip(1))));
    return torch::matmul(a, b.t()) / 0.2;
  }
  static Tensor of_logits(const Tensor& logits, const Tensor& labels) {
    return (F::cross_entropy(logits, labels) + F::cross_entropy(logits.t(), labels)) / 2;
  }
  static Tensor loss(std::shared_ptr<ContrastiveNet>& net, const Batch& batch) {
    return of_logits(net->forward(batch.x), batch.numbers);
  }
  template <class Model>
  static Tensor loss(Model& model, const Batch& batch) {
    return model->train_step(&ContrastiveNet::of_logits, batch.x, batch.numbers);
  }
  static Batch batch(int64_t n) { return {torch::randn({n, 4}), torch::arange(n), torch::randn({n, 1})}; }
  static constexpr int kPosition = 1;
  static constexpr const char* kPicker = "aten::cross_entropy_loss";
  nn::Linear image{4, 6}, text{4, 6};
};

/// Mixup: each sample is mixed with the one that a permutation names, -1 in a target weighs nothing.
struct MixNet : nets::Linears {
  MixNet() : Linears(4, {{"first", 6}, {"second", 3}}) {}
  Tensor forward(const Tensor& permutation, const Tensor& x, const Tensor& y) {
    const auto mixed = 0.7 * x + 0.3 * x.index({permutation});
    const auto out = Linears::forward(mixed);
    return 0.7 * F::cross_entropy(out, y) + 0.3 * F::cross_entropy(out, y.index_select(0, permutation));
  }
  static Tensor loss(auto& model, const Batch& batch) { return model(batch.numbers, batch.x, batch.y); }
  static Batch batch(int64_t n) { return {torch::randn({n, 4}), torch::randperm(n), torch::randint(3, {n})}; }
  static constexpr int kPosition = 0;
  static constexpr const char* kPicker = "aten::index";
};

/// As a module that is called with its arguments, as an AutoParallel is.
template <class Net>
struct Called {
  std::shared_ptr<Net> net;
  Tensor operator()(const Tensor& a, const Tensor& b, const Tensor& c) { return net->forward(a, b, c); }
};

template <class Net>
std::shared_ptr<Net> made() {
  return nets::made<Net>(5);
}

using Sizes = std::vector<int64_t>;

/// [step][rank]
template <class Net>
std::vector<std::vector<Batch>> batches(const Sizes& local) {
  const std::lock_guard lock(numerics::generator_mutex());
  torch::manual_seed(7);
  std::vector<std::vector<Batch>> all(kSteps);
  for (auto& step : all) {
    for (const auto n : local) step.push_back(Net::batch(n));
  }
  return all;
}

Batch joined(const std::vector<Batch>& parts) {
  std::vector<Tensor> x, numbers, y;
  int64_t first = 0;
  for (const auto& part : parts) {
    x.push_back(part.x);
    numbers.push_back(part.numbers + first);
    y.push_back(part.y);
    first += part.x.size(0);
  }
  return {torch::cat(x), torch::cat(numbers), torch::cat(y)};
}

struct Reference {
  std::vector<Tensor> losses;
  numerics::Snapshot parameters;
};

template <class Net>
Reference one_process(const std::vector<std::vector<Batch>>& batches) {
  Reference reference;
  auto net = made<Net>();
  auto optimizers = numerics::make_optimizers(numerics::Optimizer::kSgd, net->parameters());
  const auto& optimizer = optimizers.front();
  for (const auto& step : batches) {
    optimizer->zero_grad();
    Tensor loss;
    if constexpr (requires { net->forward(Tensor(), Tensor(), Tensor()); }) {
      Called<Net> called{net};
      loss = Net::loss(called, joined(step));
    } else {
      loss = Net::loss(net, joined(step));
    }
    loss.backward();
    optimizer->step();
    reference.losses.push_back(loss.detach());
  }
  reference.parameters = numerics::copies_of(net->named_parameters());
  return reference;
}

enum class Counting { kOption, kFirstSample, kWrong };

/// Trains on all ranks. @return the lines of rank 0's log
template <class Net>
std::vector<std::string> train(ap::Options options, const Sizes& local, Counting counting) {
  torch::set_num_threads(1);
  const auto parts = batches<Net>(local);
  const auto reference = one_process<Net>(parts);
  std::vector<std::string> lines;
  if (counting == Counting::kOption) options.local_indices = {Net::kPosition};
  ap::loopback::run(static_cast<int>(local.size()), [&](ap::World& world) {
    if (world.rank() == 0) world.log().set_writer([&](const std::string& line) { lines.push_back(line); });
    ap::AutoParallel<std::shared_ptr<Net>> model(world, made<Net>(), options);
    auto optimizers = numerics::make_optimizers(numerics::Optimizer::kSgd, model->parameters());
    const auto& optimizer = optimizers.front();
    model->attach(*optimizer);
    for (size_t step = 0; step < parts.size(); ++step) {
      optimizer->zero_grad();
      auto batch = parts[step][static_cast<size_t>(world.rank())];
      const auto given = batch.numbers.clone();
      if (counting == Counting::kFirstSample) batch.numbers = batch.numbers + ap::first_sample(world, batch.x.size(0));
      auto loss = Net::loss(model, batch);
      loss.backward();
      optimizer->step();
      if (counting == Counting::kWrong) continue;
      check_close(loss, reference.losses[step], kTolerance, "loss of step " + std::to_string(step));
      if (counting == Counting::kOption && !batch.numbers.equal(given))
        throw numerics::Failure("the argument was written");
    }
    const auto state = model->gather_state();
    for (const auto& item : state) {
      if (counting != Counting::kWrong)
        check_close(item.value(), numerics::find(reference.parameters, item.key()), kTolerance, item.key());
    }
  });
  return lines;
}

int warnings(const std::vector<std::string>& lines) {
  return static_cast<int>(std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("Options::local_indices = {") != std::string::npos;
  }));
}

struct Layout {
  std::string name;
  ap::Options options;
  Sizes local;
};

std::vector<Layout> layouts() {
  return {{"one rank", {}, {5}},
          {"the planner's choice", {}, {4, 3}},
          {"the planner's choice, an empty rank", {}, {3, 0, 4}},
          {"the planner's choice, the first rank empty", {}, {0, 5, 2}},
          {"the planner's choice, four ranks", {}, {2, 5, 1, 3}},
          {"two stages", {.stages = 2}, {3, 5}},
          {"two stages, four ranks", {.stages = 2}, {2, 0, 5, 3}},
          {"tensor slices", {.stages = 1, .tensor_parallel = 2}, {4, 5}},
          {"ZeRO 1", {.zero = 1}, {4, 5}},
          {"ZeRO 3", {.zero = 3}, {4, 5, 2}}};
}

template <class Net>
void check_all_plans() {
  for (const auto& layout : layouts()) {
    for (const auto counting : {Counting::kOption, Counting::kFirstSample}) {
      INFO(layout.name << (counting == Counting::kOption ? ", option" : ", first_sample"));
      std::vector<std::string> lines;
      CHECK_NOTHROW(lines = train<Net>(layout.options, layout.local, counting));
      CHECK((counting == Counting::kFirstSample || warnings(lines) == 0));
    }
  }
}

TEST_CASE("local indices of graph edges: equal one process") {
  const DoublePrecision fp64;
  check_all_plans<GraphNet>();
}
TEST_CASE("local contrastive labels: equal one process") {
  const DoublePrecision fp64;
  check_all_plans<ContrastiveNet>();
}
TEST_CASE("local sample permutation: equals one process") {
  const DoublePrecision fp64;
  check_all_plans<MixNet>();
}

template <class Net>
void check_warning() {
  for (const Sizes& local : {Sizes{6, 7}, Sizes{5, 0, 6}, Sizes{0, 6, 5}}) {
    const auto lines = train<Net>({}, local, Counting::kWrong);
    REQUIRE(warnings(lines) == 1);
    const auto said = *std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("Options::local_indices = {") != std::string::npos;
    });
    for (const auto& word : {"Options::local_indices = {" + std::to_string(Net::kPosition) + "}",
                             std::string("ap::first_sample(world, n)"), std::string(Net::kPicker)})
      CHECK(said.find(word) != std::string::npos);
  }
}

TEST_CASE("suspected local indices: are warned of once") {
  const DoublePrecision fp64;
  check_warning<GraphNet>();
  check_warning<ContrastiveNet>();
  check_warning<MixNet>();
}

TEST_CASE("global indices, one rank, class labels: give no warning") {
  const DoublePrecision fp64;
  CHECK(warnings(train<ContrastiveNet>({}, {6, 7}, Counting::kFirstSample)) == 0);
  CHECK(warnings(train<GraphNet>({}, {9}, Counting::kWrong)) == 0);
  // Labels of three classes, tokens of a sentence, and positions of words within each sample.
  struct Labels : nets::Tabled {
    Labels() : Tabled({9, 6}, 1, {{"head", 3}}) {}
    Tensor forward(const Tensor& tokens, const Tensor& start, const Tensor& y) {
      const auto h = table(tokens);  // [B, T, 6]
      const auto rows = h.flatten(0, 1).index_select(0, start + torch::arange(tokens.size(0)) * tokens.size(1));
      return F::cross_entropy(Linears::forward(rows), y) +
             F::cross_entropy(Linears::forward(h.gather(1, start.view({-1, 1, 1}).expand({-1, 1, 6})).squeeze(1)), y);
    }
  };
  std::vector<std::string> lines;
  ap::loopback::run(2, [&](ap::World& world) {
    if (world.rank() == 0) world.log().set_writer([&](const std::string& line) { lines.push_back(line); });
    ap::AutoParallel<std::shared_ptr<Labels>> model(world, made<Labels>());
    for (int step = 0; step < 4; ++step)
      model(torch::full({6, 4}, step), torch::full({6}, 3), torch::full({6}, step % 3)).backward();
  });
  CHECK(warnings(lines) == 0);
}

TEST_CASE("local indices: evaluation and other methods count likewise") {
  const DoublePrecision fp64;
  const Sizes local{3, 4};
  const auto parts = batches<GraphNet>(local).front();
  const auto whole = joined(parts);
  auto net = made<GraphNet>();
  const auto method = [](auto& module, const Tensor& x, const Tensor& numbers) {
    return module.embed(x).index({numbers}).sum(1);
  };
  const auto want = method(*net, whole.x, whole.numbers).detach();
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<std::shared_ptr<GraphNet>> model(world, made<GraphNet>(), {.local_indices = {1}});
    const auto& mine = parts[static_cast<size_t>(world.rank())];
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto loss = model(mine.x, mine.numbers, mine.y);
    check_close(loss, net->forward(whole.x, whole.numbers, whole.y), kTolerance, "loss");
    const auto rows = model->call(method, mine.x, mine.numbers);
    check_close(rows, numerics::share_of(want, 0, local, world.rank()), kTolerance, "rows");
    check_close(model->call([](GraphNet& module, const Tensor& x) { return module.embed(x); }, mine.x),
                net->embed(mine.x), kTolerance, "a call without the argument");
  });
}

TEST_CASE("local indices: ignored classes stay negative") {
  const DoublePrecision fp64;
  struct Pairs : nets::Linears {
    Pairs() : Linears(3, {{"layer", 4}}) {}
    Tensor forward(const Tensor& x, const Tensor& labels) {
      const auto h = Linears::forward(x);
      return F::cross_entropy(torch::matmul(h, h.t()), labels);
    }
  };
  const auto x = torch::randn({7, 3});
  const auto mine = torch::tensor({2, -100, 0}), theirs = torch::tensor({1, 3, -100, 0});
  const auto want = made<Pairs>()->forward(x, torch::cat({mine, torch::where(theirs < 0, theirs, theirs + 3)}));
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<std::shared_ptr<Pairs>> model(world, made<Pairs>(), {.local_indices = {1}});
    const bool first = world.rank() == 0;
    check_close(model(first ? x.slice(0, 0, 3) : x.slice(0, 3, 7), first ? mine : theirs), want, kTolerance, "loss");
  });
}

TEST_CASE("local indices: impossible ones are refused on every rank") {
  const DoublePrecision fp64;
  const auto refusal = [](ap::Options options, const Tensor& numbers) {
    std::vector<std::string> said(2);
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<std::shared_ptr<GraphNet>> model(world, made<GraphNet>(), options);
      try {
        (void)model(torch::randn({3, 4}), world.rank() == 0 ? numbers.clamp(0, 2) : numbers, torch::randn({3, 2}));
      } catch (const ap::InvalidArgument& error) {
        said[static_cast<size_t>(world.rank())] = error.what();
      }
    });
    CHECK_FALSE(said[0].empty());
    return said[1];
  };
  const auto numbers = torch::randint(3, {3, 3});
  CHECK(refusal({.local_indices = {0}}, numbers).find("tensor argument 0, which has elements of type Double") !=
        std::string::npos);
  CHECK(refusal({.batch_dims = {0, ap::kShared, 0}, .local_indices = {1}}, numbers).find("the same for all samples") !=
        std::string::npos);
  CHECK(refusal({.local_indices = {1}}, torch::full({3, 3}, 5)).find("holds 5, but this rank's batch has 3 samples") !=
        std::string::npos);
}

TEST_CASE("first_sample: counts the samples of lower ranks") {
  const DoublePrecision fp64;
  const Sizes local{3, 0, 2, 4};
  ap::loopback::run(4, [&](ap::World& world) {
    const auto first = ap::first_sample(world, local[static_cast<size_t>(world.rank())]);
    if (first != std::accumulate(local.begin(), local.begin() + world.rank(), int64_t{0}))
      throw numerics::Failure("first sample " + std::to_string(first));
    try {
      (void)ap::first_sample(world, world.rank() == 2 ? -1 : 1);
      throw numerics::Failure("a negative number of samples was taken");
    } catch (const ap::InvalidArgument&) {
    }
  });
}

}  // namespace local_indices_test
