#include "json_text.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

namespace autopar::detail {

namespace {

/// Builds a value from the parser's events, and ends the parse at the first that is not to be. nlohmann's own builder
/// takes any depth and lets the later of two members of one name win.
class JsonBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  JsonBuilder(int max_depth, std::string& reason) : max_depth_(max_depth), reason_(reason) {}

  // NOLINTBEGIN: nlohmann's interface
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t& value) { return add(std::move(value)); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.try_emplace(std::move(name));
    if (!is_new) return refuse("the member '" + member->first + "' is there twice");
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    return refuse(std::string("not valid JSON: ") + error.what());
  }
  // NOLINTEND

  [[nodiscard]] Json take() && { return std::move(root_); }

 private:
  template <class Value>
  bool add(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool open(Json&& container) {
    if (open_.size() >= static_cast<std::size_t>(max_depth_))
      return refuse("nested deeper than " + std::to_string(max_depth_));
    open_.push_back(&place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  template <class Value>
  Json& place(Value&& value) {
    if (open_.empty()) return root_ = Json(std::forward<Value>(value));
    if (open_.back()->is_object()) return *member_ = Json(std::forward<Value>(value));
    auto& items = open_.back()->get_ref<Json::array_t&>();
    return items.emplace_back(std::forward<Value>(value));
  }
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  int max_depth_;
  std::string& reason_;
  Json root_;
  Json* member_ = nullptr;   // whose value comes next
  std::vector<Json*> open_;  // each within the one before, which does not grow meanwhile
};

}  // namespace

std::optional<Json> try_parse_json(std::string_view text, std::string& reason, int max_depth) {
  JsonBuilder builder(max_depth, reason);
  if (!Json::sax_parse(text, &builder)) return std::nullopt;
  return std::move(builder).take();
}

Json parse_json(std::string_view text, const std::string& file, int max_depth) {
  std::string reason;
  auto json = try_parse_json(text, reason, max_depth);
  if (!json) throw ConfigError(reason, file);
  return std::move(*json);
}

}  // namespace autopar::detail
