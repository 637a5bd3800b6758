// Models of ten billion parameters and more, in a program of their own so that the peak of resident memory is theirs.

#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include <torch/nn.h>
#include <torch/utils.h>

#include <autopar/autopar.hpp>
#include <autopar/capture/init_record.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <catch_shim.hpp>
#include <nets.hpp>
#include <resident_memory.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/algebra/batch_algebra.hpp"
#include "capture/trace/capture.hpp"
#include "capture/trace/fake_tensor.hpp"
#include "torch/cost/profile.hpp"
#include "torch/passes/linear_fold.hpp"

namespace autopar::test {
namespace {

double peak_gib() { return static_cast<double>(resident_memory::peak()) / (1 << 30); }

struct WideMlp : TestModel {
  torch::nn::ModuleList layers;
  int width;
  WideMlp(int w, int depth) : width(w) {
    for (int i = 0; i < depth; ++i) layers->push_back(torch::nn::Linear(w, w));
    register_module("layers", layers);
  }
  Tensors run(const Tensors& in) override {
    auto x = in[0];
    for (auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return {torch::mse_loss(x, in[1])};
  }
  Tensors arguments(std::int64_t n) override { return {torch::zeros({n, width}), torch::zeros({n, width})}; }
};

/// A decoder as people write it now: one product for queries, keys and values, fused attention with dropout.
struct Decoder : TestModel {
  static constexpr double kDropped = 0.1;
  struct Layer : torch::nn::Module {
    std::int64_t heads;
    torch::nn::LayerNorm before, between;
    torch::nn::Linear qkv, out, up, down;
    Layer(int width, int n)
        : heads(n),
          before(torch::nn::LayerNormOptions({width})),
          between(torch::nn::LayerNormOptions({width})),
          qkv(width, 3 * width),
          out(width, width),
          up(width, 4 * width),
          down(4 * width, width) {
      nets::register_all(*this, "before", before, "qkv", qkv, "out", out, "between", between, "up", up, "down", down);
    }
    at::Tensor forward(at::Tensor x) {
      const auto split = [&](const at::Tensor& part) {
        return part.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
      };
      const auto parts = qkv(before(x)).chunk(3, -1);
      const auto y = at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {},
                                                      is_training() ? kDropped : 0, /*is_causal=*/true);
      x = x + torch::dropout(out(y.transpose(1, 2).reshape(x.sizes())), kDropped, is_training());
      return x + torch::dropout(down(torch::gelu(up(between(x)))), kDropped, is_training());
    }
  };

  int vocabulary, length;
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
  Decoder(int vocab, int time, int width, int heads, int depth) : vocabulary(vocab), length(time) {
    tokens = register_module("tokens", torch::nn::Embedding(vocab, width));
    positions = register_module("positions", torch::nn::Embedding(time, width));
    for (int i = 0; i < depth; ++i) layers->push_back(std::make_shared<Layer>(width, heads));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(width, vocab));
  }
  Tensors run(const Tensors& in) override {
    auto x = tokens(in[0]) + positions(torch::arange(in[0].size(1), in[0].options()));
    for (auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return {torch::nn::functional::cross_entropy(head(x).view({-1, vocabulary}), in[1].view({-1}))};
  }
  Tensors arguments(std::int64_t n) override {
    return {torch::randint(vocabulary, {n, length}), torch::randint(vocabulary, {n, length})};
  }
};

template <class Make>
void require_small_and_fast(Make make) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<TestModel> model;
  auto record = InitRecord::record([&] { model = make(); }, Drawing::kAtMaterialisation);
  double parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += static_cast<double>(parameter.numel());
  REQUIRE(parameters >= 1e10);
  const auto constructed = std::chrono::steady_clock::now();
  const auto inputs = specs(model->arguments(1));
  const auto graph = trace::capture(*model, inputs, [&](const Tensors& in) { return model->run(in); });
  const auto captured = std::chrono::steady_clock::now();
  const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
  WARN(parameters / 1e9 << " billion parameters, " << graph.ops.size() << " operators: constructed in "
                        << seconds(constructed - start) << " s, captured in " << seconds(captured - constructed)
                        << " s, peak " << peak_gib() << " GiB");
  REQUIRE(peak_gib() < 1);
  for (const auto& parameter : model->parameters()) REQUIRE(trace::is_fake(parameter));
}

// ---------------------------------------------------------------- the whole way, as a user goes it

/// A test model as an ordinary module of two arguments.
template <class Model, int... Sizes>
struct NetImpl : torch::nn::Module {
  std::shared_ptr<Model> model = register_module("model", std::make_shared<Model>(Sizes...));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return model->run({x, y})[0]; }
};

std::filesystem::path example_cluster(const char* name) {
  return std::filesystem::path(__FILE__).parent_path() / "../../../../examples/clusters" / name;
}

struct Allowed {
  double parameters, gib;
};

template <class Net>
void require_planned_for_64_devices(const char* cluster, const Allowed& allowed) {
  World world(0, nullptr);
  const auto generator_state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto start = std::chrono::steady_clock::now();
  AutoParallel<Net> model(world, [] { return Net(); },
                          {.cluster_file = example_cluster(cluster).string(), .plan_only = true});
  REQUIRE(torch::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), generator_state));  // nothing drawn
  const auto arguments = model->module().model->arguments(1);
  model->prepare(arguments[0], arguments[1]);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  WARN(static_cast<double>(model->parameter_count()) / 1e9 << " billion parameters planned for 64 devices in "
                                                           << elapsed.count() << " s, peak " << peak_gib() << " GiB\n"
                                                           << to_text(model->plan()));
  REQUIRE(static_cast<double>(model->parameter_count()) >= allowed.parameters);
  REQUIRE(peak_gib() < allowed.gib);
  std::set<Rank> ranks;
  for (const auto& stage : model->plan().stages) ranks.insert(stage.mesh.ranks().begin(), stage.mesh.ranks().end());
  REQUIRE(ranks.size() == 64);
  const auto& stages = model->plan().stages;
  REQUIRE((stages.size() > 1 || stages.front().mesh.tensor() > 1));  // one device cannot hold it
}

/// Captured, and planned with whatever the planner can plan, whether or not the runtime runs it yet; a sample a device.
template <class Make>
void require_planned_with_everything(Make make, const char* cluster_file, const Allowed& allowed) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<TestModel> model;
  auto record = InitRecord::record([&] { model = make(); }, Drawing::kAtMaterialisation);
  double parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += static_cast<double>(parameter.numel());
  const auto run = [&](const Tensors& in) { return model->run(in); };
  const auto graph = passes::fold_linear(trace::capture(*model, specs(model->arguments(1)), run));
  const cost::GraphProfile profile = cost::profile_graph(graph, algebra::analyze_batch(graph));
  const auto captured = std::chrono::steady_clock::now();
  const Cluster cluster = read_cluster(example_cluster(cluster_file));
  PlanRequest request;
  request.batch = cluster.devices;
  request.runtime = runtime_capabilities();
  const Plan plan = plan_with_defaults(profile.model, cluster, request);
  const auto planned = std::chrono::steady_clock::now();
  const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
  WARN(parameters / 1e9 << " billion parameters captured in " << seconds(captured - start) << " s, planned for "
                        << cluster.devices << " devices in " << seconds(planned - captured) << " s, peak " << peak_gib()
                        << " GiB\n"
                        << to_text(plan));
  REQUIRE(parameters >= allowed.parameters);
  REQUIRE(peak_gib() < allowed.gib);
  for (const auto& stage : plan.stages) REQUIRE(stage.peak_memory <= cluster.device.memory);
}

}  // namespace

TEST_CASE("InitRecord: the generator skips a large model's values", "[huge]") {
  const auto start = std::chrono::steady_clock::now();
  torch::manual_seed(1);
  std::shared_ptr<TestModel> model;
  auto record = InitRecord::record([&] { model = std::make_shared<WideMlp>(10000, 20); });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  WARN("two billion draws skipped in " << elapsed.count() << " s");
  REQUIRE_FALSE(torch::equal(torch::rand({3}), (torch::manual_seed(1), torch::rand({3}))));
  REQUIRE(peak_gib() < 1);
}

TEST_CASE("capture: MLP of ten billion parameters in seconds", "[huge]") {
  require_small_and_fast([] { return std::make_shared<WideMlp>(10000, 101); });
}

TEST_CASE("capture: transformer of ten billion parameters in seconds", "[huge]") {
  require_small_and_fast([] { return std::make_shared<Transformer>(50000, 2048, 5120, 40, 32); });
}

constexpr Allowed kTenBillion{1e10, 1};

TEST_CASE("plan: MLP of ten billion parameters on 64 devices", "[huge]") {
  require_planned_for_64_devices<NetImpl<WideMlp, 10000, 101>>("a100-40x64.toml", kTenBillion);
}

TEST_CASE("plan: transformer of ten billion parameters on 64 devices", "[huge]") {
  require_planned_for_64_devices<NetImpl<Transformer, 50000, 512, 5120, 40, 32>>("a100-40x64.toml", kTenBillion);
}

TEST_CASE("plan: ten billion with fused attention on 64 devices", "[huge]") {
  require_planned_for_64_devices<NetImpl<Decoder, 50000, 2048, 5120, 40, 32>>("a100-40x64.toml", kTenBillion);
}

TEST_CASE("plan: transformer of 100 billion parameters on 8 x 8 devices", "[huge]") {
  const auto make = [] { return std::make_shared<Transformer>(50000, 512, 10240, 80, 80); };
  require_planned_with_everything(make, "a100-80x64.toml", {1e11, 4});
}

TEST_CASE("plan: transformer of a trillion parameters on 3072 devices", "[huge][.nightly]") {
  const auto make = [] { return std::make_shared<Transformer>(50000, 512, 25600, 160, 128); };
  require_planned_with_everything(make, "a100-80x3072.toml", {1e12, 4});
}

}  // namespace autopar::test
