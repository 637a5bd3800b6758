#include <catch_shim.hpp>

#include <ctime>
#include <fstream>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/io/safetensors.hpp>
#include <many_members.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

using namespace autopar;

namespace json_text_test {

using test::kMany;
using test::object_of;

TEST_CASE("SafetensorsReader: a header of very many tensors") {
  const TempFolder folder;
  std::vector<TensorEntry> entries;
  for (std::size_t i = 0; i < kMany; ++i)
    entries.push_back({"tensor." + std::to_string(i), DType::kU8, {i % 2 == 0 ? 1 : 0}});
  SafetensorsWriter writer(folder / "x.safetensors", entries);
  for (const auto& entry : entries) writer.write(std::vector<std::byte>(static_cast<std::size_t>(entry.shape[0])));
  writer.commit();
  const SafetensorsReader reader(folder / "x.safetensors");
  CHECK(reader.entries().size() == kMany);
  REQUIRE(reader.find("tensor.299998") != nullptr);
  CHECK(reader.find("tensor.299998")->shape == std::vector<std::int64_t>{1});
}

TEST_CASE("SafetensorsReader: a header of 36 MB takes two seconds") {
  const TempFolder folder;
  std::vector<TensorEntry> entries;
  std::string text = "{";
  std::size_t count = 0;
  for (; text.size() < std::size_t{36'000'000}; ++count) {
    text += (count > 0 ? "," : "") + ("\"encoder.layers." + std::to_string(count)) +
            R"(.weight":{"dtype":"U8","shape":[1,0],"data_offsets":[0,0]})";
  }
  text += "}";
  const std::uint64_t length = text.size();
  std::ofstream out(folder / "large.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text;
  out.close();
  const std::clock_t before = std::clock();
  const SafetensorsReader reader(folder / "large.safetensors");
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CAPTURE(seconds);
  CHECK(reader.entries().size() == count);
  CHECK(seconds <= 2);
}

TEST_CASE("JSON reader: very many members are refused") {
  const auto many = object_of(kMany, "\"version\":6", "1");
  CHECK_THROWS_AS(parse_plan(many, "f"), ConfigError);
  CHECK_THROWS_AS(parse_profile(many, "f"), ConfigError);
}

TEST_CASE("JSON reader: duplicate members and deep nesting are refused") {
  CHECK(contains(refusal([] { static_cast<void>(parse_plan(R"({"version":6,"world":1,"world":2})", "f")); }),
                 "f: the member 'world' is there twice"));
  CHECK(contains(refusal([] { static_cast<void>(parse_plan(std::string(1 << 20, '['), "f")); }),
                 "nested deeper than 16"));
  CHECK(contains(refusal([] { static_cast<void>(parse_profile(R"({"version":1e999})", "f")); }), "not valid JSON"));

  const TempFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  const std::uint64_t length = header.size();
  std::ofstream out(folder / "twice", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header;
  out.close();
  CHECK(contains(refusal([&] { SafetensorsReader reader(folder / "twice"); }), "'a' is there twice"));
}

}  // namespace json_text_test
