#include <autopar/io/safetensors.hpp>

#include <catch_shim.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>
#include <autopar/io/file.hpp>

using namespace autopar;

namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("autopar-io-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

std::vector<std::byte> bytes_of(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(count);
  for (auto& item : data) item = static_cast<std::byte>(random());
  return data;
}

void write_raw(const std::filesystem::path& path, const std::string& header, std::size_t data) {
  std::ofstream out(path, std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header << std::string(data, 'x');
}

}  // namespace

TEST_CASE("safetensors: tensors round trip") {
  const Folder folder;
  const std::vector<TensorEntry> entries{{"a", DType::kF32, {2, 3}},
                                         {"empty", DType::kI64, {0, 5}},
                                         {"scalar", DType::kF64, {}},
                                         {"half", DType::kBF16, {7}}};
  SafetensorsWriter writer(folder / "x.safetensors", entries, {{"format", "pt"}, {"quote", "\"\n"}});
  for (unsigned i = 0; i < entries.size(); ++i)
    writer.write(bytes_of(static_cast<std::size_t>(entries[i].bytes().value()), i));
  CHECK_FALSE(std::filesystem::exists(folder / "x.safetensors"));
  writer.commit();
  const SafetensorsReader reader(folder / "x.safetensors");
  CHECK(reader.entries() == entries);
  CHECK(reader.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"quote", "\"\n"}});
  CHECK(reader.has_checksums());
  for (unsigned i = 0; i < entries.size(); ++i) {
    std::vector<std::byte> data(static_cast<std::size_t>(entries[i].bytes().value()));
    reader.read(entries[i].name, data);
    CHECK(data == bytes_of(data.size(), i));
  }
  std::vector<std::byte> part(4);
  reader.read("a", part, Bytes(8));
  CHECK(std::memcmp(part.data(), bytes_of(24, 0).data() + 8, 4) == 0);
  CHECK(reader.find("b") == nullptr);
  CHECK_THROWS_AS(reader.read("b", part), CheckpointError);
  CHECK_THROWS_AS(reader.read("a", part, Bytes(21)), CheckpointError);
  CHECK_THROWS_AS(reader.read("a", part, Bytes(-1)), CheckpointError);
}

TEST_CASE("SafetensorsWriter: an unfinished file leaves the old one") {
  const Folder folder;
  write_text_file(folder / "x.safetensors", "old");
  {
    SafetensorsWriter writer(folder / "x.safetensors", {{"a", DType::kU8, {4}}});
    CHECK_THROWS_AS(writer.write(bytes_of(3, 1)), CheckpointError);
    CHECK_THROWS_AS(writer.commit(), CheckpointError);
  }
  CHECK(read_text_file(folder / "x.safetensors") == "old");
  CHECK(folder.files() == 1);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "y", {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), CheckpointError);
}

TEST_CASE("safetensors: writer and reader name a file by its size and header") {
  const Folder folder;
  const auto write = [&](const char* name, unsigned seed) {
    SafetensorsWriter writer(folder / name, {{"a", DType::kF32, {2, 3}}, {"none", DType::kI64, {0}}}, {{"k", "v"}});
    CHECK_THROWS_AS(writer.size(), InvalidArgument);
    writer.write(bytes_of(24, seed));
    writer.write({});
    CHECK_THROWS_AS(writer.header_checksum(), InvalidArgument);
    writer.commit();
    const SafetensorsReader reader(folder / name);
    CHECK(reader.size() == writer.size());
    CHECK(reader.header_checksum() == writer.header_checksum());
    const auto text = read_text_file(folder / name);
    CHECK(writer.size() == Bytes(static_cast<std::int64_t>(text.size())));
    CHECK(writer.header_checksum() == checksum(std::as_bytes(std::span(text).subspan(8, text.size() - 8 - 24))));
    return writer.header_checksum();
  };
  CHECK(write("x", 1) == write("y", 1));
  CHECK(write("x", 1) != write("x", 2));  // the header has the checksums of the data
  const std::string foreign = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )";
  write_raw(folder / "foreign", foreign, 2);
  const SafetensorsReader reader(folder / "foreign");
  CHECK(reader.size() == Bytes(static_cast<std::int64_t>(8 + foreign.size() + 2)));
  CHECK(reader.header_checksum() == checksum(std::as_bytes(std::span(foreign))));
}

TEST_CASE("SafetensorsReader: hostile headers are refused") {
  const Folder folder;
  const auto refused = [&](const std::string& header, std::size_t data) {
    write_raw(folder / "h", header, data);
    CHECK_THROWS_AS(SafetensorsReader(folder / "h"), CheckpointError);
  };
  write_raw(folder / "good", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  CHECK(SafetensorsReader(folder / "good").entries().size() == 1);
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1);
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3);
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2);
  refused(R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", 2);
  refused(R"({"a":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,2]}})", 2);
  refused(R"({"a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}})", 2);
  refused(R"({"a":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", 2);
  refused(R"({"a":{"dtype":"U8","shape":[2]}})", 2);
  refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      2);
  refused(R"({"__metadata__":{"x":1}})", 0);
  refused("[1,2]", 0);
  refused(std::string(100000, '['), 0);
  refused("", 0);
  std::ofstream(folder / "h", std::ios::binary) << std::string(8, '\xff') << "{}";
  CHECK_THROWS_AS(SafetensorsReader(folder / "h"), CheckpointError);
  std::ofstream(folder / "h", std::ios::binary) << "abc";
  CHECK_THROWS_AS(SafetensorsReader(folder / "h"), CheckpointError);
  CHECK_THROWS_AS(SafetensorsReader(folder / "none"), CheckpointError);
}

TEST_CASE("SafetensorsReader: refuses exactly what the format forbids") {
  const Folder folder;
  const std::string good = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const auto refused = [&](const std::string& header, const std::string& part, std::size_t data = 2) {
    write_raw(folder / "h", header, data);
    std::string message;
    try {
      const SafetensorsReader reader(folder / "h");
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    CAPTURE(header, message);
    CHECK(message.find(part) != std::string::npos);
  };
  refused(good.substr(0, good.size() - 1) + ',' + good.substr(1), "'a' is there twice");
  refused(R"({"a":{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}})", "'shape' is there twice");
  refused(R"({"__metadata__":{"k":"1","k":"2"}})", "'k' is there twice", 0);
  refused("\xef\xbb\xbf" + good, "begin with '{'");
  refused(' ' + good, "begin with '{'");
  refused(good + '\n', "other than spaces");
  refused(good + std::string(1, '\0'), "other than spaces");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "leave a hole");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          "leave a hole", 3);
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}})", "do not fit its sizes");
  write_raw(folder / "h", good + "   ", 2);  // of another writer: not aligned, no checksums
  const SafetensorsReader reader(folder / "h");
  CHECK(reader.entries().size() == 1);
  CHECK_FALSE(reader.has_checksums());
  // A header of many keys is read in one pass, so that it costs about as much memory and time as it is long.
  std::string many = R"({"__metadata__":{)";
  for (int i = 0; i < 20000; ++i) many += "\"key" + std::to_string(i) + "\":\"\",";
  many += R"("key7":""}})";
  refused(many, "'key7' is there twice", 0);
}

TEST_CASE("SafetensorsReader: every flipped bit is found") {
  const Folder folder;
  const std::vector<TensorEntry> entries{{"a", DType::kF64, {2}}, {"b", DType::kI8, {5}}, {"none", DType::kI8, {0}}};
  {
    SafetensorsWriter writer(folder / "x", entries, {{"k", "v"}, {"key 2", ""}});
    writer.write(bytes_of(16, 1));
    writer.write(bytes_of(5, 2));
    writer.write({});
    writer.commit();
  }
  const auto good = read_text_file(folder / "x");
  std::fstream file(folder / "x", std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char value) { file.seekp(static_cast<std::streamoff>(at)).put(value).flush(); };
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      put(at, static_cast<char>(good[at] ^ (1 << bit)));
      bool found = false;
      try {
        const SafetensorsReader reader(folder / "x");
        for (const auto& entry : reader.entries()) {
          std::vector<std::byte> data(static_cast<std::size_t>(entry.bytes().value()));
          reader.read(entry.name, data);
        }
        // One flip of the header's own key leaves a file that claims no checksum of itself: that is refused as well.
        found = !reader.has_checksums() || reader.entries() != entries;
      } catch (const CheckpointError&) {
        found = true;
      }
      CAPTURE(at, bit);
      if (!found) FAIL("the flip was not found");
    }
    put(at, good[at]);
  }
  CHECK(SafetensorsReader(folder / "x").has_checksums());
  CHECK(checksum(std::as_bytes(std::span("abc", 3))) == 0x78af5f94892f3950ULL);  // of the xxHash project's own program
}

TEST_CASE("safetensors: a pipe is refused by name without blocking") {
  const Folder folder;
  const auto path = folder / "pipe.safetensors";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto says = [&](const auto& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expected = path.string() + ": it is a pipe, and must be a regular file; name another file, or remove it";
  CHECK(says([&] { SafetensorsReader reader(path); }) == expected);
  CHECK(says([&] { SafetensorsWriter writer(path, {{"a", DType::kF32, {2}}}); }) == expected);
  CHECK(folder.files() == 1);
}

TEST_CASE("SafetensorsWriter: metadata keys of checksums are reserved") {
  const Folder folder;
  CHECK_THROWS_AS(SafetensorsWriter(folder / "x", {}, {{"autopar.xxh3", "0"}}), CheckpointError);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "x", {{"a\xff", DType::kU8, {1}}}), CheckpointError);
  CHECK(folder.files() == 0);
}

TEST_CASE("remove_partial_files: dead writers' alone are removed") {
  const Folder folder;
  for (const char* name : {"x.partial-abcdef", "x.partial-ABC123", "x.partial-notes.txt", "y.partial-abcdef", "x"}) {
    write_text_file(folder / name, name);
  }
  SafetensorsWriter writer(folder / "x", {{"a", DType::kU8, {4}}});
  CHECK(folder.files() == 6);
  CHECK(remove_partial_files(folder / "x") == 2);
  CHECK(folder.files() == 4);
  CHECK(read_text_file(folder / "y.partial-abcdef") == "y.partial-abcdef");
  CHECK(read_text_file(folder / "x.partial-notes.txt") == "x.partial-notes.txt");
  writer.write(bytes_of(4, 1));
  writer.commit();
  CHECK(folder.files() == 3);
  CHECK(SafetensorsReader(folder / "x").entries().size() == 1);
  CHECK(remove_partial_files(folder / "nowhere/x") == 0);
}

TEST_CASE("SafetensorsReader: random damage never crashes") {
  const Folder folder;
  {
    SafetensorsWriter writer(folder / "x", {{"a", DType::kF32, {2, 3}}, {"b", DType::kI8, {5}}}, {{"k", "v"}});
    writer.write(bytes_of(24, 1));
    writer.write(bytes_of(5, 2));
    writer.commit();
  }
  const auto good = read_text_file(folder / "x");
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    auto text = good;
    for (int k = 0; k < 1 + round % 4; ++k) text[random() % text.size()] = static_cast<char>(random());
    if (round % 3 == 0) text.resize(random() % text.size());
    std::ofstream(folder / "y", std::ios::binary) << text;
    try {
      const SafetensorsReader reader(folder / "y");
      for (const auto& entry : reader.entries()) CHECK(entry.bytes().value() <= static_cast<std::int64_t>(text.size()));
    } catch (const CheckpointError&) {
    }
  }
}
