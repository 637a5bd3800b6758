#include <autopar/io/safetensors.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>
#include <autopar/io/regular_file.hpp>

#include "atomic_file.hpp"
#include "hash_text.hpp"
#include "safetensors_header.hpp"

namespace autopar {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

namespace {

using OrderedJson = nlohmann::ordered_json;
using Metadata = std::map<std::string, std::string>;

constexpr std::int64_t kMaxHeader = 100 << 20;  // the limit of the reference implementation

constexpr std::array<std::pair<DType, const char*>, 12> kNames{{{DType::kBool, "BOOL"},
                                                                {DType::kU8, "U8"},
                                                                {DType::kI8, "I8"},
                                                                {DType::kI16, "I16"},
                                                                {DType::kI32, "I32"},
                                                                {DType::kI64, "I64"},
                                                                {DType::kF16, "F16"},
                                                                {DType::kBF16, "BF16"},
                                                                {DType::kF32, "F32"},
                                                                {DType::kF64, "F64"},
                                                                {DType::kC64, "C64"},
                                                                {DType::kC128, "C128"}}};

const char* safetensors_name(DType dtype) {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& row) { return row.first == dtype; })->second;
}

std::optional<DType> safetensors_dtype(const std::string& name) {
  for (const auto& [dtype, text] : kNames) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}

/// Bytes of a dense tensor, or nothing on a negative size or overflow.
std::optional<std::int64_t> dense_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = size_of(dtype).value();
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

const std::string kHeaderChecksum = "autopar.xxh3";   ///< key: of everything else that the header says
const std::string kTensorChecksum = "autopar.xxh3.";  ///< key, before a tensor's name: of its data
const std::string kUnknownChecksum(16, '0');

std::string checksum_text(std::span<const std::byte> bytes) { return detail::hash_text(checksum(bytes)); }

std::uint64_t text_checksum(const std::string& text) { return checksum(std::as_bytes(std::span(text))); }

/// Of what a header says, however it is written: entries in the order of their data, metadata in that of their keys.
std::string stated_checksum(const std::vector<TensorEntry>& entries, const Metadata& metadata) {
  std::string all;
  const auto add = [&](const std::string& text) { all += std::to_string(text.size()) + ':' + text; };
  for (const auto& entry : entries) {
    add(entry.name);
    add(safetensors_name(entry.dtype));
    for (const auto size : entry.shape) all += std::to_string(size) + ',';
  }
  for (const auto& [key, value] : metadata) {
    if (key == kHeaderChecksum) continue;
    add(key);
    add(value);
  }
  return checksum_text(std::as_bytes(std::span(all)));
}

/// Padded so that data begin at a multiple of 8 bytes.
std::string header_text(const std::vector<TensorEntry>& entries, const Metadata& metadata) {
  std::string text = '{' + OrderedJson(detail::kMetadataMember).dump() + ':' + OrderedJson(metadata).dump();
  std::int64_t offset = 0;
  for (const auto& entry : entries) {
    const auto end = offset + entry.bytes().value();
    const OrderedJson value{
        {"dtype", safetensors_name(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    text += ',' + OrderedJson(entry.name).dump() + ':' + value.dump();
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

Bytes TensorEntry::bytes() const {
  const auto bytes = dense_bytes(dtype, shape);
  if (!bytes) throw CheckpointError("tensor '" + name + "': its sizes are negative or exceed 2^63 bytes");
  return Bytes(*bytes);
}

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::vector<TensorEntry> entries;
  Metadata metadata;
  detail::AtomicFile file;
  std::size_t next = 0;
  std::int64_t size = 0;
  std::optional<std::uint64_t> header_checksum;  ///< when committed

  State(std::filesystem::path path_in, std::vector<TensorEntry> entries_in, Metadata metadata_in)
      : path(std::move(path_in)), entries(std::move(entries_in)), metadata(std::move(metadata_in)), file(path) {}

  [[noreturn]] void fail(const std::string& reason) const { throw CheckpointError(path.string() + ": " + reason); }
  void put(std::span<const std::byte> data) {
    try {
      file.write(data);
    } catch (const std::system_error& error) {
      fail(std::string("cannot write: ") + error.what());
    }
    size += static_cast<std::int64_t>(data.size());
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                                     const Metadata& metadata) {
  const auto refuse = [&](const std::string& reason) { throw CheckpointError(path.string() + ": " + reason); };
  auto extended = metadata;
  std::unordered_set<std::string_view> names{detail::kMetadataMember};
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kHeaderChecksum)) refuse("the metadata key '" + key + "' is reserved for checksums");
  }
  extended[kHeaderChecksum] = kUnknownChecksum;
  for (const auto& entry : entries) {
    if (!names.insert(entry.name).second) refuse("the tensor name '" + entry.name + "' occurs twice or is reserved");
    extended[kTensorChecksum + entry.name] = kUnknownChecksum;
  }
  std::string text;
  try {
    text = header_text(entries, extended);
  } catch (const OrderedJson::exception& error) {
    refuse(std::string("a name or its metadata cannot be written: ") + error.what());
  }
  if (static_cast<std::int64_t>(text.size()) > kMaxHeader) {
    refuse("the names of its tensors take " + std::to_string(text.size()) + " bytes; the format has at most " +
           std::to_string(kMaxHeader));
  }
  try {
    require_regular(path);
    state_ = std::make_unique<State>(path, std::move(entries), std::move(extended));
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  } catch (const std::system_error& error) {
    refuse(std::string("cannot make the file: ") + error.what());
  }
  const auto length = static_cast<std::uint64_t>(text.size());
  state_->put(std::as_bytes(std::span(&length, 1)));
  state_->put(std::as_bytes(std::span(text)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::write(std::span<const std::byte> data) {
  if (state_->next == state_->entries.size()) state_->fail("all tensors are written already");
  const auto& entry = state_->entries[state_->next];
  if (static_cast<std::int64_t>(data.size()) != entry.bytes().value()) {
    state_->fail("tensor '" + entry.name + "' has " + std::to_string(entry.bytes().value()) + " bytes, not " +
                 std::to_string(data.size()));
  }
  state_->put(data);
  state_->metadata[kTensorChecksum + entry.name] = checksum_text(data);
  ++state_->next;
}

void SafetensorsWriter::commit() {
  if (state_->next != state_->entries.size()) {
    state_->fail("tensor '" + state_->entries[state_->next].name + "' was not written");
  }
  state_->metadata[kHeaderChecksum] = stated_checksum(state_->entries, state_->metadata);
  const auto text = header_text(state_->entries, state_->metadata);  // as long as it was: checksums are of one length
  try {
    state_->file.rewrite(sizeof(std::uint64_t), std::as_bytes(std::span(text)));
    state_->file.commit();
  } catch (const std::system_error& error) {
    state_->fail(std::string("cannot complete the file: ") + error.what());
  }
  state_->header_checksum = text_checksum(text);
}

std::uint64_t SafetensorsWriter::header_checksum() const {
  expect(state_->header_checksum.has_value(), "the header of a file is complete after commit()");
  return *state_->header_checksum;
}
Bytes SafetensorsWriter::size() const {
  expect(state_->header_checksum.has_value(), "a file has its size after commit()");
  return Bytes(state_->size);
}

struct SafetensorsReader::State {
  std::filesystem::path path;
  RegularFile file;
  std::int64_t size = 0;
  std::uint64_t header_checksum = 0;
  std::int64_t data_begin = 0;
  std::vector<TensorEntry> entries;
  std::vector<std::int64_t> offsets;
  bool has_checksums = false;
  std::vector<std::string> checksums;  ///< as the file says, by entry
  std::unordered_map<std::string, std::size_t> by_name;
  Metadata metadata;

  explicit State(std::filesystem::path path_in) : path(std::move(path_in)) {}

  [[noreturn]] void fail(const std::string& reason) const { throw CheckpointError(path.string() + ": " + reason); }

  void read_at(std::span<std::byte> out, std::int64_t position) const {
    while (!out.empty()) {
      const auto got = ::pread(file.descriptor(), out.data(), out.size(), position);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(std::string("cannot read: ") + std::strerror(errno));
      if (got == 0) fail("the file ends before its data do");
      out = out.subspan(static_cast<std::size_t>(got));
      position += got;
    }
  }

  void open() {
    try {
      file = open_regular(path);
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
    struct stat status {};
    if (::fstat(file.descriptor(), &status) != 0) fail(std::string("cannot read: ") + std::strerror(errno));
    size = status.st_size;
    std::uint64_t length = 0;
    if (status.st_size < 8)
      fail("the file has " + std::to_string(status.st_size) + " bytes, less than any safetensors file");
    read_at(std::as_writable_bytes(std::span(&length, 1)), 0);
    if (length > kMaxHeader || static_cast<std::int64_t>(length) > status.st_size - 8) {
      fail("its header claims " + std::to_string(length) + " bytes; the file is truncated or no safetensors file");
    }
    std::string text(length, '\0');
    read_at(std::as_writable_bytes(std::span(text)), 8);
    header_checksum = text_checksum(text);
    data_begin = 8 + static_cast<std::int64_t>(length);
    require_format(text);
    parse(text, status.st_size - data_begin);
    take_checksums();
  }

  /// What the format forbids and a JSON parser lets pass.
  void require_format(const std::string& text) const {
    if (!text.starts_with('{')) fail("its header does not begin with '{', as the format demands");
    if (text[text.find_last_not_of(' ')] != '}') fail("its header is followed by something other than spaces");
  }

  /// Takes them out of the metadata.
  void take_checksums() {
    auto key = metadata.lower_bound(kHeaderChecksum);
    if (key == metadata.end() || !key->first.starts_with(kHeaderChecksum)) return;
    if (key->first != kHeaderChecksum) fail("its header is damaged: it has checksums of tensors and none of itself");
    const auto actual = stated_checksum(entries, metadata);
    if (key->second != actual) {
      fail("its header is damaged: the checksum is " + actual + ", the file says " + key->second);
    }
    has_checksums = true;
    checksums.resize(entries.size());
    key = metadata.erase(key);
    for (; key != metadata.end() && key->first.starts_with(kTensorChecksum); key = metadata.erase(key)) {
      const auto tensor = by_name.find(key->first.substr(kTensorChecksum.size()));
      if (tensor == by_name.end()) fail("it has a checksum '" + key->first + "' of no tensor");
      checksums[tensor->second] = key->second;
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (checksums[i].empty()) fail("tensor '" + entries[i].name + "' has no checksum, others have");
    }
  }

  void verify(std::size_t entry, std::span<const std::byte> data) const {
    const auto actual = checksum_text(data);
    if (actual == checksums[entry]) return;
    fail("the data of tensor '" + entries[entry].name + "' are damaged: their checksum is " + actual +
         ", the file says " + checksums[entry]);
  }

  void parse(const std::string& text, std::int64_t data_bytes) {
    detail::StatedHeader header;
    if (const auto reason = detail::read_header(text, header); !reason.empty()) fail(reason);
    metadata = std::move(header.metadata);
    std::ranges::stable_sort(header.tensors, {}, [](const auto& tensor) {
      return std::pair(tensor.begin, tensor.end);  // empty ones take no place
    });
    std::int64_t position = 0;
    by_name.reserve(header.tensors.size());
    for (auto& tensor : header.tensors) {
      auto entry = entry_of(tensor, data_bytes);
      if (!by_name.emplace(entry.name, entries.size()).second)
        fail("its header is no valid JSON object: the member '" + entry.name + "' is there twice");
      if (tensor.begin != position) fail("the data of tensor '" + entry.name + "' overlap others or leave a hole");
      position = tensor.end;
      offsets.push_back(tensor.begin);
      entries.push_back(std::move(entry));
    }
    if (position != data_bytes) {
      fail("its tensors take " + std::to_string(position) + " bytes, the file has " + std::to_string(data_bytes));
    }
  }

  TensorEntry entry_of(detail::StatedTensor& stated, std::int64_t data_bytes) const {
    const auto dtype = safetensors_dtype(stated.dtype);
    if (!dtype) fail("tensor '" + stated.name + "' has the unknown element type '" + stated.dtype + "'");
    const auto bytes = dense_bytes(*dtype, stated.shape);
    if (!bytes || stated.begin > stated.end || stated.end > data_bytes || stated.end - stated.begin != *bytes) {
      fail("tensor '" + stated.name + "': offsets " + std::to_string(stated.begin) + ".." + std::to_string(stated.end) +
           " do not fit its sizes or the file");
    }
    return {std::move(stated.name), *dtype, std::move(stated.shape)};
  }
};

SafetensorsReader::SafetensorsReader(std::filesystem::path path) : state_(std::make_unique<State>(std::move(path))) {
  state_->open();
}
SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::vector<TensorEntry>& SafetensorsReader::entries() const { return state_->entries; }
const std::map<std::string, std::string>& SafetensorsReader::metadata() const { return state_->metadata; }

bool SafetensorsReader::has_checksums() const { return state_->has_checksums; }
std::uint64_t SafetensorsReader::header_checksum() const { return state_->header_checksum; }
Bytes SafetensorsReader::size() const { return Bytes(state_->size); }

const TensorEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found = state_->by_name.find(name);
  return found == state_->by_name.end() ? nullptr : &state_->entries[found->second];
}

void SafetensorsReader::read(const std::string& name, std::span<std::byte> out, Bytes offset) const {
  const auto found = state_->by_name.find(name);
  if (found == state_->by_name.end()) state_->fail("there is no tensor '" + name + "'");
  const auto total = state_->entries[found->second].bytes().value();
  const auto size = static_cast<std::int64_t>(out.size());
  if (offset.value() < 0 || size > total || offset.value() > total - size) {
    state_->fail("tensor '" + name + "' has " + std::to_string(total) + " bytes; " + std::to_string(size) + " at " +
                 std::to_string(offset.value()) + " were asked for");
  }
  state_->read_at(out, state_->data_begin + state_->offsets[found->second] + offset.value());
  if (size == total && state_->has_checksums) state_->verify(found->second, out);
}

}  // namespace autopar
