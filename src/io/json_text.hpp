#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace autopar::detail {

/// JSON that was read. Members are found in logarithmic time, however many a file has; what is written keeps its order
/// and is an ordered_json.
using Json = nlohmann::json;

inline constexpr int kJsonDepth = 16;  ///< as deep as any file of autopar's nests, and some

/// Parses untrusted text in time n log n and memory of at most some 30 times its length. Nothing, with the reason, for
/// text that is no JSON (RFC 8259), nests deeper than `max_depth`, or names a member of an object twice.
[[nodiscard]] std::optional<Json> try_parse_json(std::string_view text, std::string& reason,
                                                 int max_depth = kJsonDepth);

/// @param file  its name in messages
/// @throws ConfigError with the reason, where `try_parse_json` gives nothing
[[nodiscard]] Json parse_json(std::string_view text, const std::string& file, int max_depth = kJsonDepth);

}  // namespace autopar::detail
