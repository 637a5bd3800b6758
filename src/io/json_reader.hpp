#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/plan/option_text.hpp>

#include "hash_text.hpp"
#include "json_text.hpp"

namespace autopar::detail {

inline constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;

/// Reads an object member by member; every value is checked, every unknown member is an error.
class JsonReader {
 public:
  JsonReader(const Json& json, std::string file, std::string where)
      : json_(json), file_(std::move(file)), where_(std::move(where)) {
    if (!json_.is_object()) fail("", "expected an object");
  }

  /// Whether there is such a member: for those that may be left out.
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }

  [[nodiscard]] std::int64_t whole(const char* key, std::int64_t least, std::int64_t most) {
    return whole_of(key, member(key), least, most);
  }
  /// Whole numbers, each within [least, most].
  [[nodiscard]] std::vector<std::int64_t> wholes(const char* key, std::int64_t least, std::int64_t most) {
    return wholes_of(key, list(key), least, most);
  }
  /// Lists of such numbers.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> whole_lists(const char* key, std::int64_t least,
                                                                   std::int64_t most) {
    std::vector<std::vector<std::int64_t>> out;
    for (const auto& items : list(key)) {
      if (!items.is_array()) fail(key, "expected lists of whole numbers");
      out.push_back(wholes_of(key, items, least, most));
    }
    return out;
  }
  [[nodiscard]] double number(const char* key, double least = 0, double most = std::numeric_limits<double>::max()) {
    const auto& value = member(key);
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= least)) fail(key, "expected a finite number of at least " + std::to_string(least));
    if (number > most) fail(key, value.dump() + " is more than can be");
    return number;
  }
  [[nodiscard]] bool flag(const char* key) {
    const auto& value = member(key);
    if (!value.is_boolean()) fail(key, "expected true or false");
    return value.get<bool>();
  }
  [[nodiscard]] std::string text(const char* key) {
    const auto& value = member(key);
    if (!value.is_string()) fail(key, "expected text");
    return value.get<std::string>();
  }
  [[nodiscard]] std::vector<std::string> texts(const char* key) {
    std::vector<std::string> out;
    for (const auto& item : list(key)) {
      if (!item.is_string()) fail(key, "expected a list of texts");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  /// An object whose members, of any names, are texts.
  [[nodiscard]] std::map<std::string, std::string> text_members(const char* key) {
    const auto& object = member(key);
    if (!object.is_object()) fail(key, "expected an object");
    std::map<std::string, std::string> out;
    for (const auto& [name, value] : object.items()) {
      if (!value.is_string()) fail(key, "expected text as '" + name + "'");
      out.emplace_hint(out.end(), name, value.template get<std::string>());
    }
    return out;
  }
  /// One of a closed set of words.
  template <class Enum>
  [[nodiscard]] Enum word(const char* key, const std::vector<std::pair<Enum, const char*>>& words) {
    const auto found = text(key);
    std::string known;
    for (const auto& [value, name] : words) {
      if (found == name) return value;
      known += std::string(known.empty() ? "" : " | ") + name;
    }
    fail(key, "'" + found + "' is not one of " + known);
  }
  /// One of an enum's texts.
  template <TextEnum Enum>
  [[nodiscard]] Enum word(const char* key) {
    const auto found = text(key);
    if (const auto value = enum_named<Enum>(found)) return *value;
    fail(key, not_an_option<Enum>(found));
  }
  [[nodiscard]] std::uint64_t hash(const char* key) {
    const auto found = text(key);
    if (found.size() != 16 || found.find_first_not_of("0123456789abcdef") != std::string::npos) {
      fail(key, "expected 16 hexadecimal digits");
    }
    return std::stoull(found, nullptr, 16);
  }
  /// Strong ids or plain numbers, each within [least, most].
  template <class Id>
  [[nodiscard]] std::vector<Id> ids(const char* key, std::int64_t least, std::int64_t most) {
    return ids_of<Id>(key, list(key), least, most);
  }
  /// A list of such lists.
  template <class Id>
  [[nodiscard]] std::vector<std::vector<Id>> id_lists(const char* key, std::int64_t least, std::int64_t most) {
    std::vector<std::vector<Id>> out;
    for (const auto& items : list(key)) {
      if (!items.is_array()) fail(key, "expected lists of whole numbers");
      out.push_back(ids_of<Id>(key, items, least, most));
    }
    return out;
  }
  [[nodiscard]] const Json& list(const char* key) {
    const auto& value = member(key);
    if (!value.is_array()) fail(key, "expected a list");
    return value;
  }
  [[nodiscard]] JsonReader object(const char* key) { return JsonReader(member(key), file_, where_ + key + "."); }
  /// `read(JsonReader&)` for each object of a list.
  template <class Read>
  void each(const char* key, Read read) {
    std::size_t position = 0;
    for (const auto& item : list(key)) {
      JsonReader reader(item, file_, where_ + key + "[" + std::to_string(position++) + "].");
      read(reader);
      reader.finish();
    }
  }
  /// Refuses a file that says that it is something else than what begins with `mark`; of before files say nothing.
  void format(const std::string& mark) {
    if (!has("format")) return;
    const auto found = text("format");
    if (!found.starts_with(mark)) fail("format", "'" + found + "' is no '" + mark + "'");
  }
  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (!names_.contains(key)) {
        throw ConfigError("unknown member '" + where_ + key + "'", file_, 0, key,
                          nearest_word(key, {names_.begin(), names_.end()}));
      }
    }
  }
  [[noreturn]] void fail(const char* key, const std::string& reason) const {
    throw ConfigError(where_ + key + ": " + reason, file_, 0, key);
  }

 private:
  [[nodiscard]] std::int64_t whole_of(const char* key, const Json& value, std::int64_t least, std::int64_t most) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))) {
      fail(key, "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    const auto number = value.get<std::int64_t>();
    if (number < least || number > most) {
      fail(key, std::to_string(number) + " is not within " + std::to_string(least) + " to " + std::to_string(most));
    }
    return number;
  }
  [[nodiscard]] std::vector<std::int64_t> wholes_of(const char* key, const Json& items, std::int64_t least,
                                                    std::int64_t most) const {
    std::vector<std::int64_t> out;
    for (const auto& item : items) out.push_back(whole_of(key, item, least, most));
    return out;
  }
  template <class Id>
  [[nodiscard]] std::vector<Id> ids_of(const char* key, const Json& items, std::int64_t least,
                                       std::int64_t most) const {
    std::vector<Id> out;
    for (const auto& item : items) {
      if (!item.is_number_integer()) fail(key, "expected whole numbers");
      const bool huge = item.is_number_unsigned() && item.get<std::uint64_t>() > (1ull << 62);
      const auto value = huge ? most + 1 : item.get<std::int64_t>();
      if (value < least || value > most) {
        fail(key, std::to_string(value) + " is not within " + std::to_string(least) + " to " + std::to_string(most));
      }
      out.push_back(Id(static_cast<std::int32_t>(value)));
    }
    return out;
  }

  const Json& member(const char* key) {
    names_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) fail(key, "is missing");
    return *found;
  }

  const Json& json_;
  std::string file_;
  std::string where_;
  std::set<std::string> names_;
};

using OrderedJson = nlohmann::ordered_json;  ///< to be written

template <class Id>
OrderedJson id_list(const std::vector<Id>& ids) {
  OrderedJson out = OrderedJson::array();
  for (const auto id : ids) {
    if constexpr (requires { id.value(); })
      out.push_back(id.value());
    else
      out.push_back(id);
  }
  return out;
}

}  // namespace autopar::detail
