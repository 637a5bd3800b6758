#include "models/transformer.hpp"

#include <span>
#include <string>

#include <torch/torch.h>

#include <autopar/io/safetensors.hpp>

#include "catch_shim.hpp"

namespace transformer_test {

constexpr std::int64_t kLength = 12;

/// Of transformer_reference.py.
at::Tensor expected(const autopar::SafetensorsReader& reference, const std::string& name) {
  const auto* entry = reference.find(name);
  REQUIRE(entry != nullptr);
  auto values = torch::empty(entry->shape);
  reference.read(name,
                 std::as_writable_bytes(std::span(values.data_ptr<float>(), static_cast<std::size_t>(values.numel()))));
  return values;
}

void require_near(const at::Tensor& value, const at::Tensor& expected) {
  REQUIRE(value.sizes() == expected.sizes());
  CHECK((value - expected).abs().max().item<double>() <= 1e-5 * (1 + expected.abs().max().item<double>()));
}

void require_as_python(const std::string& name, const models::TransformerSize& size) {
  const autopar::SafetensorsReader reference(AUTOPAR_TEST_MODELS "/transformer_reference.safetensors");
  models::Transformer net(size);
  double phase = 0;
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      const auto places = torch::arange(parameter.numel(), torch::kDouble);
      parameter.copy_((0.3 * torch::sin(0.7 * places + phase++)).view(parameter.sizes()));
    }
  }
  const auto text = (torch::arange(2 * kLength).view({2, kLength}) * 7 + 3).remainder(size.words);
  const auto loss = net(text, (text * 5 + 1).remainder(size.words));
  loss.backward();
  require_near(loss.detach().view(1), expected(reference, name + ".loss"));
  require_near(net->next(text, torch::tensor({4, 11}, torch::kLong)).detach(), expected(reference, name + ".next"));
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    require_near(item.value().grad(), expected(reference, name + "." + item.key()));
  }
  CHECK((reference.find(name + ".places.weight") == nullptr) == size.rotary);
}

constexpr models::TransformerSize kSize{.words = 61, .width = 16, .layers = 2, .heads = 4, .length = kLength};

TEST_CASE("Transformer: loss, logits and gradients match PyTorch") { require_as_python("learned", kSize); }

TEST_CASE("Transformer: rotary positions and tied head match PyTorch") {
  auto size = kSize;
  size.rotary = size.tied = true;
  require_as_python("rotary", size);
}

TEST_CASE("Transformer: the next word ignores what follows the last one") {
  models::Transformer net(kSize);
  const auto text = torch::arange(2 * kLength).view({2, kLength});
  auto other = text.clone();
  other.slice(1, 7).fill_(0);
  const auto last = torch::full({2}, 6, torch::kLong);
  CHECK(torch::equal(net->next(text, last), net->next(other, last)));
}

TEST_CASE("initialise_as_gpt2: residual weights shrink with depth") {
  torch::manual_seed(1);
  auto size = kSize;
  size.width = 64;
  models::Transformer net(size);
  models::initialise_as_gpt2(net);
  const auto parameters = net->named_parameters();
  CHECK(parameters["words.weight"].std().item<double>() == Approx(0.02).epsilon(0.05));
  CHECK(parameters["blocks.1.fc2.weight"].std().item<double>() == Approx(0.01).epsilon(0.05));
  CHECK(parameters["blocks.0.ln1.weight"].eq(1).all().item<bool>());
  CHECK(parameters["blocks.0.qkv.bias"].eq(0).all().item<bool>());
}

}  // namespace transformer_test
