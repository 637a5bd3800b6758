#include <catch_shim.hpp>
#include <refusal.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/safetensors.hpp>

using namespace autopar;

TEST_CASE("files of 391ef30: the checkpoint is read, the plan is read or refused by version") {
  for (const auto& [folder, ranks] : {std::pair("one-rank", 1), std::pair("two-ranks", 2)}) {
    const auto path = std::filesystem::path(AUTOPAR_TEST_DATA) / "391ef30" / folder;
    const SafetensorsReader reader(path / "model.safetensors");
    CHECK(reader.has_checksums());
    CHECK(reader.metadata().at("autopar.format") == "2");
    CHECK(reader.metadata().at("autopar.calls") == "3");
    CHECK(reader.find("model.first.weight")->shape == std::vector<std::int64_t>{8, 6});
    CHECK(reader.find("optimizer.second.bias.exp_avg_sq")->shape == std::vector<std::int64_t>{3});
    for (const auto& entry : reader.entries()) {
      std::vector<std::byte> data(static_cast<std::size_t>(entry.bytes().value()));
      reader.read(entry.name, data);  // verifies its checksum
    }
    const auto message = refusal([&] { CHECK(read_plan(path / "plan.json").world == ranks); });
    CAPTURE(message);
    CHECK((kPlanVersion == 6 ? message.empty() : contains(message, "version: this autopar reads plans of version ")));
  }
}
