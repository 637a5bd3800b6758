#include "models/resnet.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <autopar/capture/init_record.hpp>

#include "catch_shim.hpp"

namespace resnet_test {

using nlohmann::json;
using torch::Tensor;

const json& reference() {
  static const auto read = json::parse(std::ifstream(AUTOPAR_TEST_MODELS "/resnet_reference.json"));
  return read;
}

/// As `numbers` of resnet_reference.py.
Tensor numbers(std::int64_t key, std::int64_t count) {
  const auto bits = torch::arange(count).mul(2654435761).add(key * 40503 + 12345).remainder(std::int64_t{1} << 32);
  return bits.to(torch::kDouble).div(4294967296.0).sub(0.5);
}

/// Parameters and buffers, in the order of torchvision's state_dict: those of a module before its children's.
void add_state(const torch::nn::Module& module, const std::string& prefix,
               std::vector<std::pair<std::string, Tensor>>& state) {
  for (const auto& item : module.named_parameters(false)) state.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(false)) state.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_children()) add_state(*item.value(), prefix + item.key() + ".", state);
}

void fill(const std::vector<std::pair<std::string, Tensor>>& state) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < state.size(); ++i) {
    const auto& [name, tensor] = state[i];
    if (name.ends_with("num_batches_tracked")) continue;
    auto values = numbers(static_cast<std::int64_t>(i), tensor.numel());
    if (tensor.dim() == 4)
      values *= std::sqrt(24.0 / static_cast<double>(tensor.size(0) * tensor.size(2) * tensor.size(3)));
    else if (name.ends_with("running_var") || (tensor.dim() == 1 && name.ends_with("weight")))
      values = 1 + 0.5 * values;
    else
      values *= 0.4;
    tensor.copy_(values.view(tensor.sizes()));
  }
}

models::ResNet network(const json& expected) {
  return models::ResNet(models::ResNetSize{expected.at("layers"), expected.at("bottlenecks"), expected.at("planes"),
                                           expected.at("classes")},
                        expected.at("label_smoothing").get<double>());
}

double worst(const Tensor& values, const std::vector<double>& expected) {
  const auto wanted = torch::tensor(expected, torch::kDouble);
  return values.detach().to(torch::kDouble).flatten().sub(wanted).abs().max().item<double>() /
         wanted.abs().max().item<double>();
}

/// `numbers` as images, and what the network has to say of them.
struct Task {
  models::ResNet net;
  Tensor images, labels;
};

Task filled(const json& expected, torch::Dtype type) {
  auto net = network(expected);
  net->to(type);
  std::vector<std::pair<std::string, Tensor>> state;
  add_state(*net, "", state);
  fill(state);
  const std::int64_t size = expected.at("size");
  return {net, numbers(1000, 3 * 3 * size * size).view({3, 3, size, size}).mul(4).to(type),
          torch::tensor(expected.at("labels").get<std::vector<std::int64_t>>())};
}

/// @param tolerance  relative to the largest
Tensor compare_outputs(const json& expected, Task& task, double tolerance) {
  task.net->eval();
  CHECK(worst(task.net->logits(task.images), expected.at("judged")) < tolerance);
  task.net->train();
  const auto loss = task.net(task.images, task.labels);
  CHECK(std::abs(loss.item<double>() - expected.at("loss").get<double>()) < tolerance);
  return loss;
}

/// @param tolerance  relative to each gradient's norm
void compare_gradients(const json& expected, models::ResNet& net, double tolerance) {
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    const auto flat = item.value().grad().to(torch::kDouble).flatten();
    const std::vector<double> of_it = expected.at("gradients").at(item.key());
    const auto scale = of_it[0];
    CHECK(std::abs(flat.norm().item<double>() - of_it[0]) < tolerance * scale);
    CHECK(std::abs(flat.dot(numbers(7, flat.numel())).item<double>() - of_it[1]) < tolerance * scale);
    CHECK(std::abs(flat[0].item<double>() - of_it[2]) < tolerance * scale);
    CHECK(std::abs(flat[-1].item<double>() - of_it[3]) < tolerance * scale);
  }
}

/// Of single precision, as the tests of the other models: no element is off by more than the tolerance times one and
/// the largest of its gradient. And all gradients together, as one vector, by the tolerance times its norm.
/// @param exact  in double precision, as torchvision has them
void compare_single_gradients(models::ResNet& net, models::ResNet& exact, double tolerance) {
  const auto exact_parameters = exact->named_parameters();
  std::vector<Tensor> errors, all;
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    const auto& wanted = exact_parameters[item.key()].grad();
    const auto error = item.value().grad().to(torch::kDouble).sub(wanted);
    CHECK(error.abs().max().item<double>() <= tolerance * (1 + wanted.abs().max().item<double>()));
    errors.push_back(error.flatten());
    all.push_back(wanted.flatten());
  }
  CHECK(torch::cat(errors).norm().item<double>() <= tolerance * torch::cat(all).norm().item<double>());
}

TEST_CASE("ResNet: names, shapes and order match torchvision") {
  for (const auto& expected : reference().at("networks")) {
    const auto net = network(expected);
    std::vector<std::pair<std::string, Tensor>> state;
    add_state(*net, "", state);
    json shapes = json::array();
    for (const auto& [name, tensor] : state) shapes.push_back({name, tensor.sizes().vec()});
    CHECK(shapes == expected.at("shapes"));
  }
}

TEST_CASE("ResNet: outputs and gradients match torchvision") {
  for (const auto& expected : reference().at("networks")) {
    CAPTURE(expected.at("name").get<std::string>());
    auto exact = filled(expected, torch::kDouble), single = filled(expected, torch::kFloat);
    compare_outputs(expected, exact, 1e-11).backward();
    compare_gradients(expected, exact.net, 1e-11);
    compare_outputs(expected, single, 1e-5).backward();
    compare_single_gradients(single.net, exact.net, 1e-5);
  }
}

TEST_CASE("ResNet: parameter counts match torchvision up to 3.7 billion") {
  for (const auto& [name, count] : reference().at("parameters").items()) {
    CAPTURE(name);
    std::optional<models::ResNet> net;
    const auto record = autopar::InitRecord::record([&] { net.emplace(models::resnet_size(name)); },
                                                    autopar::Drawing::kAtMaterialisation);
    std::int64_t elements = 0;
    for (const auto& parameter : (*net)->parameters()) elements += parameter.numel();
    CHECK(elements == count.get<std::int64_t>());
  }
  CHECK(reference().at("parameters").at("resnet152x8") == 3'728'582'120);
}

TEST_CASE("ResNet: initialisation matches torchvision") {
  torch::manual_seed(1);
  models::ResNet net(models::resnet_size("resnet18"));
  const auto modules = net->named_modules();
  const auto weight = modules["layer4.0.conv1"]->as<torch::nn::Conv2d>()->weight;
  CHECK(std::abs(weight.std().item<double>() / std::sqrt(2.0 / (512 * 9)) - 1) < 0.01);
  CHECK(weight.abs().max().item<double>() > 3 * std::sqrt(2.0 / (512 * 9)));  // of a normal distribution
  const auto* norm = modules["layer2.0.downsample.1"]->as<torch::nn::BatchNorm2d>();
  CHECK(norm->weight.eq(1).all().item<bool>());
  CHECK(norm->bias.eq(0).all().item<bool>());
}

TEST_CASE("multiply_adds: counts convolutions and the last layer") {
  CHECK(std::abs(models::resnet_size("resnet50").multiply_adds(224) / 4.089e9 - 1) < 1e-3);  // torchvision's GFLOPS
  CHECK(std::abs(models::resnet_size("resnet18").multiply_adds(224) / 1.814e9 - 1) < 1e-3);
  CHECK(std::abs(models::resnet_size("resnet152").multiply_adds(224) / 11.514e9 - 1) < 1e-3);
}

TEST_CASE("resnet_size: an unknown network is refused by name") {
  for (const auto* name : {"resnet51", "resnet", "vgg16", "resnet50x9", "resnet50x", "50"})
    CHECK_THROWS_WITH(models::resnet_size(name), Catch::Matchers::Contains("'" + std::string(name) + "'"));
}

}  // namespace resnet_test
