#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn.h>

/// BERT with both of its heads (Devlin et al. 2018). Parameters are named as in Hugging Face's BertForPreTraining, with
/// Megatron's residuals as in MegatronBertForPreTraining, so that files of either can be read.
namespace models {

/// The keys of BERT's JSON files.
struct BertConfig {
  std::int64_t vocab_size = 30'522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  std::string hidden_act = "gelu";  ///< gelu | gelu_new | relu | silu | swish | tanh
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  /// Norms before attention and before the feed-forward part, and one at the end, none behind sums (Shoeybi et al.
  /// 2019, "Megatron-LM", figure 7): what deep models need to learn at all.
  bool megatron_residual_connection = false;
  /// The product of queries and keys in layer l is l times smaller, what becomes of it in fp32 l times larger: it does
  /// not overflow in fp16. Apart from rounding nothing changes.
  bool scale_query_key = false;
  /// What is added to residuals starts sqrt(2 layers) times smaller (Megatron-LM, section 5).
  bool deep_weight_init = false;
};

using Activation = at::Tensor (*)(const at::Tensor&);

inline const std::vector<std::pair<std::string, Activation>>& activations() {
  static const std::vector<std::pair<std::string, Activation>> all{
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu_new", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"relu", [](const at::Tensor& x) { return at::relu(x); }},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }},
      {"swish", [](const at::Tensor& x) { return at::silu(x); }},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
  };
  return all;
}

/// @throws c10::Error on a name that is none of them
inline Activation activation(const std::string& name) {
  for (const auto& [known, function] : activations()) {
    if (known == name) return function;
  }
  TORCH_CHECK(false, "hidden_act: there is no activation '", name, "'");
}

/// torch::nn::Linear that starts as BERT's do, with its bias at zero, without drawing libtorch's own weights first.
struct BertLinearImpl : torch::nn::Module {
  at::Tensor weight, bias;

  BertLinearImpl(std::int64_t in, std::int64_t out, double deviation)
      : weight(register_parameter("weight", torch::nn::init::normal_(torch::empty({out, in}), 0, deviation))),
        bias(register_parameter("bias", torch::zeros({out}))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::nn::functional::linear(x, weight, bias); }
};
TORCH_MODULE(BertLinear);

namespace detail {

inline torch::nn::Embedding bert_embedding(std::int64_t rows, const BertConfig& config) {
  const auto weights = torch::nn::init::normal_(torch::empty({rows, config.hidden_size}), 0, config.initializer_range);
  return torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, config.hidden_size)._weight(weights));
}

inline torch::nn::LayerNorm bert_norm(const BertConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

}  // namespace detail

/// Words, positions and types of tokens.
struct BertEmbeddingsImpl : torch::nn::Module {
  torch::nn::Embedding words, positions, types;
  torch::nn::LayerNorm norm{nullptr};
  double dropout;

  explicit BertEmbeddingsImpl(const BertConfig& config)
      : words(register_module("word_embeddings", detail::bert_embedding(config.vocab_size, config))),
        positions(
            register_module("position_embeddings", detail::bert_embedding(config.max_position_embeddings, config))),
        types(register_module("token_type_embeddings", detail::bert_embedding(config.type_vocab_size, config))),
        dropout(config.hidden_dropout_prob) {
    if (!config.megatron_residual_connection) norm = register_module("LayerNorm", detail::bert_norm(config));
  }
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& token_types) {
    TORCH_CHECK(input_ids.size(1) <= positions->options.num_embeddings(), "a text of ", input_ids.size(1),
                " tokens, but max_position_embeddings is ", positions->options.num_embeddings());
    auto sum = words(input_ids) + positions(torch::arange(input_ids.size(1), input_ids.options())) + types(token_types);
    if (!norm.is_empty()) sum = norm(sum);
    return torch::dropout(sum, dropout, is_training());
  }
};
TORCH_MODULE(BertEmbeddings);

struct BertSelfAttentionImpl : torch::nn::Module {
  BertLinear query, key, value;
  std::int64_t heads;
  double dropout;
  double layer;  ///< from 1, where scores are scaled by it, else 0

  BertSelfAttentionImpl(const BertConfig& config, std::int64_t number)
      : query(register_module("query", projection(config))),
        key(register_module("key", projection(config))),
        value(register_module("value", projection(config))),
        heads(config.num_attention_heads),
        dropout(config.attention_probs_dropout_prob),
        layer(config.scale_query_key ? static_cast<double>(number) : 0) {}

  /// @param mask  added to scores [samples, heads, length, length]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    auto q = by_head(query(x)), k = by_head(key(x));
    std::optional<double> scale;
    if (layer > 0) {  // fused kernels have scores in fp32 when they scale them
      const double share = 1 / std::sqrt(layer * std::sqrt(static_cast<double>(q.size(3))));
      q = q * share;
      k = k * share;
      scale = layer;
    }
    const auto attended = at::scaled_dot_product_attention(q, k, by_head(value(x)), mask, is_training() ? dropout : 0.0,
                                                           /*is_causal=*/false, scale);
    return attended.transpose(1, 2).reshape(x.sizes());
  }

 private:
  static BertLinear projection(const BertConfig& config) {
    return BertLinear(config.hidden_size, config.hidden_size, config.initializer_range);
  }
  at::Tensor by_head(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
  }
};
TORCH_MODULE(BertSelfAttention);

/// What is added to a residual.
struct BertOutputImpl : torch::nn::Module {
  BertLinear dense;
  torch::nn::LayerNorm norm{nullptr};
  double dropout;

  BertOutputImpl(const BertConfig& config, std::int64_t in)
      : dense(register_module("dense", BertLinear(in, config.hidden_size, deviation(config)))),
        dropout(config.hidden_dropout_prob) {
    if (!config.megatron_residual_connection) norm = register_module("LayerNorm", detail::bert_norm(config));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    const auto sum = torch::dropout(dense(x), dropout, is_training()) + residual;
    return norm.is_empty() ? sum : norm(sum);
  }

 private:
  static double deviation(const BertConfig& config) {
    const double shrink = std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
    return config.initializer_range / (config.deep_weight_init ? shrink : 1);
  }
};
TORCH_MODULE(BertOutput);

struct BertAttentionImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{nullptr};
  BertSelfAttention self;
  BertOutput output;

  BertAttentionImpl(const BertConfig& config, std::int64_t number)
      : self(register_module("self", BertSelfAttention(config, number))),
        output(register_module("output", BertOutput(config, config.hidden_size))) {
    if (config.megatron_residual_connection) norm = register_module("ln", detail::bert_norm(config));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return output(self(norm.is_empty() ? x : norm(x), mask), x);
  }
};
TORCH_MODULE(BertAttention);

struct BertIntermediateImpl : torch::nn::Module {
  BertLinear dense;
  Activation activate;

  explicit BertIntermediateImpl(const BertConfig& config)
      : dense(register_module("dense",
                              BertLinear(config.hidden_size, config.intermediate_size, config.initializer_range))),
        activate(activation(config.hidden_act)) {}
  at::Tensor forward(const at::Tensor& x) { return activate(dense(x)); }
};
TORCH_MODULE(BertIntermediate);

struct BertLayerImpl : torch::nn::Module {
  BertAttention attention;
  torch::nn::LayerNorm norm{nullptr};
  BertIntermediate intermediate;
  BertOutput output;

  BertLayerImpl(const BertConfig& config, std::int64_t number)
      : attention(register_module("attention", BertAttention(config, number))),
        intermediate(register_module("intermediate", BertIntermediate(config))),
        output(register_module("output", BertOutput(config, config.intermediate_size))) {
    if (config.megatron_residual_connection) norm = register_module("ln", detail::bert_norm(config));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const auto attended = attention(x, mask);
    return output(intermediate(norm.is_empty() ? attended : norm(attended)), attended);
  }
};
TORCH_MODULE(BertLayer);

struct BertEncoderImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm{nullptr};

  explicit BertEncoderImpl(const BertConfig& config) {
    for (std::int64_t i = 1; i <= config.num_hidden_layers; ++i) layers->push_back(BertLayer(config, i));
    register_module("layer", layers);
    if (config.megatron_residual_connection) norm = register_module("ln", detail::bert_norm(config));
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& mask) {
    for (const auto& layer : *layers) x = layer->as<BertLayer>()->forward(x, mask);
    return norm.is_empty() ? x : norm(x);
  }
};
TORCH_MODULE(BertEncoder);

struct BertPoolerImpl : torch::nn::Module {
  BertLinear dense;

  explicit BertPoolerImpl(const BertConfig& config)
      : dense(register_module("dense", BertLinear(config.hidden_size, config.hidden_size, config.initializer_range))) {}
  at::Tensor forward(const at::Tensor& sequence) { return torch::tanh(dense(sequence.select(1, 0))); }
};
TORCH_MODULE(BertPooler);

struct BertModelImpl : torch::nn::Module {
  BertEmbeddings embeddings;
  BertEncoder encoder;
  BertPooler pooler;

  explicit BertModelImpl(const BertConfig& config)
      : embeddings(register_module("embeddings", BertEmbeddings(config))),
        encoder(register_module("encoder", BertEncoder(config))),
        pooler(register_module("pooler", BertPooler(config))) {}

  /// @param input_mask  [samples, length], 1 for tokens and 0 behind the text's end
  /// @return the last layer's [samples, length, hidden], and of it the pooled first token [samples, hidden]
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& input_ids, const at::Tensor& token_types,
                                            const at::Tensor& input_mask) {
    const auto x = embeddings(input_ids, token_types);
    constexpr double kHidden = -10'000;
    const auto mask = (1 - input_mask.to(x.scalar_type())).mul(kHidden).unsqueeze(1).unsqueeze(1);
    auto sequence = encoder(x, mask);
    auto pooled = pooler(sequence);
    return {std::move(sequence), std::move(pooled)};
  }
};
TORCH_MODULE(BertModel);

struct BertTransformImpl : torch::nn::Module {
  BertLinear dense;
  torch::nn::LayerNorm norm;
  Activation activate;

  explicit BertTransformImpl(const BertConfig& config)
      : dense(register_module("dense", BertLinear(config.hidden_size, config.hidden_size, config.initializer_range))),
        norm(register_module("LayerNorm", detail::bert_norm(config))),
        activate(activation(config.hidden_act)) {}
  at::Tensor forward(const at::Tensor& x) { return norm(activate(dense(x))); }
};
TORCH_MODULE(BertTransform);

/// Scores of words. The matrix is that of the word embeddings (tied).
struct BertPredictionsImpl : torch::nn::Module {
  BertTransform transform;
  at::Tensor bias;

  explicit BertPredictionsImpl(const BertConfig& config)
      : transform(register_module("transform", BertTransform(config))),
        bias(register_parameter("bias", torch::zeros(config.vocab_size))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& words) {
    return torch::nn::functional::linear(transform(x), words, bias);
  }
};
TORCH_MODULE(BertPredictions);

struct BertHeadsImpl : torch::nn::Module {
  BertPredictions predictions;
  BertLinear next_sentence;

  explicit BertHeadsImpl(const BertConfig& config)
      : predictions(register_module("predictions", BertPredictions(config))),
        next_sentence(
            register_module("seq_relationship", BertLinear(config.hidden_size, 2, config.initializer_range))) {}
};
TORCH_MODULE(BertHeads);

/// What a training step gives: the sum of both losses, and of each of them the value alone.
struct BertLosses {
  at::Tensor loss, masked_lm, next_sentence;
};

/// Of a batch whose answers are known: the loss, and how many were right of how many.
struct BertAnswers {
  at::Tensor loss, masked_right, masked, next_right;
};

/// Scores of the hidden tokens [samples, predictions, vocabulary], and of whether b follows a [samples, 2].
struct BertScores {
  at::Tensor words, next_sentence;
};

/// Learns to guess hidden tokens, and whether the second text follows the first.
struct BertForPreTrainingImpl : torch::nn::Module {
  BertModel bert;
  BertHeads heads;

  explicit BertForPreTrainingImpl(const BertConfig& config)
      : bert(register_module("bert", BertModel(config))), heads(register_module("cls", BertHeads(config))) {}

  /// Only hidden tokens are scored, which all others would cost several times as much for.
  /// @param positions  [samples, predictions] of the hidden tokens
  BertScores scores(const at::Tensor& input_ids, const at::Tensor& token_types, const at::Tensor& input_mask,
                    const at::Tensor& positions) {
    const auto [sequence, pooled] = bert->forward(input_ids, token_types, input_mask);
    const auto hidden = sequence.gather(1, positions.unsqueeze(2).expand({-1, -1, sequence.size(2)}));
    return {heads->predictions(hidden, bert->embeddings->words->weight), heads->next_sentence(pooled)};
  }

  /// @param labels         [samples, predictions] what the hidden tokens were, -1 where there is none
  /// @param next_sentence  [samples] 0: b follows a, 1: b is from elsewhere
  BertLosses forward(const at::Tensor& input_ids, const at::Tensor& token_types, const at::Tensor& input_mask,
                     const at::Tensor& positions, const at::Tensor& labels, const at::Tensor& next_sentence) {
    const auto given = scores(input_ids, token_types, input_mask, positions);
    const auto masked_lm = loss_of(given.words.flatten(0, 1), labels.flatten());
    const auto next = loss_of(given.next_sentence, next_sentence);
    return {masked_lm + next, masked_lm.detach(), next.detach()};
  }

  /// As forward, for a validation.
  BertAnswers answers(const at::Tensor& input_ids, const at::Tensor& token_types, const at::Tensor& input_mask,
                      const at::Tensor& positions, const at::Tensor& labels, const at::Tensor& next_sentence) {
    const auto given = scores(input_ids, token_types, input_mask, positions);
    const auto loss =
        loss_of(given.words.flatten(0, 1), labels.flatten()) + loss_of(given.next_sentence, next_sentence);
    return {loss, given.words.argmax(-1).eq(labels).sum(), labels.ge(0).sum(),
            given.next_sentence.argmax(-1).eq(next_sentence).sum()};
  }

 private:
  static at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& labels) {
    namespace F = torch::nn::functional;
    return F::cross_entropy(scores, labels, F::CrossEntropyFuncOptions().ignore_index(-1));
  }
};
TORCH_MODULE(BertForPreTraining);

/// Floating-point operations of one sample's forward and backward: matrix products alone, each multiply-add two.
inline double bert_flops(const BertConfig& config, std::int64_t length, std::int64_t predictions) {
  const auto h = static_cast<double>(config.hidden_size), inner = static_cast<double>(config.intermediate_size);
  const auto layers = static_cast<double>(config.num_hidden_layers), s = static_cast<double>(length);
  const double of_layers = layers * s * (4 * h * h + 2 * h * inner + 2 * s * h);
  const double of_heads = static_cast<double>(predictions) * h * (h + static_cast<double>(config.vocab_size)) + h * h;
  return 6 * (of_layers + of_heads);
}

}  // namespace models
