#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/core/element_slices.hpp>
#include <autopar/core/units.hpp>
#include <autopar/io/safetensors.hpp>

namespace autopar {

/// The mark of a checkpoint's index, and the only version that is read and written.
inline constexpr const char* kCheckpointMark = "autopar checkpoint";
inline constexpr std::int64_t kCheckpointVersion = 3;

/// Some elements of a tensor. Its file has them under the tensor's name, in the tensor's order.
struct CheckpointPart {
  std::int32_t file = 0;  ///< position in CheckpointIndex::files
  ElementSlices elements{};
  friend bool operator==(const CheckpointPart&, const CheckpointPart&) = default;
};

struct CheckpointTensor {
  TensorEntry entry;                    ///< of the whole tensor
  std::vector<std::string> aliases{};   ///< other names of the same tensor
  std::vector<CheckpointPart> parts{};  ///< in different files; together all elements, each once
  friend bool operator==(const CheckpointTensor&, const CheckpointTensor&) = default;
};

/// A data file as its writer left it (SafetensorsWriter).
struct CheckpointFile {
  std::string name;  ///< in the checkpoint's folder; ends with ".safetensors"
  Bytes bytes{};
  std::uint64_t header_checksum = 0;
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// What a checkpoint consists of: the content of its `index.json`.
///
/// Valid: file names are unique; so are the names and aliases of `model`, and those of `optimizer`; a file has one
/// tensor of a name. The parts of a tensor are all its elements, each once. Those of more than one block have equally
/// many blocks. A tensor without elements may have no parts.
struct CheckpointIndex {
  std::int64_t generation = 0;
  std::map<std::string, std::string> metadata{};
  std::vector<CheckpointFile> files{};
  std::vector<CheckpointTensor> model{}, optimizer{};
  friend bool operator==(const CheckpointIndex&, const CheckpointIndex&) = default;
};

/// JSON with a line per file and tensor. Its last line is a checksum of all other bytes.
/// @throws CheckpointError if the index is not valid or a text is not UTF-8: what is written can be read
[[nodiscard]] std::string to_json(const CheckpointIndex& index);

/// @param file  its name in messages
/// @throws CheckpointError with the place, for text of another format or version, of which any byte was changed or is
/// missing, or whose index is not valid
/// @cost n log n in the length of the text, whatever the sizes of tensors
[[nodiscard]] CheckpointIndex parse_checkpoint_index(std::string_view json, const std::string& file);

}  // namespace autopar
