#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/training/metrics.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace metrics_test {

using autopar::training::crc32c;
using autopar::training::Metrics;

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.substr(at, sizeof(number)).data(), sizeof(number));
  return number;
}

void require_crc(const std::string& bytes, std::uint32_t stored) {
  const auto crc = crc32c(bytes);
  if (stored != ((crc >> 15 | crc << 17) + 0xa282ead8u)) throw std::runtime_error("a checksum is wrong");
}

/// Contents of TFRecords.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    require_crc(file.substr(at, 8), number_at<std::uint32_t>(file, at + 8));
    found.push_back(file.substr(at + 12, length));
    require_crc(found.back(), number_at<std::uint32_t>(file, at + 12 + length));
    at += 16 + length;
  }
  return found;
}

/// A message of protocol buffers: the bytes of each field, numbers as text.
std::multimap<int, std::string> fields(const std::string& message) {
  std::multimap<int, std::string> found;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const auto key = varint();
    const std::size_t size = (key & 7) == 0 ? 0 : (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
    const auto text = (key & 7) == 0 ? std::to_string(varint()) : message.substr(at, size);
    at += size;
    found.emplace(static_cast<int>(key >> 3), text);
  }
  return found;
}

std::string only(const std::multimap<int, std::string>& of, int field) {
  if (of.count(field) != 1) throw std::runtime_error("field " + std::to_string(field) + " is not there once");
  return of.find(field)->second;
}

std::filesystem::path newest_events(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) found.push_back(entry.path());
  }
  return *std::max_element(found.begin(), found.end());
}

std::vector<nlohmann::json> lines(const std::filesystem::path& folder) {
  std::vector<nlohmann::json> found;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

TEST_CASE("crc32c: values of RFC 3720") {
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
}

TEST_CASE("Metrics: JSON lines are exact, TensorBoard has fp32") {
  const TempFolder temp;
  const auto folder = temp / "run";
  std::filesystem::create_directories(folder);
  {
    Metrics metrics(folder, 0);
    metrics.write(1, {{"loss", 0.1 + 0.2}, {"lr", 3e-4}});
    metrics.write(300, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  }
  const auto json = lines(folder);
  REQUIRE(json.size() == 2);
  const auto time = content(folder / "metrics.csv").substr(std::string("step,time,name,value\n1,").size());
  CHECK(std::stod(time) == json[0].at("time").get<double>());
  CHECK(json[0].at("step") == 1);
  CHECK(json[0].at("loss").get<double>() == 0.1 + 0.2);
  CHECK(json[1].at("loss").is_null());

  const auto events = records(content(newest_events(folder)));
  REQUIRE(events.size() == 3);
  CHECK(only(fields(events[0]), 3) == "brain.Event:2");
  const auto event = fields(events[1]);
  CHECK(only(event, 2) == "1");
  CHECK(number_at<double>(only(event, 1), 0) == json[0].at("time").get<double>());
  const auto values = fields(only(event, 5));
  REQUIRE(values.count(1) == 2);
  const auto first = fields(values.begin()->second);
  CHECK(only(first, 1) == "loss");
  CHECK(number_at<float>(only(first, 2), 0) == static_cast<float>(0.1 + 0.2));
  CHECK(only(fields(events[2]), 2) == "300");
  const auto last = fields(only(fields(only(fields(events[2]), 5)), 1));
  CHECK(std::isnan(number_at<float>(only(last, 2), 0)));
}

TEST_CASE("Metrics: steps after the resumed checkpoint are dropped") {
  const TempFolder temp;
  const auto folder = temp / "run";
  std::filesystem::create_directories(folder);
  {
    Metrics metrics(folder, 0);
    for (int step = 1; step <= 5; ++step) metrics.write(step, {{"loss", 1.0 / step}});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"step\": 2, \"lo";
  Metrics metrics(folder, 3);
  metrics.write(4, {{"loss", 7}});
  std::vector<int> steps;
  for (const auto& line : lines(folder)) steps.push_back(line.at("step").get<int>());
  CHECK(steps == std::vector{1, 2, 3, 4});
  CHECK(lines(folder).back().at("loss") == 7);

  // TensorBoard drops what earlier files have of steps from the one of a start on.
  const auto events = records(content(newest_events(folder)));
  REQUIRE(events.size() == 3);
  CHECK(only(fields(events[1]), 2) == "4");
  CHECK(only(fields(only(fields(events[1]), 7)), 1) == "1");
}

std::vector<std::string> rows(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  std::ifstream file(folder / "metrics.csv");
  for (std::string row; std::getline(file, row);) found.push_back(row);
  return found;
}

TEST_CASE("Metrics: the table has a row a figure, and drops later ones") {
  const TempFolder temp;
  {
    Metrics metrics(temp / ".", 0);
    metrics.write(1, {{"loss", 0.1 + 0.2}, {"a \"b\", c", 1}});
    metrics.write(2, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
    metrics.write(3, {{"loss", 5}});
  }
  std::ofstream(temp / "metrics.csv", std::ios::app) << "1,7,lo";
  Metrics metrics(temp / ".", 2);
  metrics.write(30, {{"loss", -std::numeric_limits<double>::infinity()}});
  const auto found = rows(temp / ".");
  REQUIRE(found.size() == 5);
  CHECK(found[0] == "step,time,name,value");
  CHECK_THAT(found[1], Catch::Matchers::StartsWith("1,") && Catch::Matchers::EndsWith(",loss,0.30000000000000004"));
  CHECK_THAT(found[2], Catch::Matchers::EndsWith(",\"a \"\"b\"\", c\",1"));
  CHECK_THAT(found[3], Catch::Matchers::StartsWith("2,") && Catch::Matchers::EndsWith(",loss,nan"));
  CHECK_THAT(found[4], Catch::Matchers::StartsWith("30,") && Catch::Matchers::EndsWith(",loss,-inf"));
}

TEST_CASE("Metrics: an unwritable folder is named") {
  const TempFolder temp;
  std::ofstream(temp / "file") << "no folder";
  CHECK_THROWS_WITH(Metrics(temp / "file/run", 0), Catch::Matchers::Contains("file/run"));
}

}  // namespace metrics_test
