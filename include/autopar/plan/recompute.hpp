#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/core/error.hpp>

namespace autopar {

/// Whether forwards may be recomputed before their backwards, instead of saving activations.
enum class Recompute : std::uint8_t {
  kNever,
  kToFit,   ///< the fewest segments with which a stage fits
  kAlways,  ///< every segment
};
template <>
inline constexpr auto kEnumTexts<Recompute> = std::to_array<EnumText<Recompute>>({{Recompute::kToFit, "auto"},
                                                                                  {Recompute::kNever, "none"},
                                                                                  {Recompute::kAlways, "full"}});

/// What is recomputed: segments by a rule, or the segments that modules make up.
///
///     options.recompute = ap::Recompute::kAlways;
///     options.recompute = ap::RecomputeOption::of_modules({"blocks.0", "blocks.1"});
class RecomputeOption {
 public:
  RecomputeOption(Recompute when = Recompute::kToFit) : when_(when) {}  // NOLINT: a rule is an option

  /// @throws InvalidArgument if the names, with commas between them, are not a list of names
  [[nodiscard]] static RecomputeOption of_modules(std::vector<std::string> names) {
    RecomputeOption option(Recompute::kAlways);
    option.modules_ = std::move(names);
    const std::string text = option.text();
    if (option.modules_.empty() || named(text) != option)
      throw InvalidArgument("recompute: '" + text + "' is not a list of names of modules");
    return option;
  }

  /// auto, none, full, or names of modules with commas between them. Empty if the text is.
  [[nodiscard]] static std::optional<RecomputeOption> named(std::string_view text) {
    if (text.empty()) return std::nullopt;
    if (const auto rule = enum_named<Recompute>(text)) return RecomputeOption(*rule);
    RecomputeOption option(Recompute::kAlways);
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      option.modules_.emplace_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return option;
  }

  /// kAlways if there are modules.
  [[nodiscard]] Recompute when() const { return when_; }
  /// One segment each, and no others; empty: the rule is for every segment.
  [[nodiscard]] const std::vector<std::string>& modules() const { return modules_; }

  /// The text that `named` reads.
  [[nodiscard]] std::string text() const {
    if (modules_.empty()) return std::string(to_string(when_));
    std::string names;
    for (std::size_t i = 0; i < modules_.size(); ++i) names += (i == 0 ? "" : ",") + modules_[i];
    return names;
  }

  friend bool operator==(const RecomputeOption&, const RecomputeOption&) = default;

 private:
  Recompute when_;
  std::vector<std::string> modules_;
};

}  // namespace autopar
