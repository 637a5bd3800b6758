#include "safetensors_header.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

namespace autopar::detail {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLargest = std::int64_t{1} << 62;
constexpr std::size_t kMostMembers = 16;  // of a tensor, which has three
constexpr int kMostIgnored = 1;           // levels below a tensor's member that is not known

/// nlohmann calls it for each token.
class HeaderEvents {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  explicit HeaderEvents(StatedHeader& header) : header_(header) {}
  [[nodiscard]] const std::string& reason() const { return reason_; }

  // NOLINTBEGIN: nlohmann's interface
  bool null() { return other(); }
  bool boolean(bool) { return other(); }
  bool number_integer(number_integer_t) { return other(); }
  bool number_unsigned(number_unsigned_t value) {
    if (at_ != At::kSizes) return other();
    if (value >= static_cast<number_unsigned_t>(kLargest)) return no_size();
    sizes_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_float(number_float_t, const string_t&) { return other(); }
  bool string(string_t& value) {
    if (at_ == At::kMetadata) {
      const auto [entry, is_new] = header_.metadata.try_emplace(std::move(member_), std::move(value));
      return is_new || twice(entry->first);
    }
    if (at_ != At::kTensor || member_ != "dtype") return other();
    tensor_.dtype = std::move(value);
    has_dtype_ = true;
    return true;
  }
  bool binary(binary_t&) { return other(); }
  bool start_object(std::size_t) {
    if (at_ == At::kOutside) return move_to(At::kHeader);
    if (at_ == At::kHeader && tensor_.name == kMetadataMember)
      return std::exchange(has_metadata_, true) ? twice(kMetadataMember) : move_to(At::kMetadata);
    if (at_ == At::kHeader) {
      members_.clear();
      has_dtype_ = has_shape_ = has_offsets_ = false;
      return move_to(At::kTensor);
    }
    return open_other();
  }
  bool start_array(std::size_t) {
    if (at_ != At::kTensor || (member_ != "shape" && member_ != "data_offsets")) return open_other();
    sizes_.clear();
    return move_to(At::kSizes);
  }
  bool end_object() {
    if (at_ == At::kIgnored) return close_ignored();
    if (at_ == At::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) return lacks();
      header_.tensors.push_back(std::exchange(tensor_, {}));
    }
    return move_to(at_ == At::kHeader ? At::kOutside : At::kHeader);
  }
  bool end_array() {
    if (at_ == At::kIgnored) return close_ignored();
    if (member_ == "shape") {
      tensor_.shape = sizes_;
      has_shape_ = true;
    } else {
      if (sizes_.size() != 2) return lacks();
      tensor_.begin = sizes_[0];
      tensor_.end = sizes_[1];
      has_offsets_ = true;
    }
    return move_to(At::kTensor);
  }
  bool key(string_t& name) {
    if (at_ == At::kHeader) {
      tensor_.name = std::move(name);
      return true;
    }
    if (at_ == At::kIgnored) return true;
    member_ = std::move(name);
    if (at_ != At::kTensor) return true;
    if (std::ranges::find(members_, member_) != members_.end()) return twice(member_);
    if (members_.size() == kMostMembers)
      return refuse("tensor '" + tensor_.name + "' has more than " + std::to_string(kMostMembers) + " members");
    members_.push_back(member_);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    return refuse(std::string("its header is no valid JSON object: not valid JSON: ") + error.what());
  }
  // NOLINTEND

 private:
  enum class At : std::uint8_t { kOutside, kHeader, kMetadata, kTensor, kSizes, kIgnored };

  bool move_to(At place) {
    at_ = place;
    return true;
  }
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  bool twice(const std::string& name) {
    return refuse("its header is no valid JSON object: the member '" + name + "' is there twice");
  }
  bool lacks() { return refuse("tensor '" + tensor_.name + "' lacks dtype, shape or data_offsets"); }
  bool no_size() {
    return refuse("tensor '" + tensor_.name + "' has a size or offset that is no natural number below 2^62");
  }
  [[nodiscard]] bool is_known() const { return member_ == "dtype" || member_ == "shape" || member_ == "data_offsets"; }

  /// A value of a type that does not belong there, or of a tensor's member that nobody knows.
  bool other() {
    switch (at_) {
      case At::kOutside:
        return refuse("its header is no valid JSON object: no object");
      case At::kHeader:
        return tensor_.name == kMetadataMember ? refuse("__metadata__ is no object") : lacks();
      case At::kMetadata:
        return refuse("__metadata__ entry '" + member_ + "' is no string");
      case At::kTensor:
        return !is_known() || lacks();
      case At::kSizes:
        return no_size();
      case At::kIgnored:
        break;
    }
    return true;
  }
  bool open_other() {
    if (at_ == At::kIgnored || (at_ == At::kTensor && !is_known())) {
      if (++ignored_ > kMostIgnored) return refuse("its header is no valid JSON object: nested deeper than 3");
      return move_to(At::kIgnored);
    }
    return other();
  }
  bool close_ignored() { return --ignored_ > 0 || move_to(At::kTensor); }

  StatedHeader& header_;
  std::string reason_;
  At at_ = At::kOutside;
  StatedTensor tensor_;
  std::string member_;                ///< whose value comes next
  std::vector<std::string> members_;  ///< of the tensor
  std::vector<std::int64_t> sizes_;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int ignored_ = 0;
};

}  // namespace

std::string read_header(std::string_view text, StatedHeader& header) {
  HeaderEvents events(header);
  static_cast<void>(Json::sax_parse(text, &events));
  return events.reason();
}

}  // namespace autopar::detail
