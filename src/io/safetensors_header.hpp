#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace autopar::detail {

inline constexpr const char* kMetadataMember = "__metadata__";

/// A tensor as a header states it.
struct StatedTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< of its data
};

struct StatedHeader {
  std::vector<StatedTensor> tensors;  ///< in the order of the text
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON of a safetensors header, value by value: no tree is built, and the first that is not of the format
/// ends it. Whether names are unique, types known and data where they should be is not looked at.
/// @return what is wrong; empty: nothing
[[nodiscard]] std::string read_header(std::string_view text, StatedHeader& header);

}  // namespace autopar::detail
