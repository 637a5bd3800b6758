#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "toml.hpp"

namespace autopar {

/// @throws ConfigError with file and line
[[nodiscard]] toml::table parse_toml(std::string_view text, const std::string& file);

/// A TOML table that knows which of its keys were asked for, so that a misspelt one is an error. Members throw
/// ConfigError with file, line and key.
class Section {
 public:
  /// @param where  what precedes keys in messages, such as "device."
  Section(const toml::table& table, std::string file, std::string where)
      : table_(table), file_(std::move(file)), where_(std::move(where)) {}

  [[nodiscard]] bool has(const char* key) const { return table_.contains(key); }
  [[nodiscard]] int line() const { return static_cast<int>(table_.source().begin.line); }

  double number(const char* key, double least);
  double number_or(const char* key, double least, double otherwise);
  int count(const char* key);
  int whole_number_or(const char* key, int least, int most, int otherwise);
  bool flag_or(const char* key, bool otherwise);
  std::string text(const char* key);
  std::string text_or(const char* key, std::string otherwise);
  const toml::table& table(const char* key);
  /// Null if it is left out.
  const toml::table* table_if(const char* key);
  /// At least one.
  const toml::array& tables(const char* key);
  /// Null if it is left out.
  const toml::array* tables_if(const char* key);
  /// Null if it is left out.
  const toml::node* node_if(const char* key);
  /// @throws ConfigError for a key that nobody asked for
  void finish() const;

  [[noreturn]] void fail(const char* key, const std::string& reason, const std::string& nearest = {}) const;

 private:
  const toml::node& required(const char* key);

  const toml::table& table_;
  std::string file_;
  std::string where_;
  std::set<std::string> names_;
};

}  // namespace autopar
