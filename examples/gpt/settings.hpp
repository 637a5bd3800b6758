#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "command_line/settings.hpp"
#include "models/transformer.hpp"
#include "sampling.hpp"
#include "size.hpp"

/// What the program can be told.
struct Settings : command_line::Settings {
  Settings() { learning_rate = 0; }  // as the size

  std::vector<std::string> data{"/usr/share/common-licenses"};
  std::string vocabulary = "bytes";
  std::string tokens{}, write_tokens{};
  std::string size = "tiny";
  models::TransformerSize given{.words = 0, .width = 0, .layers = 0, .heads = 0, .length = 0};
  std::int64_t held_out = 256, validate_every = 100;
  Sampling sampling;
};

/// A text where a vocabulary's number of words cannot be.
inline std::string mistake_in_vocabulary(const std::string& wanted) {
  constexpr std::int64_t kLeast = 257, kMost = 1'000'000;
  if (wanted.find_first_not_of("0123456789") != std::string::npos) return {};
  if (wanted.size() <= 7 && !wanted.empty() && std::stoll(wanted) >= kLeast && std::stoll(wanted) <= kMost) return {};
  return "a vocabulary has from " + std::to_string(kLeast) + " to " + std::to_string(kMost) + " words, not '" + wanted +
         "'";
}

inline void add_own_options(CLI::App& app, Settings& settings) {
  std::vector<std::string> names;
  for (const auto& [name, size] : kSizes) names.push_back(name);
  auto& given = settings.given;
  const auto model = "The model";
  app.add_option("--data", settings.data, "texts: files, and folders with all files within")->group(model);
  app.add_option("--vocabulary", settings.vocabulary,
                 "bytes; a number: so many of the text's commonest pieces (BPE); a file: those of an earlier run")
      ->check(mistake_in_vocabulary)
      ->group(model);
  app.add_option("--write-tokens", settings.write_tokens,
                 "only write the texts' tokens, and the vocabulary, into this folder")
      ->group(model)
      ->configurable(false);
  app.add_option("--tokens", settings.tokens, "instead of --data and --vocabulary: such a folder, for large texts")
      ->group(model);
  app.add_option("--size", settings.size)->check(CLI::IsMember(names))->group(model);
  const auto add_size = [&](const char* name, std::int64_t& member, const char* text) {
    app.add_option(name, member, text)->check(CLI::PositiveNumber)->default_str("as the size")->group(model);
  };
  add_size("--layers", given.layers, "");
  add_size("--width", given.width, "");
  add_size("--heads", given.heads, "");
  add_size("--length", given.length, "tokens of a sample");
  add_size("--words", given.words, "of the table; what the vocabulary does not have is never used");
  app.add_flag("--rotary", given.rotary, "rotary positions instead of a table")->group(model);
  app.add_flag("--tied", given.tied, "the head is the table of words")->group(model);
  app.add_option("--dropout", given.dropout)->check(CLI::Range(0.0, 1.0))->group(model);
  app.add_option("--held-out", settings.held_out, "samples for validation, at most a tenth")->group(model);
  app.add_option("--validate-every", settings.validate_every, "steps")->check(CLI::PositiveNumber)->group(model);
  app.get_option("--lr")->default_str("as the size");
  const auto sample = "Sampling";
  auto& sampling = settings.sampling;
  app.add_option("--sample", sampling.prompt, "go on with this text, by the newest checkpoint in --out; no training")
      ->each([&](const std::string&) { settings.resume = true; })
      ->group(sample)
      ->configurable(false);
  app.add_option("--sample-length", sampling.length, "tokens")->group(sample)->configurable(false);
  app.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->group(sample)
      ->configurable(false);
  app.add_option("--top-k", sampling.top_k, "draw among so many; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->group(sample)
      ->configurable(false);
}
