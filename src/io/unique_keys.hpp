#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

namespace autopar::detail {

/// Notes the keys of every object that is open; stops at the first that comes again, and where it gets too deep.
class UniqueKeys final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit UniqueKeys(std::size_t max_depth) : max_depth_(max_depth) {}
  [[nodiscard]] const std::optional<std::string>& repeated() const { return repeated_; }

  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    repeated_ = name;
    return false;
  }
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return open_.size() <= max_depth_;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::size_t max_depth_;
  std::vector<std::unordered_set<std::string>> open_;  ///< keys so far, outermost object first
  std::optional<std::string> repeated_;
};

/// The first key that an object of a JSON text has twice, in objects up to `max_depth`; what is no JSON has none.
/// Linear in the text's length.
inline std::optional<std::string> repeated_key(std::string_view text, std::size_t max_depth) {
  UniqueKeys keys(max_depth);
  static_cast<void>(nlohmann::json::sax_parse(text, &keys));
  return keys.repeated();
}

}  // namespace autopar::detail
