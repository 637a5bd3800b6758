#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "models/bert.hpp"

namespace detail {

/// Reads the members of a BertConfig from JSON, and says what is wrong with one.
class BertConfigReader {
 public:
  BertConfigReader(const nlohmann::json& json, std::string file) : json_(json), file_(std::move(file)) {}

  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }

  void positive(const char* key, std::int64_t& member) {
    read(key, member, "a whole number above 0",
         [](const nlohmann::json& value) { return value.is_number_integer() && value.get<std::int64_t>() > 0; });
  }
  void probability(const char* key, double& member) {
    read(key, member, "a number from 0 to less than 1", [](const nlohmann::json& value) {
      return value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1;
    });
  }
  void above_zero(const char* key, double& member) {
    read(key, member, "a number above 0",
         [](const nlohmann::json& value) { return value.is_number() && value.get<double>() > 0; });
  }
  void flag(const char* key, bool& member) {
    read(key, member, "true or false", [](const nlohmann::json& value) { return value.is_boolean(); });
  }
  void one_of(const char* key, std::string& member, const std::vector<std::string>& words) {
    std::string all;
    for (const auto& word : words) all += (all.empty() ? "" : ", ") + word;
    read(key, member, "one of " + all, [&](const nlohmann::json& value) {
      return value.is_string() && std::find(words.begin(), words.end(), value.get<std::string>()) != words.end();
    });
  }

  /// After all that is read. @param without_effect  what such files have as well
  void require_no_other_keys(const std::vector<std::string>& without_effect) const {
    for (const auto& [key, value] : json_.items()) {
      const auto is_known = [&, &name = key](const std::vector<std::string>& in) {
        return std::find(in.begin(), in.end(), name) != in.end();
      };
      if (is_known(known_) || is_known(without_effect)) continue;
      throw autopar::ConfigError("there is no key '" + key + "' (here " + value.dump() + ")", file_, 0, key,
                                 autopar::nearest_word(key, known_));
    }
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw autopar::ConfigError("'" + key + "' is " + json_.value(key, nlohmann::json()).dump() + why, file_, 0, key);
  }

 private:
  template <class T, class Fits>
  void read(const char* key, T& member, const std::string& expected, const Fits& fits) {
    known_.emplace_back(key);
    if (!has(key)) return;
    const auto& value = json_.at(key);
    if (!fits(value)) refuse(key, "; " + expected + " is expected");
    member = value.get<T>();
  }

  const nlohmann::json& json_;
  std::string file_;
  std::vector<std::string> known_;
};

}  // namespace detail

/// A BERT configuration in JSON, as Google's, NVIDIA's and Hugging Face's. Keys that are not there keep their defaults.
/// @param file  names it in messages
/// @throws ConfigError naming the key, its value and what is expected, for an unknown key the nearest known one
inline models::BertConfig parse_bert_config(std::string_view text, const std::string& file) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw autopar::ConfigError("not a JSON object, as BERT's configurations are", file);
  models::BertConfig config;
  ::detail::BertConfigReader reader(json, file);
  std::vector<std::string> acts;
  for (const auto& [name, function] : models::activations()) acts.push_back(name);
  reader.positive("vocab_size", config.vocab_size);
  reader.positive("hidden_size", config.hidden_size);
  reader.positive("num_hidden_layers", config.num_hidden_layers);
  reader.positive("num_attention_heads", config.num_attention_heads);
  reader.positive("intermediate_size", config.intermediate_size);
  reader.positive("max_position_embeddings", config.max_position_embeddings);
  reader.positive("type_vocab_size", config.type_vocab_size);
  reader.one_of("hidden_act", config.hidden_act, acts);
  reader.probability("hidden_dropout_prob", config.hidden_dropout_prob);
  reader.probability("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  reader.above_zero("initializer_range", config.initializer_range);
  reader.above_zero("layer_norm_eps", config.layer_norm_eps);
  reader.flag("megatron_residual_connection", config.megatron_residual_connection);
  reader.flag("scale_query_key", config.scale_query_key);
  reader.flag("deep_weight_init", config.deep_weight_init);
  std::string positions = "absolute";
  reader.one_of("position_embedding_type", positions, {"absolute"});
  // What Hugging Face's and Google's files tell of other uses of a model.
  reader.require_no_other_keys({"architectures",
                                "model_type",
                                "transformers_version",
                                "torch_dtype",
                                "dtype",
                                "_name_or_path",
                                "use_cache",
                                "pad_token_id",
                                "bos_token_id",
                                "eos_token_id",
                                "classifier_dropout",
                                "gradient_checkpointing",
                                "tie_word_embeddings",
                                "is_decoder",
                                "add_cross_attention",
                                "directionality",
                                "pooler_fc_size",
                                "pooler_num_attention_heads",
                                "pooler_num_fc_layers",
                                "pooler_size_per_head",
                                "pooler_type"});
  if (config.hidden_size % config.num_attention_heads != 0) {
    throw autopar::ConfigError("'hidden_size' is " + std::to_string(config.hidden_size) +
                                   ", which is no multiple of 'num_attention_heads', " +
                                   std::to_string(config.num_attention_heads),
                               file, 0, "hidden_size");
  }
  return config;
}
