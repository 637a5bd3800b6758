#include "models/bert.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "catch_shim.hpp"

namespace bert_test {

using at::Tensor;

/// What PyTorch makes of the same weights and inputs.
struct ReferenceCase {
  std::string name;
  models::BertConfig config;
  double masked_lm, next_sentence;
  std::vector<double> words, next_scores;
  std::map<std::string, std::vector<double>> gradients;
};

const std::vector<ReferenceCase>& reference() {
  static const std::vector<ReferenceCase> cases{
#include "bert_reference.inc"
  };
  return cases;
}

/// 32 bits that follow from a name and an index, as in bert_reference.py.
std::uint32_t number(const std::string& name, std::size_t index) {
  std::uint32_t hash = 2166136261u;
  for (const char byte : name) hash = (hash ^ static_cast<unsigned char>(byte)) * 16777619u;
  hash += static_cast<std::uint32_t>(index) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  return hash ^ hash >> 13;
}

Tensor integers(const std::string& name, std::int64_t below, std::vector<std::int64_t> shape) {
  auto values = torch::empty(shape, torch::kLong);
  auto* data = values.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < static_cast<std::size_t>(values.numel()); ++i) data[i] = number(name, i) % below;
  return values;
}

void set_weights(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (auto& item : net.named_parameters()) {
    const auto& name = item.key();
    const double around = name.ends_with("LayerNorm.weight") || name.ends_with("ln.weight") ? 1 : 0;
    auto values = torch::empty(item.value().sizes(), torch::kDouble);
    auto* data = values.data_ptr<double>();
    for (std::size_t i = 0; i < static_cast<std::size_t>(values.numel()); ++i) {
      data[i] = (number(name, i) / 0x1p32 - 0.5) * 0.8 + around;
    }
    item.value().copy_(values);
  }
}

struct Inputs {
  Tensor ids, types, mask, positions, labels, next;
};

Inputs inputs() {
  const auto mask = torch::tensor({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0}, torch::kLong).view({3, 6});
  auto positions = integers("positions", 3, {3, 2}) + 1, labels = integers("labels", 13, {3, 2});
  positions[1][1] = 0;
  labels[1][1] = -1;
  return {integers("ids", 13, {3, 6}) * mask,
          integers("types", 2, {3, 6}) * mask,
          mask,
          positions,
          labels,
          integers("next", 2, {3})};
}

void check_near(const Tensor& value, const std::vector<double>& expected, double tolerance) {
  const auto wanted = torch::tensor(expected, torch::kDouble);
  const auto flat = value.detach().to(torch::kDouble).flatten();
  REQUIRE(flat.sizes() == wanted.sizes());
  const double most = (flat - wanted).abs().max().item<double>();
  CHECK(most <= tolerance * (1 + wanted.abs().max().item<double>()));
}

TEST_CASE("BertForPreTraining: scores, losses, gradients match PyTorch") {
  for (const auto& wanted : reference()) {
    for (const auto type : {torch::kDouble, torch::kFloat}) {
      const double tolerance = type == torch::kDouble ? 1e-10 : 1e-5;
      INFO(wanted.name << " in " << type);
      models::BertForPreTraining net(wanted.config);
      net->to(type);
      net->eval();  // no dropout
      set_weights(*net);
      const auto in = inputs();
      const auto scores = net->scores(in.ids, in.types, in.mask, in.positions);
      check_near(scores.words, wanted.words, tolerance);
      check_near(scores.next_sentence, wanted.next_scores, tolerance);
      const auto losses = net->forward(in.ids, in.types, in.mask, in.positions, in.labels, in.next);
      check_near(losses.masked_lm.view(1), {wanted.masked_lm}, tolerance);
      check_near(losses.next_sentence.view(1), {wanted.next_sentence}, tolerance);
      losses.loss.backward();
      CHECK(net->named_parameters().size() == wanted.gradients.size());
      for (const auto& [name, gradient] : wanted.gradients) {
        INFO(name);
        const auto* parameter = net->named_parameters().find(name);
        REQUIRE(parameter != nullptr);
        check_near(parameter->grad(), gradient, tolerance);
      }
    }
  }
}

TEST_CASE("BertForPreTraining: right answers are counted") {
  models::BertForPreTraining net(reference().front().config);
  net->eval();
  set_weights(*net);
  auto in = inputs();
  const auto scores = net->scores(in.ids, in.types, in.mask, in.positions);
  in.labels = scores.words.argmax(-1);
  in.labels[1][1] = -1;
  in.labels[2][0] = (in.labels[2][0] + 1).remainder(13);
  in.next = 1 - scores.next_sentence.argmax(-1);
  const auto answers = net->answers(in.ids, in.types, in.mask, in.positions, in.labels, in.next);
  CHECK(answers.masked.item<std::int64_t>() == 5);
  CHECK(answers.masked_right.item<std::int64_t>() == 4);
  CHECK(answers.next_right.item<std::int64_t>() == 0);
}

TEST_CASE("BertForPreTraining: initial weights follow the configuration") {
  models::BertConfig config{.vocab_size = 2000, .hidden_size = 128, .num_hidden_layers = 8, .num_attention_heads = 2};
  config.initializer_range = 0.05;
  config.deep_weight_init = true;
  torch::manual_seed(1);
  models::BertForPreTraining net(config);
  const auto weights = net->named_parameters();
  const auto deviation = [&](const std::string& name) { return weights[name].std().item<double>(); };
  CHECK(deviation("bert.embeddings.word_embeddings.weight") == Approx(0.05).epsilon(0.02));
  CHECK(deviation("bert.encoder.layer.3.attention.self.key.weight") == Approx(0.05).epsilon(0.02));
  CHECK(deviation("bert.encoder.layer.3.attention.output.dense.weight") == Approx(0.05 / 4).epsilon(0.02));
  CHECK(deviation("bert.encoder.layer.7.output.dense.weight") == Approx(0.05 / 4).epsilon(0.02));
  CHECK(weights["bert.pooler.dense.bias"].abs().max().item<double>() == 0);
}

TEST_CASE("BertForPreTraining: refuses long text, unknown activation") {
  models::BertForPreTraining net(reference().front().config);
  const auto ids = torch::zeros({1, 11}, torch::kLong);
  CHECK_THROWS_WITH(net->scores(ids, ids, ids, torch::ones({1, 1}, torch::kLong)),
                    Catch::Matchers::ContainsSubstring("a text of 11 tokens, but max_position_embeddings is 10"));
  CHECK_THROWS_WITH(models::BertForPreTraining(models::BertConfig{.hidden_act = "glue"}),
                    Catch::Matchers::ContainsSubstring("no activation 'glue'"));
}

}  // namespace bert_test
