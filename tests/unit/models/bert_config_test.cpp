#include "bert_pretraining/config.hpp"

#include <string>

#include "catch_shim.hpp"

namespace bert_config_test {

using Catch::Matchers::ContainsSubstring;

models::BertConfig parsed(const std::string& json) { return parse_bert_config(json, "bert.json"); }

TEST_CASE("BertConfig: reads the one of 4.9 billion parameters") {
  const auto config = parsed(R"({
  "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.2, "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 512, "num_attention_heads": 32,
  "num_hidden_layers": 96, "type_vocab_size": 2, "vocab_size": 30528, "megatron_residual_connection": true,
  "scale_query_key": true, "deep_weight_init": true
})");
  CHECK(config.hidden_size == 2048);
  CHECK(config.intermediate_size == 8192);
  CHECK(config.num_hidden_layers == 96);
  CHECK(config.vocab_size == 30528);
  CHECK(config.hidden_dropout_prob == 0.2);
  CHECK(config.megatron_residual_connection);
  CHECK(config.scale_query_key);
  CHECK(config.deep_weight_init);
}

TEST_CASE("BertConfig: missing keys default, foreign ones are ignored") {
  const auto config = parsed(R"({"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 384,
                                 "position_embedding_type": "absolute"})");
  CHECK(config.hidden_size == 384);
  CHECK(config.num_hidden_layers == 12);
  CHECK_FALSE(config.megatron_residual_connection);
}

TEST_CASE("BertConfig: a wrong one is refused by key and value") {
  const auto refused = [](const std::string& json, const auto& matcher) { CHECK_THROWS_WITH(parsed(json), matcher); };
  refused(R"({"num_hiden_layers": 3})", ContainsSubstring("bert.json: there is no key 'num_hiden_layers' (here 3)") &&
                                            ContainsSubstring("did you mean 'num_hidden_layers'?"));
  refused(R"({"hidden_size": "big"})", ContainsSubstring("'hidden_size' is \"big\"; a whole number above 0"));
  refused(R"({"num_hidden_layers": 0})", ContainsSubstring("'num_hidden_layers' is 0"));
  refused(R"({"hidden_act": "glue"})", ContainsSubstring("'hidden_act' is \"glue\"; one of gelu, gelu_new, relu"));
  refused(R"({"hidden_dropout_prob": 1})", ContainsSubstring("'hidden_dropout_prob' is 1; a number from 0"));
  refused(R"({"scale_query_key": 1})", ContainsSubstring("'scale_query_key' is 1; true or false"));
  refused(R"({"position_embedding_type": "relative_key"})", ContainsSubstring("one of absolute"));
  refused(R"({"hidden_size": 100})", ContainsSubstring("no multiple of 'num_attention_heads', 12"));
  refused("[1]", ContainsSubstring("bert.json: not a JSON object"));
  refused("{", ContainsSubstring("not a JSON object"));
}

}  // namespace bert_config_test
