#include <autopar/io/checkpoint_index.hpp>

#include <cstddef>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include <autopar/core/dtype.hpp>
#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>

#include "element_cover.hpp"
#include "json_reader.hpp"

namespace autopar {

namespace {

using detail::JsonReader;
using detail::OrderedJson;

constexpr std::int64_t kMostWhole = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kDataFileEnding = ".safetensors";
constexpr std::size_t kMostNameLength = 255;  // of a file, as file systems have it

/// The end of an index: the checksum of the bytes before it.
std::string seal_of(std::string_view body) {
  return ",\n\"checksum\":\"" + detail::hash_text(checksum(std::as_bytes(std::span(body)))) + "\"}\n";
}

OrderedJson interval_json(Interval interval) { return {interval.begin, interval.end}; }

OrderedJson tensor_json(const CheckpointTensor& tensor) {
  OrderedJson parts = OrderedJson::array();
  for (const auto& part : tensor.parts) {
    OrderedJson ranges = OrderedJson::array();
    for (const auto& range : part.elements.ranges) ranges.push_back(interval_json(range));
    parts.push_back({{"file", part.file},
                     {"blocks", part.elements.blocks},
                     {"ranges", std::move(ranges)},
                     {"part", interval_json(part.elements.part)}});
  }
  return {{"name", tensor.entry.name},
          {"dtype", name_of(tensor.entry.dtype)},
          {"shape", tensor.entry.shape},
          {"aliases", tensor.aliases},
          {"parts", std::move(parts)}};
}

OrderedJson file_json(const CheckpointFile& file) {
  return {
      {"name", file.name}, {"bytes", file.bytes.value()}, {"header_checksum", detail::hash_text(file.header_checksum)}};
}

/// A member of an object, a line for each item.
template <class Item>
std::string member_text(const char* name, const std::vector<Item>& items, OrderedJson (*to_item)(const Item&)) {
  std::string text = std::string(",\n\"") + name + "\":[";
  const char* separator = "\n";
  for (const auto& item : items) {
    text += separator + to_item(item).dump();
    separator = ",\n";
  }
  return text + ']';
}

Interval interval_of(const JsonReader& reader, const char* key, const std::vector<std::int64_t>& ends) {
  if (ends.size() != 2) reader.fail(key, "expected [begin, end]");
  return {ends[0], ends[1]};
}

CheckpointPart read_part(JsonReader& reader) {
  CheckpointPart part;
  part.file = static_cast<std::int32_t>(reader.whole("file", 0, detail::kMaxId));
  part.elements.blocks = reader.whole("blocks", 0, kMostWhole);
  for (const auto& ends : reader.whole_lists("ranges", 0, kMostWhole))
    part.elements.ranges.push_back(interval_of(reader, "ranges", ends));
  part.elements.part = interval_of(reader, "part", reader.wholes("part", 0, kMostWhole));
  return part;
}

CheckpointTensor read_tensor(JsonReader& reader) {
  CheckpointTensor tensor;
  tensor.entry.name = reader.text("name");
  const auto dtype = reader.text("dtype");
  const auto known = dtype_named(dtype);
  if (!known) reader.fail("dtype", "'" + dtype + "' is not an element type");
  tensor.entry.dtype = *known;
  tensor.entry.shape = reader.wholes("shape", 0, kMostWhole);
  tensor.aliases = reader.texts("aliases");
  reader.each("parts", [&](JsonReader& row) { tensor.parts.push_back(read_part(row)); });
  return tensor;
}

void require_seal(const JsonReader& reader, std::string_view json) {
  const auto length = seal_of({}).size();
  const bool is_sealed = json.size() >= length && json.ends_with(seal_of(json.substr(0, json.size() - length)));
  if (!is_sealed) reader.fail("checksum", "the index was altered or is damaged; load the checkpoint before it");
}

CheckpointIndex read_index(std::string_view json, const std::string& file) {
  const auto root = [&] {
    try {
      return detail::parse_json(json, file);
    } catch (const ConfigError& error) {
      throw CheckpointError(std::string(error.what()) + "; the index is damaged: load the checkpoint before it");
    }
  }();
  JsonReader reader(root, file, "");
  const auto mark = reader.text("format");
  if (mark != kCheckpointMark) reader.fail("format", "'" + mark + "' is no '" + kCheckpointMark + "'");
  const auto version = reader.whole("version", 0, kMostWhole);
  if (version != kCheckpointVersion) {
    reader.fail("version", "the checkpoint has version " + std::to_string(version) + ", this autopar reads " +
                               std::to_string(kCheckpointVersion) + "; load it with the autopar that wrote it");
  }
  static_cast<void>(reader.hash("checksum"));
  require_seal(reader, json);

  CheckpointIndex index;
  index.generation = reader.whole("generation", 0, kMostWhole);
  index.metadata = reader.text_members("metadata");
  reader.each("files", [&](JsonReader& row) {
    const auto name = row.text("name");
    index.files.push_back({name, Bytes(row.whole("bytes", 0, kMostWhole)), row.hash("header_checksum")});
  });
  reader.each("model", [&](JsonReader& row) { index.model.push_back(read_tensor(row)); });
  reader.each("optimizer", [&](JsonReader& row) { index.optimizer.push_back(read_tensor(row)); });
  reader.finish();
  return index;
}

/// What CheckpointIndex says of valid ones.
class IndexValidator {
 public:
  IndexValidator(const CheckpointIndex& index, const std::string& file) : index_(index), file_(file) {}

  void require_valid() {
    if (index_.generation < 0) fail("generation: is less than 0");
    require_files();
    require_tensors("model", index_.model);
    require_tensors("optimizer", index_.optimizer);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw CheckpointError(file_ + ": " + reason); }

  void require_files() const {
    std::set<std::string_view> names;
    for (const auto& file : index_.files) {
      const auto what = "file '" + file.name + "': ";
      const bool is_name = file.name.find('/') == std::string::npos && file.name.find('\0') == std::string::npos &&
                           file.name.size() <= kMostNameLength;
      if (!is_name || !file.name.ends_with(kDataFileEnding) || file.name.size() == kDataFileEnding.size())
        fail(what + "is not the name of a " + std::string(kDataFileEnding) + " file in the checkpoint's folder");
      if (!names.insert(file.name).second) fail(what + "is there twice");
      if (file.bytes < Bytes(0)) fail(what + "has less than 0 bytes");
    }
  }

  void require_tensors(const std::string& list, const std::vector<CheckpointTensor>& tensors) {
    std::set<std::string_view> names;
    for (const auto& tensor : tensors) {
      const auto what = list + " tensor '" + tensor.entry.name + "': ";
      if (!names.insert(tensor.entry.name).second) fail(what + "the name is there twice");
      for (const auto& alias : tensor.aliases) {
        if (!names.insert(alias).second) fail(what + "its alias '" + alias + "' is there twice");
      }
      require_parts(tensor, what);
    }
  }

  void require_parts(const CheckpointTensor& tensor, const std::string& what) {
    std::vector<const ElementSlices*> elements;
    for (const auto& part : tensor.parts) {
      if (part.file < 0 || static_cast<std::size_t>(part.file) >= index_.files.size()) {
        fail(what + "there is no file " + std::to_string(part.file) + " among " + std::to_string(index_.files.size()));
      }
      if (!placed_.emplace(part.file, tensor.entry.name).second) {
        fail(what + "two tensors of this name are in file '" + index_.files[static_cast<std::size_t>(part.file)].name +
             "'");
      }
      elements.push_back(&part.elements);
    }
    const auto count = bytes_of(tensor, what) / size_of(tensor.entry.dtype).value();
    if (const auto fault = detail::cover_fault(count, elements); !fault.empty()) fail(what + fault);
  }

  std::int64_t bytes_of(const CheckpointTensor& tensor, const std::string& what) const {
    try {
      return tensor.entry.bytes().value();
    } catch (const CheckpointError&) {
      fail(what + "its sizes are negative or exceed 2^63 bytes");
    }
  }

  const CheckpointIndex& index_;
  const std::string& file_;
  std::set<std::pair<std::int32_t, std::string_view>> placed_{};  ///< tensors that have a part in a file
};

}  // namespace

std::string to_json(const CheckpointIndex& index) {
  IndexValidator(index, "the index of a checkpoint").require_valid();
  try {
    const OrderedJson head{
        {"format", kCheckpointMark}, {"version", kCheckpointVersion}, {"generation", index.generation}};
    auto text = head.dump();
    text.pop_back();  // its '}'
    text += ",\n\"metadata\":" + OrderedJson(index.metadata).dump();
    text += member_text("files", index.files, &file_json);
    text += member_text("model", index.model, &tensor_json);
    text += member_text("optimizer", index.optimizer, &tensor_json);
    return text + seal_of(text);
  } catch (const OrderedJson::exception& error) {
    throw CheckpointError(std::string("the index of a checkpoint cannot be written: ") + error.what());
  }
}

CheckpointIndex parse_checkpoint_index(std::string_view json, const std::string& file) {
  try {
    auto index = read_index(json, file);
    IndexValidator(index, file).require_valid();
    return index;
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace autopar
