#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <ATen/record_function.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>

#include "torch/fp8/layers.hpp"
#include "torch/fused/fp8.hpp"
#include "torch/parameters/compute_copy.hpp"
#include "torch/parameters/optimizer_state.hpp"

namespace gpu_update_test {

namespace ap = autopar;
using torch::Tensor;

const auto kSingle = at::TensorOptions(at::kFloat).device(at::kCUDA);

/// More than one launch takes: empty, odd, of more than one block, not where four lie together.
std::vector<Tensor> tensors_of_all_kinds() {
  std::vector<Tensor> made{torch::randn({}, kSingle),
                           torch::randn({0}, kSingle),
                           torch::randn({300, 1001}, kSingle),
                           torch::randn({16384}, kSingle),
                           torch::randn({16385}, kSingle),
                           torch::randn({8, 3, 5, 5}, kSingle).contiguous(at::MemoryFormat::ChannelsLast)};
  for (int i = 0; i < 150; ++i) made.push_back(torch::randn({i}, kSingle));
  made.push_back(torch::randn({1000}, kSingle).narrow(0, 1, 997));
  return made;
}

/// Of a tensor whose memory is its own a copy is kept: every third in fp16, and every seventh has none.
void keep_copies(const std::vector<Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (i % 7 == 6) continue;
    ap::parameters::ComputeCopy::keep(parameters[i], i % 3 == 2 ? at::kHalf : at::kBFloat16);
    if (auto* copy = ap::parameters::ComputeCopy::of(parameters[i])) static_cast<void>(copy->current(parameters[i]));
  }
}

struct State {
  std::vector<Tensor> exp_avgs, exp_avg_sqs;
};

State zeros_like_all(const std::vector<Tensor>& tensors) {
  State state;
  for (const auto& tensor : tensors) {
    state.exp_avgs.push_back(torch::zeros_like(tensor));
    state.exp_avg_sqs.push_back(torch::zeros_like(tensor));
  }
  return state;
}

/// Averages where gradients cancel, and powers of the betas, differ in their last bits, and so do updates, which are a
/// few times `size`: the worst of 300,000 elements over five steps.
bool is_close(const Tensor& a, const Tensor& b, double size = 0) {
  return at::allclose(a.detach(), b.detach(), 1e-6, 2e-5 * size + 1e-9);
}

template <class Optimizer, class Options, class Kernel>
void check_steps(const Options& options, Kernel kernel) {
  torch::manual_seed(5);
  const auto ours = tensors_of_all_kinds();
  keep_copies(ours);
  std::vector<Tensor> theirs;
  for (const auto& p : ours) theirs.push_back(p.clone());
  auto state = zeros_like_all(theirs);
  const auto version = ours[0]._version();
  Optimizer optimizer(ours, options);
  const auto [beta1, beta2] = options.betas();
  for (int step = 1; step <= 5; ++step) {
    std::vector<Tensor> gradients;
    for (const auto& p : ours) {
      gradients.push_back(torch::randn_like(p));
      p.mutable_grad() = gradients.back();
    }
    optimizer.step();
    const std::vector<Tensor> counts(theirs.size(), torch::full({}, step, kSingle));
    kernel(theirs, gradients, state.exp_avgs, state.exp_avg_sqs, counts, options.lr(), beta1, beta2,
           options.weight_decay(), options.eps());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      INFO("tensor " << i << " of sizes " << ours[i].sizes() << ", step " << step);
      REQUIRE(is_close(ours[i], theirs[i], options.lr()));
      const auto written = ap::parameters::state_of(optimizer, ours[i]);
      for (const auto& [name, tensor] : written) {
        if (name == "exp_avg") REQUIRE(is_close(tensor, state.exp_avgs[i], 0.01));
        if (name == "exp_avg_sq") REQUIRE(is_close(tensor, state.exp_avg_sqs[i]));
      }
      auto* copy = ap::parameters::ComputeCopy::of(ours[i]);
      if (copy == nullptr) continue;
      REQUIRE(torch::equal(copy->to_write(ours[i]).memory, ours[i].detach().to(copy->type())));
    }
  }
  CHECK(ours[0]._version() > version);
}

TEST_CASE("fused Adam: step equals libtorch, writes rounded copies", "[gpu][update]") {
  for (const double decay : {0.0, 0.03}) {
    check_steps<ap::optim::AdamW>(
        torch::optim::AdamWOptions(0.05).weight_decay(decay),
        [](auto& p, auto& g, auto& m, auto& v, auto& n, double lr, double b1, double b2, double wd, double eps) {
          at::_fused_adamw_(p, g, m, v, {}, n, lr, b1, b2, wd, eps, false, false);
        });
    check_steps<ap::optim::Adam>(
        torch::optim::AdamOptions(0.05).weight_decay(decay),
        [](auto& p, auto& g, auto& m, auto& v, auto& n, double lr, double b1, double b2, double wd, double eps) {
          at::_fused_adam_(p, g, m, v, {}, n, lr, b1, b2, wd, eps, false, false);
        });
  }
}

/// Steps of SGD by libtorch.
struct SgdSteps {
  std::vector<Tensor> parameters, buffers;

  SgdSteps(const std::vector<Tensor>& begin, c10::ScalarType type, bool has_momentum) {
    for (const auto& p : begin) {
      parameters.push_back(p.detach().clone().to(type));
      if (has_momentum) buffers.push_back(torch::full_like(parameters.back(), NAN));
    }
  }
  void step(const std::vector<Tensor>& gradients, const torch::optim::SGDOptions& options, bool is_first) {
    std::vector<Tensor> own;
    for (const auto& g : gradients) own.push_back(g.to(parameters.front().scalar_type()));
    at::_fused_sgd_(parameters, own, buffers, options.weight_decay(), options.momentum(), options.lr(),
                    options.dampening(), options.nesterov(), false, is_first);
  }
};

/// At most 1.5 times as far from double precision as libtorch's, beside numbers as large as what is added up to them.
void check_error(const Tensor& made, const Tensor& libtorch, const Tensor& exact, const Tensor& added) {
  if (exact.numel() == 0) return;
  const auto size = exact.norm().item<double>() + added.norm().item<double>();
  const auto error = [&](const Tensor& one) { return (one.detach().to(at::kDouble) - exact).norm().item<double>(); };
  REQUIRE(error(made) <= 1.5 * error(libtorch) + 2e-7 * size);
}

void check_sgd_steps(const torch::optim::SGDOptions& options) {
  torch::manual_seed(6);
  const auto ours = tensors_of_all_kinds();
  keep_copies(ours);
  SgdSteps theirs(ours, at::kFloat, options.momentum() != 0), exact(ours, at::kDouble, options.momentum() != 0);
  const auto version = ours[0]._version();
  ap::optim::SGD optimizer(ours, options);
  for (int step = 1; step <= 4; ++step) {
    std::vector<Tensor> gradients;
    for (const auto& p : ours) {
      gradients.push_back(torch::randn_like(p));
      p.mutable_grad() = gradients.back();
    }
    optimizer.step();
    theirs.step(gradients, options, step == 1);
    exact.step(gradients, options, step == 1);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      INFO("tensor " << i << " of sizes " << ours[i].sizes() << ", step " << step);
      check_error(ours[i], theirs.parameters[i], exact.parameters[i], gradients[i]);
      for (const auto& [name, tensor] : ap::parameters::state_of(optimizer, ours[i]))
        if (name == "momentum_buffer") check_error(tensor, theirs.buffers[i], exact.buffers[i], gradients[i]);
      auto* copy = ap::parameters::ComputeCopy::of(ours[i]);
      if (copy != nullptr) REQUIRE(torch::equal(copy->to_write(ours[i]).memory, ours[i].detach().to(copy->type())));
    }
  }
  CHECK(ours[0]._version() > version);
}

TEST_CASE("fused SGD: step equals libtorch, writes rounded copies", "[gpu][update]") {
  for (const double decay : {0.0, 0.03}) {
    const auto plain = torch::optim::SGDOptions(0.05).weight_decay(decay);
    check_sgd_steps(plain);
    check_sgd_steps(torch::optim::SGDOptions(plain).momentum(0.9).dampening(0.2));
    check_sgd_steps(torch::optim::SGDOptions(plain).momentum(0.9).nesterov(true));
  }
}

// ---------------------------------------------------------------- in a training

struct NetImpl : nets::Tabled {
  NetImpl() : Tabled({50, 32}, 2, {{"first", 128}, {"last", 50}}, [](const Tensor& h) { return torch::gelu(h); }) {}
  Tensor forward(const Tensor& ids, const Tensor& y) {
    return torch::nn::functional::cross_entropy(Linears::forward(table(ids).flatten(1)), y);
  }
};
TORCH_MODULE(Net);

thread_local int casts = 0;
thread_local std::string cast_sizes;

/// Operators that make numbers of one type of the other.
std::unique_ptr<at::ObserverContext> count_cast(const at::RecordFunction& called) {
  const std::string name = called.name();
  const auto inputs = called.inputs();
  const auto is_single = [&](std::size_t i) { return inputs[i].toTensor().scalar_type() == at::kFloat; };
  const auto is_copy = name == "aten::copy_" && inputs[0].toTensor().scalar_type() == at::kBFloat16 && is_single(1);
  casts += is_copy ? 1 : 0;
  if (is_copy) cast_sizes += c10::str(inputs[0].toTensor().sizes());
  return nullptr;
}

struct Trained {
  std::vector<double> losses;
  std::vector<int> casts;  ///< of each call
  std::string names;       ///< of the fourth
};

template <class Optimizer, class Options>
Trained trained(ap::World& world, const Options& how, ap::Precision precision, bool keeps, bool writes) {
  torch::manual_seed(4);
  Net net;
  ap::Options options;
  options.stages = 1;
  options.microbatches = 1;
  options.replicas = {world.size()};
  options.precision = precision;
  options.verify_capture = false;  // which casts, too
  net->to(ap::device(world));
  std::vector<Tensor> views;
  for (const auto& p : net->parameters()) {
    if (!keeps) views.push_back(p.view(-1));
  }
  ap::AutoParallel<Net> model(world, net, options);
  Optimizer optimizer(model->parameters(), how);
  const auto on_device = at::TensorOptions(at::kLong).device(ap::device(world));
  const auto ids = torch::arange(128, on_device).view({64, 2}) % 50, y = torch::arange(64, on_device) % 50;
  Trained out;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    casts = 0;
    cast_sizes.clear();
    const auto callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count_cast).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    const auto loss = model(ids, y);
    at::removeCallback(callback);
    out.casts.push_back(casts);
    if (step == 3) out.names = cast_sizes;
    loss.backward();
    optimizer.step();
    out.losses.push_back(loss.item<double>());
    if (!writes) continue;
    for (const auto& p : model->parameters()) p.view(-1).data().mul_(0.9);
  }
  return out;
}

template <class Optimizer, class Options>
void check_casts(ap::World& world, const Options& how) {
  for (const ap::Precision precision : {ap::Precision::kBf16Compute, ap::Precision::kBf16}) {
    for (const bool writes : {false, true}) {
      const auto kept = trained<Optimizer>(world, how, precision, true, writes);
      const auto cast = trained<Optimizer>(world, how, precision, false, writes);
      INFO(ap::option_text(precision) << (writes ? ", written to" : "") << ": " << kept.names
                                      << " where all are cast: " << cast.names);
      CHECK(kept.losses == cast.losses);
      CHECK(kept.casts[0] == cast.casts[0]);
      CHECK((kept.casts[3] < cast.casts[3]) == !writes);
      if (precision == ap::Precision::kBf16Compute && !writes) CHECK(kept.casts[3] == 0);
    }
  }
}

TEST_CASE("fused optimizer on a GPU: no parameter casts, equal losses", "[gpu][update]") {
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  check_casts<ap::optim::AdamW>(world, torch::optim::AdamWOptions(0.01));
  check_casts<ap::optim::SGD>(world, torch::optim::SGDOptions(0.1).momentum(0.9));
}

template <class Optimizer, class Options>
void check_copies_in_8_bits(const Options& options) {
  torch::manual_seed(7);
  ap::fp8::Layers layers;
  layers.start({"weight"}, at::kCUDA);
  const std::vector<float> calls(ap::fp8::Layers::kHistory, 20);
  layers.set_histories({{"weight", {calls, calls, calls}}});
  const auto next = layers.find("weight")->next_of_weight();
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{16, 16}, {130, 144}, {1024, 2048}}) {
    INFO(at::IntArrayRef(sizes));
    const auto p = torch::randn(sizes, kSingle).set_requires_grad(true);
    ap::parameters::ComputeCopy::keep(p, at::kBFloat16);
    auto* const copy = ap::parameters::ComputeCopy::of(p);
    static_cast<void>(copy->current_in_8_bits(p, next));
    next.scale.most.zero_();
    p.mutable_grad() = torch::randn_like(p);
    Optimizer(std::vector<Tensor>{p}, options).step();
    const auto told = next.scale.most.item<float>();
    const auto in_16_bits = p.detach().to(at::kBFloat16);
    const auto cast = ap::fused::cast_to_fp8(in_16_bits, at::kFloat8_e4m3fn, next.scale, ap::fused::Fp8Sides::kBoth);
    CHECK(torch::equal(copy->to_write(p).memory.view(at::kByte), cast.rows.view(at::kByte)));
    CHECK(torch::equal(ap::fused::fp8_columns(cast.rows).view(at::kByte), cast.columns.view(at::kByte)));
    CHECK(told == in_16_bits.abs().max().item<float>());
  }
}

TEST_CASE("fused steps: copies in 8 bits are casts of copies in 16", "[gpu][update][fp8]") {
  check_copies_in_8_bits<ap::optim::AdamW>(torch::optim::AdamWOptions(0.05));
  check_copies_in_8_bits<ap::optim::SGD>(torch::optim::SGDOptions(0.05));
  check_copies_in_8_bits<ap::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
}

}  // namespace gpu_update_test
