#include <autopar/io/cost_file.hpp>

#include <catch_shim.hpp>
#include <replaced.hpp>
#include <temp_folder.hpp>

#include <filesystem>
#include <limits>
#include <random>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

using namespace autopar;

namespace {

const CostOrigin kHere{"cpu: some processor, 2 threads", "2.11.0"};

MeasuredCosts sample_costs() {
  MeasuredCosts costs;
  const CostCurve forward({{2, 1.25e-5}, {16, 6e-5}}), backward({{2, 1.0 / 3}, {16, 1.5}});
  costs.atoms[7] = {forward, backward, {forward.scaled(1.5), backward.scaled(0.75)}, {2, 16}, Undivided{0.4375, 1}};
  costs.atoms[std::numeric_limits<std::uint64_t>::max()] = {forward, {}, {forward, {}}, {}};  // without a backward
  costs.links.messages[2] = CostCurve({{1024, 2e-6}, {1 << 20, 1.0 / 3}});
  costs.links.all_reduces[{2, 2}] = CostCurve({{1024, 5e-6}});
  costs.links.all_reduces[{8, 4}] = CostCurve({{1024, 5e-5}, {1 << 16, 5e-5}, {1 << 26, 0.02}});
  costs.links.contention[{8, 4}] = {0.55, 1.0 / 3};
  costs.links.message_delays[2] = 0.125;
  costs.updates[0] = CostCurve({{1e3, 1e-6}, {1e6, 4e-4}});
  costs.updates[2] = CostCurve({{1e3, 3e-6}, {1e6, 9e-4}});
  costs.joint_updates[2] = CostCurve({{1e3, 3e-7}, {1e6, 9e-6}, {1e8, 4e-4}});
  costs.host.copy = CostCurve({{1e5, 1e-5}, {1e7, 8e-4}});
  costs.host.updates[2] = CostCurve({{1e3, 9e-6}});
  return costs;
}

std::string message_of(const std::string& json, const CostOrigin& expected = kHere) {
  try {
    (void)parse_costs(json, "costs.json", expected);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The text with a checksum that fits, so that what else is wrong is found.
std::string resealed(const std::string& text) {
  const auto body = replaced(text, text.substr(text.find(",\"checksum\"")), "}");
  std::uint64_t state = 0xcbf29ce484222325ULL;
  for (const char c : nlohmann::json::parse(body).dump())
    state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(state));
  return body.substr(0, body.size() - 1) + ",\"checksum\":\"" + digits + "\"}";
}

}  // namespace

TEST_CASE("cost file: round trip is exact to the bit") {
  const auto text = to_json(sample_costs(), kHere);
  CHECK(parse_costs(text, "c", kHere) == sample_costs());
  CHECK(to_json(parse_costs(text, "c", kHere), kHere) == text);
  CHECK(parse_costs(to_json({}, kHere), "c", kHere) == MeasuredCosts{});
  const TempFolder folder;
  write_costs(folder / "deep" / "costs.json", sample_costs(), kHere);
  CHECK(read_costs(folder / "deep" / "costs.json", kHere) == sample_costs());
  write_costs(folder / "deep" / "costs.json", {}, kHere);
  CHECK(read_costs(folder / "deep" / "costs.json", kHere) == MeasuredCosts{});
  const CostFile anywhere = parse_costs(text, "c");  // for planning elsewhere
  CHECK(anywhere.origin == kHere);
  CHECK(anywhere.costs == sample_costs());
  const std::filesystem::directory_iterator files(folder / "deep");
  CHECK(std::distance(begin(files), end(files)) == 1);  // nothing is left aside
  CHECK_THROWS_AS(read_costs(folder / "none.json", kHere), ConfigError);
}

TEST_CASE("cost file: another device or version is refused and named") {
  const auto text = to_json(sample_costs(), kHere);
  const auto device = message_of(text, {"NVIDIA H100", "2.11.0"});
  CHECK(mentions(device, "costs.json: device"));
  CHECK(mentions(device, "'cpu: some processor, 2 threads'"));
  CHECK(mentions(device, "'NVIDIA H100'"));
  const auto library = message_of(text, {kHere.device, "2.12.0"});
  CHECK(mentions(library, "libtorch"));
  CHECK(mentions(library, "'2.12.0'"));
  CHECK(mentions(message_of(text, {kHere.device, "2.11.0", "9.9.9"}), "autopar"));
  const std::string own = R"("version":13)";
  CHECK(mentions(message_of(replaced(text, own, R"("version":14)")), "format 14"));
  CHECK(mentions(message_of(replaced(text, own, R"("version":1)")), "format 1"));
  CHECK(mentions(message_of("{" + own + R"(,"hash":"0000000000000000","atoms":[]})"), "device: is missing"));
}

TEST_CASE("cost file: one altered digit is noticed") {
  const auto text = to_json(sample_costs(), kHere);
  CHECK(mentions(message_of(replaced(text, "1.25e-05", "7.25e-05")), "altered"));
  CHECK(mentions(message_of(replaced(text, "\"ranks\":4", "\"ranks\":5")), "altered"));
  CHECK(mentions(message_of(replaced(text, "\"structure\":\"0000000000000007\"", "\"structure\":\"0000000000000008\"")),
                 "altered"));
}

TEST_CASE("cost file: invalid numbers are refused despite the checksum") {
  const auto text = to_json(sample_costs(), kHere);
  CHECK(parse_costs(resealed(text), "c", kHere) == sample_costs());
  CHECK(mentions(message_of(resealed(replaced(text, "1.25e-05", "-1.25e-05"))), "at least 0"));
  CHECK(mentions(message_of(resealed(replaced(text, "1.25e-05", "1e+300"))), "finite"));
  CHECK(mentions(message_of(resealed(replaced(text, "1.25e-05", "null"))), "pairs"));
  CHECK(mentions(message_of(resealed(replaced(text, "[2.0,1.25e-05]", "[2.0]"))), "in_step"));
  CHECK(mentions(message_of(resealed(replaced(text, "[2.0,1.25e-05]", "[2.0,1e-06]"))), "more time for each"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"in_step\":[", "\"in_step\":[[],"))), "[forward, backward]"));
  CHECK(mentions(message_of(resealed(replaced(text, ",[]],\"alone\"", ",7],\"alone\""))), "pairs"));
  CHECK(mentions(message_of(resealed(replaced(text, "[1000000.0,0.0004]", "[1000000.0]"))), "updates"));
  CHECK(mentions(message_of(resealed(replaced(text, "[1000000.0,0.0004]", "[1000000.0,-0.0004]"))), "at least 0"));
  CHECK(mentions(message_of(resealed(replaced(text, "[10000000.0,0.0008]", "[10000000.0]"))), "copy"));
  CHECK(mentions(
      message_of(resealed(replaced(text, "\"structure\":\"ffffffffffffffff\"", "\"structure\":\"0000000000000007\""))),
      "twice"));
  CHECK(mentions(message_of(resealed(replaced(text, "[2,16]", "[16,2]"))), "least <= most"));
  CHECK(mentions(message_of(resealed(replaced(text, "[2,16]", "[2]"))), "[least, most]"));
  CHECK(mentions(message_of(resealed(replaced(text, "[0.4375,1.0]", "[0.4375,1.5]"))), "undivided"));
  CHECK(mentions(message_of(resealed(replaced(text, "[0.4375,1.0]", "[0.4375]"))), "each from 0 to 1"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"ranks\":2", "\"ranks\":1"))), "ranks"));
  CHECK(mentions(message_of(resealed(replaced(text, "[[1024.0,5e-06]]", "[]"))), "measure at least one size"));
  CHECK(mentions(message_of(resealed(replaced(text, "[[1024.0,5e-06]]", "[[0.0,5e-06]]"))), "must ascend"));
  CHECK(mentions(message_of(resealed(replaced(text, "[[1024.0,5e-06]]", "[[1024.0,-5e-06]]"))), "at least 0"));
  CHECK(mentions(message_of(resealed(replaced(text, "[[1024.0,5e-06]]", "[[1024.0,1e+300]]"))), "finite"));
  CHECK(mentions(message_of(resealed(replaced(text, "[[1024.0,5e-06]]", "[[1024.0,null]]"))), "pairs"));
  CHECK(mentions(message_of(resealed(replaced(text, "[65536.0,5e-05]", "[65536.0,4e-05]"))), "takes less time"));
  CHECK(mentions(message_of(resealed(replaced(text, "[0.55,", "[1.55,"))), "from 0 to 1"));
  CHECK(mentions(message_of(resealed(replaced(text, "[0.55,", "[0.55,0.5,"))), "from 0 to 1"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"delay\":0.125", "\"delay\":1.125"))), "delay"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"class\":8", "\"class\":0"))), "class"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"state_factor\":2", "\"state_factor\":0"))), "twice"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"state_factor\":2", "\"state_factor\":-1"))), "state_factor"));
  CHECK(mentions(message_of(resealed(replaced(text, "\"links\"", "\"extra\":1,\"links\""))), "unknown member 'extra'"));
}

TEST_CASE("cost file: truncated or damaged text never crashes") {
  const auto good = to_json(sample_costs(), kHere);
  for (std::size_t length = 0; length + 2 < good.size(); ++length)
    CHECK_FALSE(message_of(good.substr(0, length)).empty());
  std::mt19937 random(5);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    auto text = good;
    for (int k = 0; k < 1 + round % 5; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    try {
      // What passes all checks says the same: a changed space, or the same character again.
      accepted += parse_costs(text, "c", kHere) == sample_costs() ? 0 : 1;
    } catch (const ConfigError&) {
    }
  }
  CHECK(accepted == 0);
  CHECK_FALSE(message_of(std::string(100'000, '[')).empty());
  CHECK_FALSE(message_of("[" + std::string(1000, '1') + "]").empty());
}
