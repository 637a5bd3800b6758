#include <autopar/io/free_space.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <filesystem>
#include <limits>
#include <string>

#include <autopar/core/error.hpp>

using namespace autopar;

TEST_CASE("require_space: what no disk has is refused, with numbers") {
  const TempFolder folder;
  const Bytes huge(std::numeric_limits<std::int64_t>::max());
  for (const auto& path : {folder / "", folder / "not/made/yet"}) {
    const auto message = refusal([&] { require_space(path, huge); });
    CAPTURE(message);
    CHECK(message.starts_with(path.string() + ": 9223372036854775807 bytes are needed, "));
    CHECK(contains(message, "are available on its file system; free some, or name another folder"));
    CHECK_THROWS_AS(require_space(path, huge), CheckpointError);
  }
  const auto available = std::filesystem::space(folder / "").available;
  CHECK(contains(refusal([&] { require_space("relative/folder", huge); }), "relative/folder: 9223372036854775807"));
  for (const auto& path : {folder / "", folder / "not/made/yet", std::filesystem::path("relative/folder"),
                           std::filesystem::path("/"), std::filesystem::path("")}) {
    CHECK(refusal([&] { require_space(path, Bytes(0)); }).empty());
    CHECK(refusal([&] { require_space(path, Bytes(1)); }).empty());
  }
  if (available > 1'000'000'000) {
    CHECK(refusal([&] { require_space(folder / "", Bytes(1'000'000)); }).empty());
    CHECK_FALSE(refusal([&] {
                  require_space(folder / "", Bytes(static_cast<std::int64_t>(available) + 1'000'000'000'000));
                }).empty());
  }
}

TEST_CASE("require_space: passes where the system cannot tell") {
  const Bytes huge(std::numeric_limits<std::int64_t>::max());
  CHECK(refusal([&] { require_space(std::string(1 << 16, 'x'), huge); }).empty());  // a longer name than any has
  CHECK(refusal([&] { require_space("", huge); }).empty());
}
