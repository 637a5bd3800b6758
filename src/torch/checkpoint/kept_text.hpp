#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <autopar/torch/kept.hpp>

namespace autopar::checkpoint {

/// The value of an object that the user keeps, on one rank.
struct KeptBytes {
  detail::KeptKind kind = detail::KeptKind::kBool;
  std::string bytes{};
  friend bool operator==(const KeptBytes&, const KeptBytes&) = default;
};

/// A kept value in a checkpoint.
struct KeptValue {
  KeptScope scope = KeptScope::kAllRanks;
  std::vector<KeptBytes> of_ranks{};  ///< one, or with kPerRank one for each rank
  friend bool operator==(const KeptValue&, const KeptValue&) = default;
};

/// Such as "integer".
[[nodiscard]] std::string_view kind_name(detail::KeptKind kind);
/// Whether it is one number, whose text messages show.
[[nodiscard]] bool is_number(detail::KeptKind kind);

/// Why no value can be kept under this name; empty if one can.
[[nodiscard]] std::string why_no_kept_name(std::string_view name);

/// Converts to a metadata value: `integer:5`, `string:aGVsbG8=` (binary kinds in base64), `per_rank integer:5
/// integer:7`.
[[nodiscard]] std::string to_text(const KeptValue& value);
/// Converts back.
/// @throws CheckpointError if the text is no such value
[[nodiscard]] KeptValue kept_value_in(std::string_view text);

}  // namespace autopar::checkpoint
