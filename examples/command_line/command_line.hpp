#pragma once

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <autopar/io/config.hpp>
#include <autopar/plan/option_text.hpp>

namespace command_line {

/// An option of autopar's Options that is a word, such as Options::precision.
template <autopar::WordOption T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& value, const std::string& description = {}) {
  return app
      .add_option_function<std::string>(
          name, [&value](const std::string& word) { value = autopar::option_named<T>(word).value(); }, description)
      ->check(CLI::IsMember(autopar::option_words<T>()))
      ->default_str(autopar::option_text(value));
}

/// The status to end with after a command line that was not understood, or that asked for help.
/// @param speaks  one rank does for all
inline int status_after(const CLI::App& app, const CLI::ParseError& error, bool speaks) {
  if (!speaks) return error.get_exit_code();
  const auto remaining = app.remaining();
  const auto unknown = std::ranges::find_if(remaining, [](const auto& word) { return word.starts_with("--"); });
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError) || unknown == remaining.end())
    return app.exit(error);
  std::vector<std::string> known;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  const auto word = unknown->substr(0, unknown->find('='));
  const auto nearest = autopar::nearest_word(word, known);
  std::cerr << word << " is no option" << (nearest.empty() ? "" : "; did you mean " + nearest + "?")
            << "\nRun with --help for more information." << std::endl;
  return error.get_exit_code();
}

/// Reads the command line. @return the status to end with, if the program is to end now
inline std::optional<int> ended_by(CLI::App& app, int argc, char** argv, bool speaks = true) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return status_after(app, error, speaks);
  }
}

}  // namespace command_line
