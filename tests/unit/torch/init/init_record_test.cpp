#include <autopar/capture/init_record.hpp>

#include <thread>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"
#include "capture/trace/fake_tensor.hpp"

namespace autopar::test {
namespace {

namespace nn = torch::nn;

/// Every way of filling a parameter that libtorch's own layers and init functions use, and some users'.
struct ManyInits : nn::Module {
  nn::Linear linear{nullptr};
  nn::Embedding embedding{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::LSTM lstm{nullptr};
  nn::GRU gru{nullptr};
  nn::Conv2d conv{nullptr};
  nn::MultiheadAttention attention{nullptr};
  at::Tensor plain;

  ManyInits() {
    embedding = register_module("embedding", nn::Embedding(nn::EmbeddingOptions(5000, 7).padding_idx(3)));
    linear = register_module("linear", nn::Linear(97, 129));
    nn::init::orthogonal_(linear->weight);
    norm = register_module("norm", nn::BatchNorm1d(33));
    lstm = register_module("lstm", nn::LSTM(20, 30));
    gru = register_module("gru", nn::GRU(nn::GRUOptions(5, 6).num_layers(2).bidirectional(true)));
    conv = register_module("conv", nn::Conv2d(5, 77, 3));
    nn::init::kaiming_normal_(conv->weight);
    attention = register_module("attention", nn::MultiheadAttention(64, 4));
    register_parameter("normal", torch::randn({3, 5}));
    register_parameter("large", torch::randn({70, 70}) * 0.02 + torch::eye(70));
    register_parameter("bernoulli", torch::empty({100, 63}).bernoulli_(0.3));
    const auto chances = torch::full({70, 70}, 0.3);
    register_parameter("mask", torch::bernoulli(chances) * torch::dropout(chances, 0.4, true));
    register_parameter("noisy", at::normal(torch::arange(5000, torch::kFloat), 0.5));
    register_parameter("literal", torch::tensor({1.f, 2.f, 3.f}));
    register_parameter("vector", torch::tensor(std::vector<float>{4.f, 5.f}));
    register_parameter("permutation", torch::randperm(1000).to(torch::kFloat));
    register_parameter("dirac", nn::init::dirac_(torch::empty({4, 4, 3})));
    register_parameter("xavier", nn::init::xavier_normal_(torch::empty({100, 50}, torch::kDouble)));
    register_parameter("uniform", torch::empty({80, 80}, torch::kDouble).uniform_(-1, 1));
    register_buffer("waves", torch::sin(torch::arange(100).unsqueeze(1) * torch::exp(torch::arange(8) * -0.1)));
    plain = torch::linspace(0, 1, 33);
    const torch::NoGradGuard no_grad;
    linear->bias.zero_();
    named_parameters()["normal"][1].copy_(torch::ones(5));
    embedding->weight.mul_(0.5);
  }
};

struct Reseeded : nn::Module {
  Reseeded() {
    register_parameter("before", torch::randn({10}));
    torch::manual_seed(123);
    register_parameter("after", torch::randn({5000}));
  }
};

std::vector<std::pair<std::string, at::Tensor>> state(const nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) result.emplace_back(item.key(), item.value());
  return result;
}

void require_same_state(const nn::Module& eager, const nn::Module& recorded) {
  const auto a = state(eager), b = state(recorded);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].first);
    REQUIRE(a[i].first == b[i].first);
    REQUIRE(a[i].second.requires_grad() == b[i].second.requires_grad());
    REQUIRE(a[i].second.is_leaf() == b[i].second.is_leaf());
    REQUIRE(a[i].second.strides() == b[i].second.strides());
    REQUIRE(torch::equal(a[i].second, b[i].second));
  }
}

template <class Make>
void require_as_eager(Make make) {
  torch::manual_seed(11);
  auto eager = make();
  const auto next = torch::rand({4});

  torch::manual_seed(11);
  decltype(make()) recorded;
  auto record = InitRecord::record([&] { recorded = make(); });
  REQUIRE(torch::equal(torch::rand({4}), next));

  const auto handles = state(*recorded);
  for (const auto& [name, tensor] : handles) REQUIRE(trace::is_fake(tensor));
  // one by one, from the last to the first
  for (auto item = handles.rbegin(); item != handles.rend(); ++item) {
    const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
    record.materialise({item->second});
    REQUIRE(torch::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
    REQUIRE_FALSE(trace::is_fake(item->second));
  }
  require_same_state(*eager, *recorded);

  // drawing only when data is asked for
  torch::manual_seed(11);
  decltype(make()) deferred;
  auto lazy = InitRecord::record([&] { deferred = make(); }, Drawing::kAtMaterialisation);
  std::vector<at::Tensor> lazy_state;
  for (const auto& item : state(*deferred)) lazy_state.push_back(item.second);
  lazy.materialise(lazy_state);
  require_same_state(*eager, *deferred);

  // with the generator's states forgotten in between
  torch::manual_seed(11);
  decltype(make()) forgetful;
  auto third = InitRecord::record([&] { forgetful = make(); });
  for (const auto& [name, tensor] : state(*forgetful)) {
    third.forget_states();
    third.materialise({tensor});
  }
  require_same_state(*eager, *forgetful);

  // from another generator, put right afterwards
  torch::manual_seed(77);
  decltype(make()) rebased;
  auto second = InitRecord::record([&] { rebased = make(); });
  const auto final_state = second.rebase(record.generator_state());
  std::vector<at::Tensor> all;
  for (const auto& item : state(*rebased)) all.push_back(item.second);
  second.materialise(all);
  require_same_state(*eager, *rebased);
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_state(final_state);
  REQUIRE(torch::equal(torch::rand({4}), next));
}

}  // namespace

TEST_CASE("InitRecord: values equal eager construction", "[init]") {
  SECTION("many layers and initialisers") {
    require_as_eager([] { return std::make_shared<ManyInits>(); });
  }
  SECTION("ResNet") {
    require_as_eager([] { return std::make_shared<ResNet>(); });
  }
  SECTION("transformer") {
    require_as_eager([] { return std::make_shared<Transformer>(500, 12, 64, 4, 3); });
  }
  SECTION("a seed inside the constructor") {
    require_as_eager([] { return std::make_shared<Reseeded>(); });
  }
  SECTION("double") {
    require_as_eager([] {
      auto model = std::make_shared<Mlp>();
      model->to(torch::kDouble);
      return model;
    });
  }
}

/// Large tensors that threads make in pieces, some of which share memory or have no whole blocks of sixteen.
struct LargeInits : nn::Module {
  LargeInits() {
    register_module("table", nn::Embedding(70'001, 13));
    register_module("wide", nn::Linear(1200, 700));
    register_module("norm", nn::BatchNorm1d(300'000));
    register_parameter("doubles", torch::empty({603, 1001}, torch::kDouble).uniform_(-1, 1));
    const auto whole = torch::empty({2, 300'000}).normal_(1, 2);
    register_parameter("whole", whole);
    register_buffer("half", whole.detach()[1]);
    register_parameter("kept", torch::randn({700, 900}) * 0.02);
  }
};

TEST_CASE("InitRecord: threads make large tensors as one does", "[init]") {
  const int before = at::get_num_threads();
  torch::manual_seed(11);
  const LargeInits eager;
  const auto expected = torch::rand({5});
  for (const int threads : {1, 3, 8}) {
    at::set_num_threads(threads);
    torch::manual_seed(11);
    std::shared_ptr<LargeInits> made;
    auto init = InitRecord::record([&] { made = std::make_shared<LargeInits>(); });
    std::vector<at::Tensor> tensors = made->parameters();
    for (const auto& buffer : made->buffers()) tensors.push_back(buffer);
    init.materialise(tensors);
    CHECK(at::equal(torch::rand({5}), expected));
    for (const auto& item : eager.named_parameters()) {
      CAPTURE(threads, item.key());
      CHECK(at::equal(made->named_parameters()[item.key()], item.value()));
    }
    for (const auto& item : eager.named_buffers()) CHECK(at::equal(made->named_buffers()[item.key()], item.value()));
    made->named_parameters()["whole"].detach().zero_();
    CHECK(made->named_buffers()["half"].count_nonzero().item<std::int64_t>() == 0);
  }
  at::set_num_threads(before);
}

TEST_CASE("InitRecord: later initialisation is recorded, too", "[init]") {
  const auto init = [](nn::Module& module) {
    const torch::NoGradGuard no_grad;
    if (auto* linear = module.as<nn::Linear>()) {
      nn::init::xavier_uniform_(linear->weight);
      linear->weight.data().mul_(0.5);
    }
  };
  torch::manual_seed(5);
  auto eager = std::make_shared<Mlp>();
  const auto between = torch::rand({3});
  eager->apply(init);

  torch::manual_seed(5);
  std::shared_ptr<Mlp> recorded;
  auto record = InitRecord::record([&] { recorded = std::make_shared<Mlp>(); });
  REQUIRE(torch::equal(torch::rand({3}), between));
  recorded->apply(init);
  record.materialise(recorded->parameters());
  require_same_state(*eager, *recorded);
}

TEST_CASE("fake tensor: reading it says what it is", "[init]") {
  using Catch::Matchers::Contains;
  std::shared_ptr<Mlp> model;
  {
    auto record = InitRecord::record([&] { model = std::make_shared<Mlp>(); });
    REQUIRE_THROWS_WITH(model->a->weight.data_ptr(), Contains("construction is only recorded"));
    REQUIRE_THROWS_AS(model->a->weight.sum().item(), CaptureError);
    trace::describe_fake(model->a->weight, "parameter 'a.weight' lives on rank 2; use gather(p)");
  }
  REQUIRE_THROWS_AS(model->a->weight.sum(), InvalidArgument);
  REQUIRE_THROWS_WITH(model->a->weight.sum(), Contains("lives on rank 2; use gather(p)"));
  REQUIRE_THROWS_WITH(model->a->weight.const_data_ptr(), Contains("lives on rank 2; use gather(p)"));
  REQUIRE_THROWS_WITH(model->b->weight.sum(), !Contains("lives on rank 2"));
  REQUIRE(model->a->weight.sizes() == at::IntArrayRef({64, 32}));
  REQUIRE(model->a->weight.requires_grad());
}

TEST_CASE("fake tensor: a tensor becomes one and back under one handle", "[init]") {
  nn::Linear layer(4, 4);
  auto weight = layer->weight;
  const auto data = weight.detach().clone();
  weight.mutable_grad() = torch::ones({4, 4});
  trace::turn_into_fake(weight, "it is elsewhere");
  REQUIRE(trace::is_fake(layer->weight));
  REQUIRE_FALSE(layer->weight.grad().defined());
  REQUIRE_THROWS_AS(layer(torch::ones({1, 4})), InvalidArgument);
  weight.set_data(data);
  REQUIRE_FALSE(trace::is_fake(layer->weight));
  layer(torch::ones({1, 4})).sum().backward();
  REQUIRE(torch::equal(layer->weight.grad(), torch::ones({4, 4})));
  REQUIRE_THROWS_AS(trace::describe_fake(weight, "x"), InvalidArgument);
}

TEST_CASE("InitRecord: captured, materialised, replayed equals eager", "[init][replay]") {
  torch::manual_seed(8);
  auto eager = std::make_shared<Transformer>();
  eager->eval();
  std::shared_ptr<Transformer> model;
  torch::manual_seed(8);
  auto record = InitRecord::record([&] { model = std::make_shared<Transformer>(); });
  model->eval();
  const auto graph = capture_model(*model);
  REQUIRE(trace::is_fake(model->tokens->weight));
  REQUIRE(graph.hash() == capture_model(*eager).hash());
  record.materialise(model->parameters());
  const auto in = model->arguments(3);
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, *model, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {3, 3});
  REQUIRE(torch::equal(environment[graph.outputs[0].index()], eager->run(in)[0]));
}

namespace {
struct PlainMember : TestModel {
  nn::Linear a{8, 8};
  at::Tensor ramp;
  PlainMember() {
    register_module("a", a);
    ramp = torch::linspace(0, 1, 8) * 2;
  }
  Tensors run(const Tensors& in) override { return {(a(in[0]) * ramp).sum()}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 8})}; }
};
}  // namespace

TEST_CASE("InitRecord: a plain tensor member becomes a constant", "[init]") {
  std::shared_ptr<PlainMember> model;
  auto record = InitRecord::record([&] { model = std::make_shared<PlainMember>(); });
  const auto graph = capture_model(*model);
  std::size_t constants = 0;
  for (const auto& value : graph.values) {
    if (value.kind != ValueKind::kConstant) continue;
    ++constants;
    REQUIRE(torch::equal(value.constant, torch::linspace(0, 1, 8) * 2));
  }
  REQUIRE(constants == 1);
  REQUIRE(trace::is_fake(model->a->weight));
}

TEST_CASE("InitRecord: single elements are materialised bitwise", "[init]") {
  struct Filled : nn::Module {
    Filled() {
      linear = register_module("linear", nn::Linear(97, 129));
      table = register_module("table", nn::Embedding(611, 37));
      const torch::NoGradGuard no_grad;
      register_parameter("double", torch::empty({80, 81}, torch::kDouble).normal_(0, 0.02));
      register_parameter("even", torch::empty({128, 64}).normal_().mul_(0.5).add_(1));
      register_parameter("zeros", torch::zeros({100}));
      register_parameter("last", torch::empty({5000}).uniform_(-1, 1));
      register_buffer("sums", torch::full_like(linear->weight.detach(), 0.25).add_(1));  // as optimizers make them
      register_buffer("squares", torch::zeros_like(table->weight.detach()));
      register_buffer("copied", linear->weight.detach().clone().mul_(2));
      register_parameter("padded", torch::empty({5000}).normal_().narrow(0, 3, 7).zero_());
    }
    nn::Linear linear{nullptr};
    nn::Embedding table{nullptr};
  };
  torch::manual_seed(11);
  const auto eager = std::make_shared<Filled>();
  torch::manual_seed(11);
  std::shared_ptr<Filled> model;
  auto record = InitRecord::record([&] { model = std::make_shared<Filled>(); });
  const auto expected = state(*eager), phantoms = state(*model);
  std::uint64_t seed = 5;
  const auto below = [&](std::int64_t n) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>((seed >> 33) % static_cast<std::uint64_t>(n));
  };
  int alone = 0;
  for (std::size_t i = 0; i < phantoms.size(); ++i) {
    const auto whole = expected[i].second.flatten();
    const auto size = whole.numel();
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges{{0, size}, {0, 1}, {size - 1, size}, {size - 16, size}};
    for (int k = 0; k < 20; ++k) {
      const auto begin = below(size);
      ranges.emplace_back(begin, begin + 1 + below(size - begin));
    }
    for (const auto& [begin, end] : ranges) {
      INFO(phantoms[i].first << " " << begin << " to " << end);
      const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
      if (begin % 3 == 0) record.forget_states();
      const auto part = record.part(phantoms[i].second, 1, begin, end);
      REQUIRE(torch::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
      REQUIRE(trace::is_fake(phantoms[i].second));
      const bool is_of_another = phantoms[i].first == "copied";
      REQUIRE(part.has_value() == (!is_of_another && (size >= 4096 || phantoms[i].first == "zeros")));
      if (!part) continue;
      ++alone;
      REQUIRE(torch::equal(part->flatten(), whole.narrow(0, begin, end - begin)));
    }
  }
  REQUIRE(alone == 24 * 8);
  for (const auto& [name, tensor] : phantoms) {  // columns, whose chunks go through the whole
    if (tensor.dim() != 2 || name == "padded" || name == "copied") continue;
    const auto rows = tensor.size(0), columns = tensor.size(1);
    for (const auto& [begin, end] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {columns / 2, columns}, {3, 17}, {5, 5}}) {
      INFO(name << " columns " << begin << " to " << end);
      const auto part = record.part(tensor, rows, begin, end);
      REQUIRE(part.has_value());
      const auto whole = std::ranges::find(expected, name, &std::pair<std::string, at::Tensor>::first)->second;
      REQUIRE(torch::equal(*part, whole.narrow(1, begin, end - begin)));
    }
  }
}

TEST_CASE("InitRecord: outside data keep their place among operators", "[init]") {
  torch::nn::Linear layer{nullptr}, other{nullptr};
  auto record = autopar::InitRecord::record([&] {
    layer = torch::nn::Linear(4, 8);
    other = torch::nn::Linear(4, 8);
  });
  const torch::NoGradGuard no_grad;
  layer->weight.fill_(1);  // goes: the data are of the whole
  const auto first = record.expect_data(layer->weight);
  CHECK_FALSE(record.changed_since(first, layer->weight));
  const auto copied = layer->weight.clone();
  const auto second = record.expect_data(layer->weight);
  const auto bias = record.expect_data(layer->bias);
  CHECK_FALSE(record.changed_since(second, layer->weight));
  CHECK(record.expected_behind({layer->bias}) == std::vector{bias});
  layer->weight.data()[2].mul_(3).add_(copied[1]);
  other->weight.copy_(layer->weight);
  CHECK(record.changed_since(second, layer->weight));
  CHECK_FALSE(record.changed_since(bias, layer->bias));
  CHECK(record.expected_behind({other->weight}) == std::vector{first, second});
  CHECK(record.expected_behind({other->bias}).empty());

  const auto one = torch::rand({8, 4}), two = torch::rand({8, 4});
  record.give(first, one);
  record.give(second, two);
  CHECK_FALSE(record.part(layer->weight, 1, 0, 4));  // elements are not made one by one any more
  record.materialise({layer->weight, other->weight, layer->bias});
  auto wanted = two.clone();
  wanted[2].mul_(3).add_(one[1]);
  CHECK(torch::equal(layer->weight, wanted));
  CHECK(torch::equal(other->weight, wanted));
  CHECK(layer->bias.abs().max().item<float>() <= 0.5);  // drawn: nothing was given
}

TEST_CASE("InitRecord: threads record and materialise concurrently", "[init]") {
  torch::manual_seed(21);
  auto eager = std::make_shared<Transformer>();
  torch::manual_seed(21);
  const auto start = at::globalContext().defaultGenerator(at::kCPU).get_state();
  // drawn here: what a test itself draws on several threads at once is for the test to keep apart
  const auto arguments = eager->arguments(4);
  std::vector<std::shared_ptr<Transformer>> models(4);
  std::vector<std::thread> threads;
  for (auto& model : models) {
    threads.emplace_back([&model, &start, &arguments] {
      auto record = InitRecord::record([&] { model = std::make_shared<Transformer>(); });
      record.rebase(start);
      (void)capture_model(*model, arguments);
      record.materialise(model->parameters());
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& model : models) require_same_state(*eager, *model);
}

TEST_CASE("InitRecord: unsupported construction is refused by name", "[init]") {
  REQUIRE_THROWS_WITH(InitRecord::record([] { (void)torch::randn({3}).sum().item<float>(); }),
                      Catch::Matchers::Contains("aten::item") && Catch::Matchers::Contains("instead of the callable"));
  for (const auto drawing : {Drawing::kAtOnce, Drawing::kAtMaterialisation})
    REQUIRE_THROWS_AS(InitRecord::record([] { (void)torch::poisson(torch::ones({3})); }, drawing), CaptureError);
  REQUIRE_THROWS_AS(InitRecord::record([] { torch::ones({3}).data_ptr<float>()[0] = 1; }), CaptureError);
  auto record = InitRecord::record([] {});
  REQUIRE_THROWS_AS(record.materialise({trace::make_fake({2}, at::kFloat, false, "made elsewhere")}), InvalidArgument);
}

}  // namespace autopar::test
