#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Programs train for a while, evaluate, and train on, in any order: one plan carries all of it, as in one process.
namespace modes_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel = 3, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// ---------------------------------------------------------------- models as others write them

struct BasicBlockImpl : nn::Module {
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : first(conv(in, out, 3, stride)), second(conv(out, out)), norm1(out), norm2(out) {
    nets::register_all(*this, "conv1", first, "bn1", norm1, "conv2", second, "bn2", norm2);
    if (stride != 1 || in != out) shortcut = nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::relu(norm1(first(x)));
    h = norm2(second(h));
    return torch::relu(h + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
  nn::Conv2d first, second;
  nn::BatchNorm2d norm1, norm2;
  nn::Sequential shortcut;
};
TORCH_MODULE(BasicBlock);

struct SmallResNet : nn::Module {
  SmallResNet() { nets::register_all(*this, "stem", stem, "layers", layers, "drop", drop, "fc", fc); }
  Tensor forward(const Tensor& x) {
    const auto h = F::adaptive_avg_pool2d(layers->forward(stem->forward(x)), F::AdaptiveAvgPool2dFuncOptions(1));
    return fc(drop(h.flatten(1)));
  }
  nn::Sequential stem{conv(3, 4), nn::BatchNorm2d(4), nn::ReLU()};
  nn::Sequential layers{BasicBlock(4, 4, 1), BasicBlock(4, 6, 2)};
  nn::Dropout drop{0.0};
  nn::Linear fc{6, 3};
};

struct DoubleConvImpl : nn::Module {
  DoubleConvImpl(int64_t in, int64_t out)
      : body(conv(in, out), nn::BatchNorm2d(out), nn::ReLU(), conv(out, out), nn::BatchNorm2d(out), nn::ReLU()) {
    register_module("body", body);
  }
  Tensor forward(const Tensor& x) { return body->forward(x); }
  nn::Sequential body;
};
TORCH_MODULE(DoubleConv);

/// Attention over places at the bottom, or gates on what skips it, which differ between models of that kind.
struct SmallUNet : nn::Module {
  SmallUNet() {
    nets::register_all(*this, "down1", down1, "down2", down2, "bottom", bottom, "query", query, "key", key, "value",
                       value, "gate", gate, "up1", up1, "join1", join1, "up2", up2, "join2", join2, "out", out);
    strength = register_parameter("strength", torch::full({1}, 0.3));
  }
  Tensor attend(const Tensor& x) {
    const auto q = query(x).flatten(2), k = key(x).flatten(2), v = value(x).flatten(2);
    const auto weights = torch::softmax(q.transpose(1, 2).bmm(k), -1);
    return x + strength * v.bmm(weights.transpose(1, 2)).view(x.sizes());
  }
  Tensor forward(const Tensor& x) {
    const auto a = down1(x), b = down2(torch::max_pool2d(a, 2));
    auto h = attend(bottom(torch::max_pool2d(b, 2)));
    h = up1(h);
    h = join1(torch::cat({h, b * torch::sigmoid(gate->forward(b + h))}, 1));
    h = join2(torch::cat({a, up2(h)}, 1));
    return out(h).mean({2, 3});
  }
  DoubleConv down1{3, 3}, down2{3, 4}, bottom{4, 4}, join1{8, 4}, join2{6, 3};
  nn::Conv2d query = conv(4, 2, 1), key = conv(4, 2, 1), value = conv(4, 4, 1), out = conv(3, 3, 1);
  nn::Sequential gate{conv(4, 4, 1), nn::BatchNorm2d(4)};
  nn::ConvTranspose2d up1{nn::ConvTranspose2dOptions(4, 4, 2).stride(2)},
      up2{nn::ConvTranspose2dOptions(4, 3, 2).stride(2)};
  Tensor strength;
};

struct DecoderBlockImpl : nn::Module {
  DecoderBlockImpl(int64_t in, int64_t out)
      : body(conv(in, 2, 1), nn::BatchNorm2d(2), nn::ReLU(),
             nn::ConvTranspose2d(nn::ConvTranspose2dOptions(2, 2, 4).stride(2).padding(1)), nn::BatchNorm2d(2),
             nn::ReLU(), conv(2, out, 1), nn::BatchNorm2d(out), nn::ReLU()) {
    register_module("body", body);
  }
  Tensor forward(const Tensor& x) { return body->forward(x); }
  nn::Sequential body;
};
TORCH_MODULE(DecoderBlock);

/// What the encoder made is added to what the decoder makes. In training it has a head more.
struct SmallLinkNet : nn::Module {
  SmallLinkNet() {
    nets::register_all(*this, "encoder1", encoder1, "encoder2", encoder2, "decoder2", decoder2, "decoder1", decoder1,
                       "auxiliary", auxiliary, "out", out);
  }
  Tensor forward(const Tensor& x) {
    const auto a = encoder1(x), b = encoder2(a);
    const auto h = decoder2(b) + a;
    const auto logits = out(decoder1(h)).mean({2, 3});
    if (!is_training()) return logits;
    return logits + 0.4 * auxiliary->forward(b).mean({2, 3});
  }
  BasicBlock encoder1{3, 4, 2}, encoder2{4, 5, 2};
  DecoderBlock decoder2{5, 4}, decoder1{4, 4};
  nn::Sequential auxiliary{conv(5, 3, 1), nn::BatchNorm2d(3)};
  nn::Conv2d out = conv(4, 3);
};

/// Norms without weights, one that two inputs share, one without running statistics.
struct Siamese : nn::Module {
  Siamese() { nets::register_all(*this, "a", a, "plain", plain, "b", b, "untracked", untracked, "head", head); }
  Tensor forward(const Tensor& x) {
    const auto side = [&](const Tensor& each) { return torch::tanh(plain(a(each))); };
    return head(untracked(b(side(x) * side(x.flip(3)))).mean({2, 3}));
  }
  nn::Conv2d a = conv(3, 4), b = conv(4, 4);
  nn::BatchNorm2d plain{nn::BatchNorm2dOptions(4).affine(false)};
  nn::BatchNorm2d untracked{nn::BatchNorm2dOptions(4).track_running_stats(false)};
  nn::Linear head{4, 3};
};

/// Channels weighed by what is in all places, a scaled residual, a gated layer: point-wise operators in a row.
struct SmallGates : nn::Module {
  SmallGates() {
    nets::register_all(*this, "stem", stem, "squeeze", squeeze, "excite", excite, "branch", branch, "gate", gate, "up",
                       up, "down", down);
    scale = register_parameter("scale", torch::full({4, 1, 1}, 0.3));
  }
  Tensor forward(const Tensor& x) {
    auto h = F::gelu(stem(x)) - 0.1;
    const auto weights = torch::sigmoid(excite(F::silu(squeeze(h.mean({2, 3})))));
    h = torch::relu(h * weights.unsqueeze(-1).unsqueeze(-1) + x.narrow(1, 0, 1));
    h = h + scale * (F::hardtanh(branch(h)) * 2);
    const auto pooled = h.mean({2, 3});
    return down(F::silu(gate(pooled)) * up(pooled));
  }
  nn::Conv2d stem = conv(3, 4), branch = conv(4, 4);
  nn::Linear squeeze{4, 2}, excite{2, 4}, gate{4, 6}, up{4, 6}, down{6, 3};
  Tensor scale;
};

template <class Net>
std::shared_ptr<Net> made() {
  return nets::made<Net>(3);
}

Tensor images() {
  return torch::linspace(-2, 3, 6 * 3 * 64).sin().mul(torch::linspace(0, 9, 6 * 3 * 64).cos()).view({6, 3, 8, 8});
}
Tensor classes() { return torch::arange(6, torch::kLong) % 3; }

const auto loss_of = [](const Tensor& out, const Tensor& y) { return F::cross_entropy(out, y); };

/// How a program makes its loss.
enum class LossIs { kOutside, kInTrainStep };

/// What a program does, in order.
enum class Do { kTrain, kEvaluate, kForwardWithoutGradients };
using Course = std::vector<Do>;

const Course kTrainFirst{Do::kTrain,   Do::kTrain, Do::kEvaluate, Do::kTrain, Do::kForwardWithoutGradients,
                         Do::kEvaluate};
const Course kEvaluateFirst{Do::kEvaluate, Do::kTrain, Do::kEvaluate, Do::kTrain, Do::kEvaluate};
const Course kForwardFirst{Do::kForwardWithoutGradients, Do::kTrain, Do::kEvaluate, Do::kTrain};

/// Outputs of all calls that evaluate, and what there is at the end.
struct Outcome {
  std::vector<Tensor> outputs;
  numerics::Snapshot parameters, buffers;
};

template <class Net>
Outcome one_process(const Course& course) {
  const auto net = made<Net>();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Outcome outcome;
  for (const auto what : course) {
    net->train(what != Do::kEvaluate);
    if (what == Do::kTrain) {
      optimizer.zero_grad();
      loss_of(net->forward(images()), classes()).backward();
      optimizer.step();
    } else {
      const torch::NoGradGuard no_grad;
      outcome.outputs.push_back(net->forward(images()));
    }
  }
  outcome.parameters = numerics::copies_of(net->named_parameters());
  outcome.buffers = numerics::copies_of(net->named_buffers());
  return outcome;
}

template <class Net>
void check_rank(ap::World& world, const ap::Options& options, LossIs loss_is, const Course& course, const Outcome& want,
                const std::vector<int64_t>& local) {
  ap::AutoParallel<Net> model(world, made<Net>(), options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  model->attach(optimizer);
  const auto x = numerics::share_of(images(), 0, local, world.rank()),
             y = numerics::share_of(classes(), 0, local, world.rank());
  std::size_t outputs = 0;
  for (const auto what : course) {
    model->train(what != Do::kEvaluate);
    if (what == Do::kTrain) {
      optimizer.zero_grad();
      if (loss_is == LossIs::kInTrainStep) {
        model->train_step(loss_of, x, y).backward();
      } else {
        const auto sum = F::cross_entropy(model(x), y, F::CrossEntropyFuncOptions().reduction(torch::kSum));
        ap::global_mean(world, sum, y.size(0)).backward();
      }
      optimizer.step();
    } else {
      const torch::NoGradGuard no_grad;
      check_close(model(x), numerics::share_of(want.outputs[outputs], 0, local, world.rank()), kTolerance,
                  "evaluation " + std::to_string(outputs));
      ++outputs;
    }
  }
  if (options.stages > 1 && static_cast<int>(model->plan().stages.size()) < options.stages)
    throw Failure("too few stages");
  for (const auto& part : model->module().modules()) {
    if (part->is_training() != (course.back() != Do::kEvaluate)) throw Failure("a module was left in another mode");
  }
  const auto state = model->gather_state();
  if (world.rank() != 0) return;
  for (const auto* tensors : {&want.parameters, &want.buffers}) {
    for (const auto& [name, value] : *tensors) check_close(state[name], value, kTolerance, "at the end, " + name);
  }
}

struct Case {
  ap::Options options;
  std::vector<int64_t> local;
};
const std::vector<Case> kExact{
    {{.stages = 2, .batch_norm = ap::BatchNorm::kExact}, {4, 2}},
    {{.stages = 2, .replicas = {2, 1}, .batch_norm = ap::BatchNorm::kExact}, {3, 1, 2}},
};
const std::vector<Case> kTwoStages(kExact.begin(), kExact.begin() + 1);
const std::vector<Case> kJoined{{{.stages = 2, .microbatches = 1, .fusion = ap::Switch::kOn, .replicas = {1}}, {4, 2}}};
const std::vector<Case> kThreeStages{{{.stages = 3, .batch_norm = ap::BatchNorm::kExact}, {2, 2, 2}}};

template <class Net>
void check_course(const std::string& name, const Course& course, LossIs loss_is,
                  const std::vector<Case>& cases = kExact) {
  const auto want = one_process<Net>(course);
  for (const auto& each : cases) {
    INFO(name << ": " << each.options.stages << " stages on " << each.local.size() << " ranks"
              << (loss_is == LossIs::kOutside ? ", loss outside" : ", train_step"));
    CHECK_NOTHROW(ap::loopback::run(static_cast<int>(each.local.size()), [&](ap::World& world) {
      check_rank<Net>(world, each.options, loss_is, course, want, each.local);
    }));
  }
}

TEST_CASE("batch_norm = exact: training plan also evaluates, any cut") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  check_course<SmallResNet>("ResNet", kTrainFirst, LossIs::kOutside);
  check_course<SmallResNet>("ResNet", kTrainFirst, LossIs::kInTrainStep, kThreeStages);
  check_course<SmallUNet>("UNet with attention", kTrainFirst, LossIs::kInTrainStep, kTwoStages);
  check_course<SmallLinkNet>("LinkNet", kTrainFirst, LossIs::kOutside, kThreeStages);
  check_course<SmallLinkNet>("LinkNet", kTrainFirst, LossIs::kInTrainStep);
  check_course<Siamese>("Siamese", kTrainFirst, LossIs::kInTrainStep);
}

TEST_CASE("evaluation first: program is still planned for training") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  check_course<SmallResNet>("ResNet", kEvaluateFirst, LossIs::kOutside, kTwoStages);
  check_course<SmallLinkNet>("LinkNet", kEvaluateFirst, LossIs::kInTrainStep, kTwoStages);
  check_course<SmallUNet>("UNet with attention", kForwardFirst, LossIs::kOutside, kTwoStages);
}

TEST_CASE("fused batch norms: train fused and evaluate unfused") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  check_course<SmallResNet>("ResNet", kTrainFirst, LossIs::kInTrainStep, kJoined);
  check_course<SmallResNet>("ResNet", kEvaluateFirst, LossIs::kOutside, kJoined);
  check_course<SmallUNet>("UNet with attention", kTrainFirst, LossIs::kOutside, kJoined);
}

TEST_CASE("pointwise fusion: trains and evaluates in every parallelism") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const std::vector<Case> cases{{{.stages = 2, .fusion = ap::Switch::kOn}, {4, 2}},
                                {{.stages = 1, .microbatches = 2, .fusion = ap::Switch::kOn, .replicas = {2}}, {4, 2}},
                                {{.stages = 1, .tensor_parallel = 2, .fusion = ap::Switch::kOn}, {4, 2}}};
  check_course<SmallGates>("gates", kTrainFirst, LossIs::kInTrainStep, cases);
  check_course<SmallGates>("gates", kEvaluateFirst, LossIs::kOutside, kJoined);
}

/// What rank 0 has after three steps on two replicas of two micro-batches, whose statistics are their own.
std::map<std::string, Tensor> trained_on_replicas(ap::Switch fusion) {
  std::map<std::string, Tensor> state;
  ap::loopback::run(4, [&](ap::World& world) {
    const ap::Options options{.stages = 2, .microbatches = 2, .fusion = fusion, .replicas = {2}};
    ap::AutoParallel<SmallResNet> model(world, made<SmallResNet>(), options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const std::vector<int64_t> local{4, 4, 4, 4};
    const auto x = torch::cat({images(), images() * 2, images().flip(0)}).narrow(0, 0, 16),
               y = torch::arange(16, torch::kLong) % 3;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model
          ->train_step(loss_of, numerics::share_of(x, 0, local, world.rank()),
                       numerics::share_of(y, 0, local, world.rank()))
          .backward();
      optimizer.step();
    }
    const auto gathered = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& each : gathered) state[each.key()] = each.value();
  });
  return state;
}

TEST_CASE("fused batch norms: equal unfused bits in replicated training") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto apart = trained_on_replicas(ap::Switch::kOff), joined = trained_on_replicas(ap::Switch::kOn);
  CHECK(apart.size() > 20);
  CHECK(apart.size() == joined.size());
  for (const auto& [name, value] : apart) {
    INFO(name);
    CHECK(torch::equal(joined.at(name), value));
  }
}

// ---------------------------------------------------------------- modes that differ in what they run

/// Evaluation takes in order what training runs side by side, and ends with layers that are registered first and that
/// training does not use.
struct OtherWay : nn::Module {
  OtherWay() { nets::register_all(*this, "after", after, "trunk", trunk, "left", left, "right", right, "head", head); }
  Tensor forward(const Tensor& x) {
    const auto h = torch::tanh(trunk(x.mean({2, 3})));
    if (is_training()) return head(torch::tanh(left(h)) + torch::tanh(right(h)));
    return after(torch::tanh(head(torch::tanh(left(torch::tanh(right(h)))))));
  }
  nn::Linear trunk{3, 8}, left{8, 8}, right{8, 8}, head{8, 3}, after{3, 3};
};

/// Evaluation goes the other way round.
struct Reversed : nets::LayerList {
  Reversed() : LayerList(5, 3) {}
  Tensor forward(const Tensor& x) {
    auto h = layers[0](x.mean({2, 3}));
    for (size_t i = 1; i <= 3; ++i) h = torch::tanh(layers[is_training() ? i : 4 - i](h));
    return layers[4](h);
  }
};

TEST_CASE("stage cut: also runs a mode of another layer order") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const std::vector<Case> cases{{{.stages = 2}, {4, 2}}, {{.stages = 3}, {2, 2, 2}}};
  for (const auto& course : {kTrainFirst, kEvaluateFirst}) {
    check_course<OtherWay>("another order", course, LossIs::kOutside, cases);
    check_course<Reversed>("reversed", course, LossIs::kInTrainStep, cases);
  }
}

// ---------------------------------------------------------------- what the first plan counts

template <class Net>
ap::Plan plan_after(const ap::Options& options,
                    const std::function<void(ap::AutoParallel<Net>&, const Tensor&)>& first) {
  ap::Plan plan;
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    first(model, numerics::share_of(images(), 0, {3, 3}, world.rank()));
    if (world.rank() == 0) plan = model->plan();
  });
  return plan;
}

TEST_CASE("first plan: is for training whatever is called first") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  using Model = ap::AutoParallel<SmallResNet>;
  const std::vector<std::pair<std::string, std::function<void(Model&, const Tensor&)>>> firsts{
      {"a forward in no_grad",
       [](Model& model, const Tensor& x) {
         const torch::NoGradGuard no_grad;
         model(x);
       }},
      {"eval() in no_grad",
       [](Model& model, const Tensor& x) {
         model->eval();
         const torch::NoGradGuard no_grad;
         model(x);
       }},
      {"eval()",
       [](Model& model, const Tensor& x) {
         model->eval();
         model(x);
       }},
      {"inference mode",
       [](Model& model, const Tensor& x) {
         const c10::InferenceMode inference;
         model(x);
       }},
      {"prepare in eval()", [](Model& model, const Tensor& x) {
         model->eval();
         const torch::NoGradGuard no_grad;
         model->prepare(x);
       }}};
  for (const ap::BatchNorm batch_norm : {ap::BatchNorm::kExact, ap::BatchNorm::kMicrobatch}) {
    const ap::Options options{.batch_norm = batch_norm};
    const auto want = plan_after<SmallResNet>(options, [](Model& model, const Tensor& x) { model(x); });
    for (const auto& [name, first] : firsts) {
      INFO(name << ", batch_norm = " << ap::option_text(batch_norm));
      const auto got = plan_after<SmallResNet>(options, first);
      CHECK(got == want);
    }
  }
}

TEST_CASE("inference = true: plans forwards only, makes no gradients") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  using Model = ap::AutoParallel<SmallResNet>;
  const auto evaluate = [](Model& model, const Tensor& x) {
    model->eval();
    model(x);
  };
  const auto peak = [](const ap::Plan& plan) {
    std::int64_t bytes = 0;
    for (const auto& stage : plan.stages) bytes = std::max(bytes, stage.peak_memory.value());
    return bytes;
  };
  const auto trained = peak(plan_after<SmallResNet>({.stages = 2}, evaluate));
  const auto evaluated = peak(plan_after<SmallResNet>({.stages = 2, .inference = true}, evaluate));
  CHECK(3 * evaluated < 2 * trained);
  const auto enough = ap::Bytes(evaluated);
  CHECK_THROWS_AS(plan_after<SmallResNet>({.stages = 2, .device_memory = enough, .memory_margin = 0}, evaluate),
                  ap::Error);

  const auto net = made<SmallResNet>();
  net->eval();
  const auto want = net->forward(images());
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, made<SmallResNet>(),
                {.stages = 2, .device_memory = enough, .memory_margin = 0, .inference = true});
    model->eval();
    const auto result = model(numerics::share_of(images(), 0, {4, 2}, world.rank()));
    if (result.requires_grad()) throw Failure("a result has a history");
    check_close(result, numerics::share_of(want.detach(), 0, {4, 2}, world.rank()), kTolerance, "result");
    const auto loss = model->train_step(loss_of, numerics::share_of(images(), 0, {4, 2}, world.rank()),
                                        numerics::share_of(classes(), 0, {4, 2}, world.rank()));
    if (loss.requires_grad()) throw Failure("a loss has a history");
  });
}

TEST_CASE("forced schedule: used with an outside loss, trains the same") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto want = one_process<Reversed>(kTrainFirst);
  for (const ap::ScheduleKind schedule : ap::kScheduleKinds) {
    INFO(ap::option_text(schedule));
    const ap::Options options{.stages = 2, .microbatches = 2, .schedule = schedule};
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      check_rank<Reversed>(world, options, LossIs::kOutside, kTrainFirst, want, {3, 3});
    }));
    const auto plan = plan_after<Reversed>(options, [](auto& model, const Tensor& x) { model(x); });
    CHECK(plan.schedule == schedule);
  }
}

// ---------------------------------------------------------------- what is said

/// What rank 0 writes to its log while every rank runs `body`.
template <class Net, class Body>
std::vector<std::string> said(int ranks, const ap::Options& options, const Body& body) {
  std::vector<std::string> lines;
  ap::loopback::run(ranks, [&](ap::World& world) {
    if (world.rank() == 0) world.log().set_writer([&](const std::string& line) { lines.push_back(line); });
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    body(world, model);
    world.barrier();
  });
  return lines;
}

long count_of(const std::vector<std::string>& lines, const std::string& part) {
  return std::count_if(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
}

TEST_CASE("partial-batch batch norm: one warning with size and option") {
  torch::set_num_threads(1);
  const auto train = [](ap::World&, ap::AutoParallel<SmallResNet>& model) {
    for (int step = 0; step < 3; ++step) model(images().to(torch::kFloat).slice(0, 0, 4)).sum().backward();
    model->eval();
    model(images().to(torch::kFloat).slice(0, 0, 5));
  };
  const auto lines = said<SmallResNet>(2, {.stages = 1, .microbatches = 2, .replicas = {2}}, train);
  CHECK(count_of(lines, "batch norm: each statistic is of 2 of the 8 samples") == 1);
  CHECK(count_of(lines, "batch_norm = exact") == 1);
  CHECK(count_of(said<SmallResNet>(2, {.stages = 1, .replicas = {2}, .batch_norm = ap::BatchNorm::kExact}, train),
                 "batch norm") == 0);
  CHECK(count_of(said<SmallResNet>(1, {.microbatches = 1}, train), "batch norm") == 0);
  CHECK(count_of(said<SmallResNet>(2, {.stages = 1, .microbatches = 2, .replicas = {2}},
                                   [](ap::World&, ap::AutoParallel<SmallResNet>& model) {
                                     model->eval();
                                     model(images().to(torch::kFloat));
                                   }),
                 "batch norm") == 0);
}

TEST_CASE("call beyond planned memory: warns with both figures") {
  torch::set_num_threads(1);
  const auto evaluate = [](int64_t samples) {
    return [samples](ap::World&, ap::AutoParallel<SmallResNet>& model) {
      model(images().to(torch::kFloat)).sum().backward();
      model->eval();
      const torch::NoGradGuard no_grad;
      model(torch::zeros({samples, 3, 8, 8}));
    };
  };
  const ap::Options options{.stages = 1, .microbatches = 1, .replicas = {2}, .device_memory = ap::Bytes(4 << 20)};
  CHECK(count_of(said<SmallResNet>(2, options, evaluate(8)), "needs about") == 0);
  const auto lines = said<SmallResNet>(2, options, evaluate(4000));
  CHECK(count_of(lines, "needs about") == 1);
  CHECK(count_of(lines, "MiB") > 0);
  CHECK(count_of(lines, "8000 samples") == 1);
}

/// Norms over rows: a sample brings one value of each channel.
struct RowNorms : nets::MeanSquare<nets::BatchNormed> {
  RowNorms() : MeanSquare(4, nn::BatchNorm1dOptions(6), 3) {}
};

TEST_CASE("batch norm: no plan leaves one sample, forcing is reported") {
  torch::set_num_threads(1);
  const auto step = [](ap::World& world, ap::AutoParallel<RowNorms>& model) {
    model(torch::linspace(world.rank(), 2, 4).view({1, 4})).backward();
  };
  for (const int ranks : {2, 4}) CHECK_NOTHROW(said<RowNorms>(ranks, {}, step));
  for (const ap::Options& options : {ap::Options{.stages = 1, .replicas = {2}}, ap::Options{.microbatches = 2}}) {
    std::string message;
    try {
      static_cast<void>(said<RowNorms>(2, options, step));
    } catch (const ap::InvalidArgument& error) {
      message = error.what();
    }
    CAPTURE(message);
    for (const std::string part : {"norm", "one sample", "microbatches = ", "replicas", "batch_norm = exact"})
      CHECK(message.find(part) != std::string::npos);
    auto exact = options;
    exact.batch_norm = ap::BatchNorm::kExact;
    exact.microbatches = 1;
    CHECK_NOTHROW(said<RowNorms>(2, exact, step));
  }
}

TEST_CASE("ranks seeded differently: no warning, RNGs stay different") {
  torch::set_num_threads(1);
  std::vector<std::string> lines;
  std::vector<Tensor> drawn(2), weights(2);
  std::mutex mutex;
  for (const int other :
       {0, 1}) {  // the default generator is one for all threads, so ranks are seeded one after the other
    ap::loopback::run(2, [&](ap::World& world) {
      if (world.rank() == 1) world.log().set_writer([&](const std::string& line) { lines.push_back(line); });
      std::unique_ptr<ap::AutoParallel<RowNorms>> model;
      for (int rank = 0; rank < 2; ++rank) {
        world.barrier();
        if (rank != world.rank()) continue;
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(rank == 1 ? 40 + other : 7);
        model = std::make_unique<ap::AutoParallel<RowNorms>>(world, [] { return RowNorms(); });
      }
      world.barrier();
      (*model)(torch::linspace(world.rank(), 2, 8).view({2, 4})).backward();
      const auto value = (*model)->gather((*model)->module().a->weight);
      if (world.rank() == 0) weights[static_cast<size_t>(other)] = value;
      world.barrier();
      if (world.rank() == 1) drawn[static_cast<size_t>(other)] = torch::rand({4});
    });
  }
  CHECK(count_of(lines, "generator") == 0);
  CHECK(torch::equal(weights[0], weights[1]));
  CHECK_FALSE(torch::equal(drawn[0], drawn[1]));
}

}  // namespace modes_test
