#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/erased_transport.hpp>
#include <autopar/runtime/loopback.hpp>

// Products of linear layers in 8 bits: as near to fp64 as the recipe written in plain libtorch, and the same training
// under every plan.
namespace fp8_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr std::int64_t kWidth = 64, kBatch = 48;
constexpr int kLayers = 4;

/// The layers between the first and the last run in 8 bits.
struct NetImpl : nn::Module {
  explicit NetImpl(std::int64_t width = kWidth) : first(24, width), last(width, 8) {
    for (int i = 0; i < kLayers; ++i) layers->push_back(nn::Linear(width, width));
    register_module("first", first);
    register_module("layers", layers);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::relu(first(x));
    for (const auto& layer : *layers) h = h + torch::tanh(layer->as<nn::Linear>()->forward(h));
    return nn::functional::mse_loss(last(h), y);
  }
  nn::Linear first, last;
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

struct Batch {
  Tensor x, y;
};

Batch batch_of(int step) {
  const auto waves = [](std::int64_t rows, std::int64_t columns, double phase) {
    return (torch::arange(rows * columns, torch::kFloat) * 0.37 + phase).sin().view({rows, columns});
  };
  return {waves(kBatch, 24, step), waves(kBatch, 8, 0.5 * step)};
}

Net made() {
  return nets::seeded(5, [] { return Net(); });
}

// ---------------------------------------------------------------- the recipe in plain libtorch

/// The largest power of two by which `most` fits the format.
double factor_of(double most, double largest) { return std::exp2(std::floor(std::log2(largest / most))); }

Tensor in_8_bits(const Tensor& numbers, double factor, at::ScalarType format) {
  const double largest = format == at::kFloat8_e4m3fn ? 448 : 57344;
  return numbers.to(at::kFloat).mul(factor).clamp(-largest, largest).to(format).to(at::kFloat).div(factor);
}

struct Factors {
  double x = 1, weight = 1, gradient = 1;
};

struct PlainLinear : torch::autograd::Function<PlainLinear> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, double of_x, double of_weight, double of_gradient) {
    const auto qx = in_8_bits(x, of_x, at::kFloat8_e4m3fn), qw = in_8_bits(weight, of_weight, at::kFloat8_e4m3fn);
    ctx->save_for_backward({qx, qw});
    ctx->saved_data["factor"] = of_gradient;
    return (qx.mm(qw.t()) + bias.to(at::kFloat)).to(at::kBFloat16);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto g = in_8_bits(gradients[0], ctx->saved_data["factor"].toDouble(), at::kFloat8_e5m2);
    return {g.mm(saved[1]).to(at::kBFloat16),
            g.t().mm(saved[0]).to(at::kBFloat16),
            gradients[0].sum(0),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

/// The net's gradients for a batch, computed as bf16-compute does, its middle layers in 8 bits.
std::vector<Tensor> plain_gradients(Net net, const Batch& batch, const std::vector<Factors>& factors) {
  const auto bf16 = [](const Tensor& tensor) { return tensor.to(at::kBFloat16); };
  const auto linear = [&](const nn::LinearImpl& layer, const Tensor& x) {
    return torch::linear(x, bf16(layer.weight), bf16(layer.bias));
  };
  auto h = torch::relu(linear(*net->first, bf16(batch.x)));
  for (int i = 0; i < kLayers; ++i) {
    const auto& layer = *net->layers->ptr(static_cast<std::size_t>(i))->as<nn::Linear>();
    const auto& f = factors[static_cast<std::size_t>(i)];
    h = h + torch::tanh(PlainLinear::apply(h, bf16(layer.weight), bf16(layer.bias), f.x, f.weight, f.gradient));
  }
  nn::functional::mse_loss(linear(*net->last, h).to(at::kFloat), batch.y).backward();
  std::vector<Tensor> gradients;
  for (auto& parameter : net->parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

std::vector<Tensor> exact_gradients(const Batch& batch) {
  auto net = made();
  net->to(torch::kDouble);
  net->forward(batch.x.to(torch::kDouble), batch.y.to(torch::kDouble)).backward();
  std::vector<Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

/// What the middle layers' operands are in double precision at most, over some batches: near what training sees.
std::vector<Factors> factors_over(int batches) {
  std::vector<Factors> most(kLayers, {0, 0, 0});
  for (int k = 0; k < batches; ++k) {
    auto net = made();
    net->to(torch::kDouble);
    const auto batch = batch_of(k);
    std::vector<Tensor> inputs, outputs;
    auto h = torch::relu(net->first(batch.x.to(torch::kDouble)));
    for (int i = 0; i < kLayers; ++i) {
      inputs.push_back(h);
      auto y = net->layers->ptr(static_cast<std::size_t>(i))->as<nn::Linear>()->forward(h);
      y.retain_grad();
      outputs.push_back(y);
      h = h + torch::tanh(y);
    }
    nn::functional::mse_loss(net->last(h), batch.y.to(torch::kDouble)).backward();
    for (std::size_t i = 0; i < kLayers; ++i) {
      const auto& weight = net->layers->ptr(i)->as<nn::Linear>()->weight;
      const auto grow = [](double& of, const Tensor& values) { of = std::max(of, values.abs().max().item<double>()); };
      grow(most[i].x, inputs[i]);
      grow(most[i].weight, weight);
      grow(most[i].gradient, outputs[i].grad());
    }
  }
  for (auto& each : most) {
    each = {factor_of(each.x, 448), factor_of(each.weight, 448), factor_of(each.gradient, 57344)};
  }
  return most;
}

double error_of(const Tensor& made, const Tensor& exact) {
  return ((made.to(torch::kDouble) - exact).norm() / exact.norm()).item<double>();
}

TEST_CASE("fp8: gradients are as near to fp64 as the recipe in plain libtorch") {
  torch::set_num_threads(1);
  constexpr int kCalls = 4;
  const auto exact = exact_gradients(batch_of(kCalls - 1));
  const auto plain = plain_gradients(made(), batch_of(kCalls - 1), factors_over(kCalls - 1));
  for (const std::int64_t microbatches : {1, 3}) {
    ap::loopback::run(1, [&](ap::World& world) {
      ap::AutoParallel<Net> model(
          world, made(), ap::Options{.microbatches = static_cast<int>(microbatches), .precision = ap::Precision::kFp8});
      for (int k = 0; k < kCalls; ++k) {
        model->zero_grad();
        model(batch_of(k).x, batch_of(k).y).backward();
      }
      double mine = 0, theirs = 0;
      const auto parameters = model->named_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto error = error_of(parameters[i].value().grad(), exact[i]), of_plain = error_of(plain[i], exact[i]);
        INFO(parameters[i].key() << ": " << error << ", plain " << of_plain << ", " << microbatches
                                 << " micro-batches");
        CHECK(error <= 2.5 * of_plain);
        mine += error;
        theirs += of_plain;
      }
      INFO("on average " << mine / theirs);
      CHECK(mine <= 1.2 * theirs);
      CHECK(theirs > 0.02 * static_cast<double>(parameters.size()));  // 8 bits are seen
    });
  }
}

// ---------------------------------------------------------------- plans

struct Way {
  std::string name;
  ap::Options options;
  std::vector<std::int64_t> local;
};

std::vector<Way> ways() {
  return {
      {"one rank", {.microbatches = 3}, {48}},
      {"2 replicas", {.stages = 1, .microbatches = 2, .zero = 0, .replicas = {2}}, {20, 28}},
      {"ZeRO 1", {.stages = 1, .zero = 1, .replicas = {2}}, {24, 24}},
      {"ZeRO 2, zero-bubble",
       {.stages = 1, .microbatches = 2, .zero = 2, .replicas = {2}, .schedule = ap::ScheduleKind::kZbH1},
       {20, 28}},
      {"ZeRO 3, recomputed", {.stages = 1, .zero = 3, .replicas = {2}, .recompute = ap::Recompute::kAlways}, {24, 24}},
      {"2 stages", {.stages = 2, .microbatches = 4, .replicas = {1, 1}}, {24, 24}},
      {"2 stages of zero-bubble, recomputed",
       {.stages = 2,
        .microbatches = 4,
        .replicas = {1, 1},
        .schedule = ap::ScheduleKind::kZbH1,
        .recompute = ap::Recompute::kAlways},
       {24, 24}},
      {"2 slices", {.stages = 1, .tensor_parallel = 2, .replicas = {1}}, {24, 24}},
  };
}

constexpr int kSteps = 6;

std::vector<Tensor> trained(const Way& way, ap::Precision precision, bool is_loss_outside = false) {
  std::vector<Tensor> parameters;
  std::mutex mutex;
  ap::loopback::run(static_cast<int>(way.local.size()), [&](ap::World& world) {
    auto options = way.options;
    options.precision = precision;
    ap::AutoParallel<Net> model(world, made(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    model->attach(optimizer);
    std::int64_t first = 0;
    for (int r = 0; r < world.rank(); ++r) first += way.local[static_cast<std::size_t>(r)];
    const auto count = way.local[static_cast<std::size_t>(world.rank())];
    for (int k = 0; k < kSteps; ++k) {
      optimizer.zero_grad();
      const auto [x, y] = batch_of(k);
      auto loss = model(x.narrow(0, first, count), y.narrow(0, first, count));
      if (is_loss_outside) loss = loss * 1.0;
      loss.backward();
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    for (const auto& item : state) parameters.push_back(item.value());
  });
  return parameters;
}

/// How far the trained parameters of two runs lie apart, in parts of the way that they went.
double apart(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  const auto start = made()->parameters();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, ((a[i] - b[i]).norm() / (b[i] - start[i]).norm()).item<double>());
  return worst;
}

TEST_CASE("fp8: the same training under every plan") {
  torch::set_num_threads(1);
  const Way alone{"alone", {.microbatches = 1}, {48}};
  const auto reference = trained(alone, ap::Precision::kFp8);
  const auto in_bf16 = trained(alone, ap::Precision::kBf16Compute);
  const auto gap = apart(reference, in_bf16);
  CHECK(gap > 0.02);  // 8 bits are seen
  for (const auto& way : ways()) {
    const auto of_fp8 = apart(trained(way, ap::Precision::kFp8), reference);
    const auto of_bf16 = apart(trained(way, ap::Precision::kBf16Compute), in_bf16);
    INFO(way.name << ": " << of_fp8 << " apart, in bf16 " << of_bf16 << ", fp8 from bf16 " << gap);
    CHECK(of_fp8 <= 0.5 * gap + 2 * of_bf16);
  }
}

TEST_CASE("fp8: a loaded training goes on with the same bits") {
  torch::set_num_threads(1);
  for (const auto& way : {ways()[0], ways()[1], ways()[4], ways()[5]}) {
    INFO(way.name);
    const TempFolder folder;
    ap::loopback::run(static_cast<int>(way.local.size()), [&](ap::World& world) {
      auto options = way.options;
      options.precision = ap::Precision::kFp8;
      std::int64_t first = 0;
      for (int r = 0; r < world.rank(); ++r) first += way.local[static_cast<std::size_t>(r)];
      const auto count = way.local[static_cast<std::size_t>(world.rank())];
      const auto steps = [&](ap::AutoParallel<Net>& model, torch::optim::Optimizer& optimizer, int begin, int end) {
        for (int k = begin; k < end; ++k) {
          optimizer.zero_grad();
          model(batch_of(k).x.narrow(0, first, count), batch_of(k).y.narrow(0, first, count)).backward();
          optimizer.step();
        }
      };
      ap::AutoParallel<Net> model(world, made(), options);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
      model->attach(optimizer);
      steps(model, optimizer, 0, 4);
      model->save((folder / "saved").string(), optimizer);
      steps(model, optimizer, 4, 6);
      const auto wanted = model->gather_state();
      ap::AutoParallel<Net> other(world, made(), options);
      torch::optim::AdamW its_optimizer(other->parameters(), torch::optim::AdamWOptions(1e-3));
      other->attach(its_optimizer);
      other->load((folder / "saved").string(), its_optimizer);
      steps(other, its_optimizer, 4, 6);
      const auto got = other->gather_state();
      if (world.rank() != 0) return;
      for (const auto& item : wanted) CHECK(torch::equal(item.value(), got[item.key()]));
    });
  }
}

// ---------------------------------------------------------------- gathers of ZeRO 3

/// Counts the bytes of gathers.
class Counted {
 public:
  using Ticket = ap::AnyTransport::Ticket;
  Counted(ap::AnyTransport transport, std::size_t& gathered) : transport_(std::move(transport)), gathered_(&gathered) {}

  [[nodiscard]] ap::Rank rank() const { return transport_.rank(); }
  [[nodiscard]] int size() const { return transport_.size(); }
  [[nodiscard]] bool in_order() const { return transport_.in_order(); }
  ap::GroupId make_group(const std::vector<ap::Rank>& ranks) { return transport_.make_group(ranks); }
  Ticket send(ap::Buffer buffer, ap::Rank peer, ap::Tag tag) { return transport_.send(std::move(buffer), peer, tag); }
  Ticket receive(ap::Buffer buffer, ap::Rank peer, ap::Tag tag) {
    return transport_.receive(std::move(buffer), peer, tag);
  }
  Ticket all_reduce(ap::Buffer buffer, ap::DType dtype, ap::GroupId group) {
    return transport_.all_reduce(std::move(buffer), dtype, group);
  }
  Ticket reduce_scatter(ap::Buffer buffer, ap::DType dtype, ap::GroupId group) {
    return transport_.reduce_scatter(std::move(buffer), dtype, group);
  }
  Ticket all_gather(ap::Buffer buffer, ap::GroupId group) {
    *gathered_ += buffer.bytes;
    return transport_.all_gather(std::move(buffer), group);
  }
  Ticket all_to_all(ap::Buffer buffer, ap::GroupId group) { return transport_.all_to_all(std::move(buffer), group); }
  bool done(const Ticket& ticket) { return transport_.done(ticket); }
  void wait(const Ticket& ticket) { transport_.wait(ticket); }

 private:
  ap::AnyTransport transport_;
  std::size_t* gathered_;
};

/// What rank 0 saw of a training.
struct Seen {
  std::vector<Tensor> losses, parameters;
  std::vector<std::size_t> gathered;  ///< bytes, by step
};

constexpr std::int64_t kWide = 128;  ///< most parameters are weights of layers in 8 bits

/// @param step    a step's loss, of a model, x and y of this rank
/// @param change  before each step
template <class Made, class Step, class Change>
Seen seen_in(const Way& way, const Made& make, const Step& step, const Change& change) {
  Seen seen;
  std::vector<std::size_t> gathered(way.local.size());
  ap::WorldOptions world_options;
  world_options.transports = [&](const ap::TransportOptions& how, const ap::MakeTransport& built_in) {
    auto inner = built_in(how);
    auto& count = gathered[inner.rank().index()];
    return ap::erased(Counted(std::move(inner), count));
  };
  const auto run = [&](ap::World& world) {
    auto options = way.options;
    if (options.precision == ap::Precision::kModule) options.precision = ap::Precision::kFp8;
    options.log_level = "error";
    ap::AutoParallel model(world, make(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    model->attach(optimizer);
    const auto self = static_cast<std::size_t>(world.rank());
    std::int64_t first = 0;
    for (std::size_t r = 0; r < self; ++r) first += way.local[r];
    for (int k = 0; k < kSteps; ++k) {
      change(model, optimizer, k);
      const auto before = gathered[self];
      optimizer.zero_grad();
      const auto [x, y] = batch_of(k);
      const auto loss = step(model, x.narrow(0, first, way.local[self]), y.narrow(0, first, way.local[self]));
      loss.backward();
      if (self == 0) seen.losses.push_back(loss.detach().clone());
      if (self == 0) seen.gathered.push_back(gathered[self] - before);
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) seen.parameters.push_back(item.value());
  };
  ap::loopback::run(static_cast<int>(way.local.size()), run, world_options);
  return seen;
}

constexpr auto as_it_is = [](auto&, auto&, int) {};

/// Under ZeRO 2 weights are gathered in 16 bits, and each rank casts them. @return what ZeRO 3 saw
template <class Made, class Step, class Change>
Seen has_bits_of_16(const Way& way, const Made& make, const Step& step, const Change& change) {
  auto in_16_bits = way;
  in_16_bits.options.zero = 2;
  const auto wanted = seen_in(in_16_bits, make, step, change);
  auto got = seen_in(way, make, step, change);
  const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return std::ranges::equal(a, b, [](const Tensor& one, const Tensor& other) { return torch::equal(one, other); });
  };
  CHECK(same(got.losses, wanted.losses));
  CHECK(same(got.parameters, wanted.parameters));
  return got;
}

constexpr auto loss_of = [](auto& model, const Tensor& x, const Tensor& y) { return model(x, y); };

Net wide() {
  return nets::seeded(5, [] { return Net(kWide); });
}

std::vector<Way> ways_of_zero_3() {
  return {
      {"2 replicas", {.stages = 1, .microbatches = 1, .zero = 3, .replicas = {2}}, {24, 24}},
      {"2 replicas, micro-batches", {.stages = 1, .microbatches = 3, .zero = 3, .replicas = {2}}, {20, 28}},
      {"4 replicas, one without samples", {.stages = 1, .microbatches = 2, .zero = 3, .replicas = {4}}, {24, 4, 20, 0}},
      {"recomputed",
       {.stages = 1, .microbatches = 2, .zero = 3, .replicas = {2}, .recompute = ap::Recompute::kAlways},
       {24, 24}},
      {"zero-bubble",
       {.stages = 1, .microbatches = 2, .zero = 3, .replicas = {2}, .schedule = ap::ScheduleKind::kZbH1},
       {24, 24}},
      {"2 stages", {.stages = 2, .microbatches = 4, .zero = 3, .replicas = {2, 2}}, {12, 12, 12, 12}},
      {"2 slices", {.stages = 1, .tensor_parallel = 2, .zero = 3, .replicas = {2}}, {24, 24, 0, 0}},
      {"offloaded", {.stages = 1, .zero = 3, .offload = ap::Offload::kOptimizer, .replicas = {2}}, {24, 24}},
  };
}

/// Whether a step gathered in 8 bits, as the first one never does.
bool is_in_8_bits(const Seen& seen, int step) {
  return static_cast<double>(seen.gathered[static_cast<std::size_t>(step)]) <
         0.65 * static_cast<double>(seen.gathered[0]);
}

TEST_CASE("fp8: gathers in 8 bits give the bits of gathers in 16") {
  torch::set_num_threads(1);
  for (const auto& way : ways_of_zero_3()) {
    INFO(way.name);
    const auto seen = has_bits_of_16(way, wide, loss_of, as_it_is);
    for (int k = 1; k < kSteps; ++k) {
      INFO(seen.gathered[0] << " bytes at first, then " << seen.gathered[static_cast<std::size_t>(k)]);
      CHECK(is_in_8_bits(seen, k));
    }
  }
}

/// The net without its loss.
struct OpenNetImpl : nn::Module {
  OpenNetImpl() { register_module("net", net); }
  Tensor forward(const Tensor& x) {
    auto h = torch::relu(net->first(x));
    for (const auto& layer : *net->layers) h = h + torch::tanh(layer->as<nn::Linear>()->forward(h));
    return net->last(h);
  }
  Net net{kWide};
};
TORCH_MODULE(OpenNet);

TEST_CASE("fp8: calls of a loss outside gather as they began, whatever runs in between") {
  torch::set_num_threads(1);
  const auto two_calls = [](auto& model, const Tensor& x, const Tensor& y) {
    const auto distance = [&](const Tensor& of) { return (model(of) - y).pow(2).sum(); };
    const auto one = distance(x), other = distance(x * 0.5);
    {
      const torch::NoGradGuard evaluation;
      static_cast<void>(model(x));  // in 16 bits
    }
    return one + other;
  };
  const auto open = [] { return nets::seeded(5, [] { return OpenNet(); }); };
  for (const auto& way : {ways_of_zero_3()[1], ways_of_zero_3()[3], ways_of_zero_3()[5]}) {
    INFO(way.name);
    const auto seen = has_bits_of_16(way, open, two_calls, as_it_is);
    CHECK(seen.gathered[1] < seen.gathered[0]);
    CHECK(seen.gathered[kSteps - 1] == seen.gathered[1]);
  }
}

/// Two layers that run twice, and one whose weight is read elsewhere, too.
struct SharedNetImpl : nn::Module {
  SharedNetImpl() { nets::register_all(*this, "first", first, "up", up, "down", down, "read", read, "last", last); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::relu(first(x));
    h = h + torch::tanh(down(torch::tanh(up(h))));
    h = h + torch::tanh(read(h));
    h = h + torch::tanh(down(torch::tanh(up(h))));
    h = h + torch::tanh(torch::matmul(h, read->weight));
    return nn::functional::mse_loss(last(h), y);
  }
  nn::Linear first{24, kWide}, up{kWide, 4 * kWide}, down{4 * kWide, kWide}, read{kWide, kWide}, last{kWide, 8};
};
TORCH_MODULE(SharedNet);

TEST_CASE("fp8: a layer that runs twice is gathered in 8 bits, a weight that something else reads in 16") {
  torch::set_num_threads(1);
  const auto shared = [] { return nets::seeded(5, [] { return SharedNet(); }); };
  for (const auto& way : {ways_of_zero_3()[0], ways_of_zero_3()[3]}) {
    INFO(way.name);
    const auto seen = has_bits_of_16(way, shared, loss_of, as_it_is);
    for (int k = 1; k < kSteps; ++k) CHECK(is_in_8_bits(seen, k));
  }
}

/// Freezes a layer's weight, or trains it again.
template <class Model>
void set_trained(Model& model, const std::string& weight, bool is_trained) {
  for (auto& item : model->named_parameters()) {
    if (item.key() == weight) item.value().requires_grad_(is_trained);
  }
}

TEST_CASE("fp8: with a frozen layer weights are gathered in 16 bits") {
  torch::set_num_threads(1);
  const auto freeze = [](auto& model, auto&, int k) { set_trained(model, "layers.1.weight", k < 2 || k > 3); };
  for (const auto& way : {ways_of_zero_3()[1], ways_of_zero_3()[3]}) {
    INFO(way.name);
    const auto seen = has_bits_of_16(way, wide, loss_of, freeze);
    CHECK(is_in_8_bits(seen, 1));
    CHECK_FALSE(is_in_8_bits(seen, 3));
    CHECK(is_in_8_bits(seen, kSteps - 1));
  }
}

TEST_CASE("fp8: gradients go through a layer that is frozen once it has scales") {
  torch::set_num_threads(1);
  for (const auto recompute : {ap::Recompute::kNever, ap::Recompute::kAlways}) {
    ap::loopback::run(1, [&](ap::World& world) {
      const ap::Options options{.microbatches = 1, .recompute = recompute, .precision = ap::Precision::kFp8};
      ap::AutoParallel<Net> model(world, made(), options);
      for (int k = 0; k < 3; ++k) {
        set_trained(model, "layers.1.weight", k < 2);
        model->zero_grad();
        model(batch_of(k).x, batch_of(k).y).backward();
      }
      for (const auto& item : model->named_parameters()) {
        INFO(item.key());
        if (item.key() == "layers.1.weight") continue;
        REQUIRE(item.value().grad().defined());
        CHECK(item.value().grad().norm().template item<float>() > 0);
      }
    });
  }
}

TEST_CASE("fp8: after a load without scales a call gathers in 16 bits") {
  torch::set_num_threads(1);
  const TempFolder folder;
  const auto path = (folder / "in bf16").string();
  auto way = ways_of_zero_3()[1];
  auto in_bf16 = way;
  in_bf16.options.precision = ap::Precision::kBf16Compute;
  static_cast<void>(seen_in(in_bf16, wide, loss_of, [&](auto& model, auto& optimizer, int k) {
    if (k == 2) model->save(path, optimizer);
  }));
  const auto seen = has_bits_of_16(way, wide, loss_of, [&](auto& model, auto& optimizer, int k) {
    if (k == 3) model->load(path, optimizer);
  });
  CHECK(is_in_8_bits(seen, 2));
  CHECK_FALSE(is_in_8_bits(seen, 3));
  CHECK(is_in_8_bits(seen, 4));
}

}  // namespace fp8_test
