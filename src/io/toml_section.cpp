#include "toml_section.hpp"

#include <sstream>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/config.hpp>

namespace autopar {

namespace {

std::string shortest(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

}  // namespace

toml::table parse_toml(std::string_view text, const std::string& file) {
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw ConfigError(printable_line(error.description()), file, static_cast<int>(error.source().begin.line));
  }
}

double Section::number(const char* key, double least) {
  const auto& node = required(key);
  const auto number = node.value<double>();
  if (!number || !node.is_number()) fail(key, "expected a number");
  if (!(*number >= least) || *number > 1e30) {
    fail(key, "the value is out of range; it must be at least " + shortest(least) + " and finite");
  }
  return *number;
}

double Section::number_or(const char* key, double least, double otherwise) {
  return table_.contains(key) ? number(key, least) : (names_.insert(key), otherwise);
}

int Section::count(const char* key) {
  required(key);
  return whole_number_or(key, 1, 1 << 24, 1);
}

int Section::whole_number_or(const char* key, int least, int most, int otherwise) {
  const auto* node = node_if(key);
  if (node == nullptr) return otherwise;
  const auto number = node->value_exact<std::int64_t>();
  if (!number || *number < least || *number > most) {
    fail(key, "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int>(*number);
}

bool Section::flag_or(const char* key, bool otherwise) {
  const auto* node = node_if(key);
  if (node == nullptr) return otherwise;
  const auto flag = node->value_exact<bool>();
  if (!flag) fail(key, "expected true or false");
  return *flag;
}

std::string Section::text(const char* key) {
  const auto text = required(key).value_exact<std::string>();
  if (!text) fail(key, "expected text in quotes");
  return *text;
}

std::string Section::text_or(const char* key, std::string otherwise) {
  return table_.contains(key) ? text(key) : (names_.insert(key), otherwise);
}

const toml::table& Section::table(const char* key) {
  const auto* table = required(key).as_table();
  if (table == nullptr) fail(key, "expected a table");
  return *table;
}

const toml::table* Section::table_if(const char* key) {
  names_.insert(key);
  return table_.contains(key) ? &table(key) : nullptr;
}

const toml::array& Section::tables(const char* key) {
  const auto* array = required(key).as_array();
  if (array == nullptr || array->empty() || !array->is_homogeneous(toml::node_type::table)) {
    fail(key, "expected at least one [[" + std::string(key) + "]] table");
  }
  return *array;
}

const toml::array* Section::tables_if(const char* key) {
  names_.insert(key);
  return table_.contains(key) ? &tables(key) : nullptr;
}

const toml::node* Section::node_if(const char* key) {
  names_.insert(key);
  return table_.get(key);
}

void Section::finish() const {
  for (const auto& [key, node] : table_) {
    const std::string name(key.str());
    if (names_.contains(name)) continue;
    throw ConfigError("unknown key '" + printable_line(where_ + name) + "'", file_,
                      static_cast<int>(node.source().begin.line), name,
                      nearest_word(name, {names_.begin(), names_.end()}));
  }
}

void Section::fail(const char* key, const std::string& reason, const std::string& nearest) const {
  const auto* node = table_.get(key);
  const auto line = static_cast<int>(node != nullptr ? node->source().begin.line : table_.source().begin.line);
  throw ConfigError(where_ + key + ": " + reason, file_, line, key, nearest);
}

const toml::node& Section::required(const char* key) {
  names_.insert(key);
  const auto* node = table_.get(key);
  if (node == nullptr) fail(key, "is missing");
  return *node;
}

}  // namespace autopar
