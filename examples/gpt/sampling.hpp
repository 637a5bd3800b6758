#pragma once

#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <autopar/autopar.hpp>

#include "models/transformer.hpp"
#include "text/vocabulary.hpp"

/// How words are drawn.
struct Sampling {
  std::string prompt{};
  std::int64_t length = 200;  ///< tokens that are drawn
  double temperature = 0.8;   ///< 0: always the likeliest
  std::int64_t top_k = 40;    ///< among so many; 0: among all
};

inline Vocabulary::Token drawn(const at::Tensor& logits, const Sampling& sampling, at::Generator generator) {
  if (sampling.temperature == 0) return static_cast<Vocabulary::Token>(logits.argmax().item<std::int64_t>());
  const auto all = logits.size(0);
  const auto [likeliest, tokens] = logits.topk(sampling.top_k > 0 ? std::min(sampling.top_k, all) : all);
  const auto place = torch::softmax(likeliest / sampling.temperature, 0).multinomial(1, false, generator);
  return static_cast<Vocabulary::Token>(tokens[place.item<std::int64_t>()].item<std::int64_t>());
}

/// Goes on with the prompt, on rank 0's output. The text is rank 0's; other ranks bring no sample and compute their
/// part of the model, where they have one. Each token costs a forward of `window` places: nothing is kept between them.
/// Collective.
/// @throws std::runtime_error if there is no prompt
inline void print_sample(autopar::World& world, autopar::AutoParallel<models::Transformer>& model,
                         const Vocabulary& vocabulary, const Sampling& sampling, std::int64_t window,
                         std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const bool first = world.rank() == 0;
  auto tokens = vocabulary.encoded(sampling.prompt);
  if (tokens.empty()) throw std::runtime_error("--sample: the prompt is empty; begin the text with a word");
  auto generator = at::detail::createCPUGenerator(seed);
  if (first) std::cout << sampling.prompt << std::flush;
  for (std::int64_t i = 0; i < sampling.length; ++i) {
    const auto seen = std::min(static_cast<std::int64_t>(tokens.size()), window);
    auto text = torch::zeros({first ? 1 : 0, window}, torch::kLong);
    if (first) std::copy(tokens.end() - seen, tokens.end(), text.data_ptr<std::int64_t>());
    const auto last = torch::full({text.size(0)}, seen - 1, torch::kLong);
    const auto logits = model->call(&models::TransformerImpl::next, text, last);
    if (!first) continue;
    tokens.push_back(drawn(logits[0].cpu().to(torch::kDouble).slice(0, 0, vocabulary.size()), sampling, generator));
    std::cout << vocabulary.decoded({tokens.back()}) << std::flush;
  }
  if (first) std::cout << std::endl;
}
