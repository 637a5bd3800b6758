#include <autopar/io/file.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/io/trace_file.hpp>

using namespace autopar;
namespace fs = std::filesystem;

namespace file_test {

constexpr std::uint64_t kModel = 0xabc;
const std::string kMark = "autopar report of model 0000000000000abc";

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

Plan small_plan() {
  Plan plan;
  plan.model = kModel;
  plan.stages.emplace_back().mesh = {Rank(0)};
  return plan;
}

TEST_CASE("write_marked_file: a foreign file is kept unless allowed") {
  const TempFolder folder;
  const auto path = folder / "thesis.txt";
  CHECK(file_mark("report", kModel) == kMark);
  for (const std::string content :
       {"my thesis", "# autopar is great", "{\"format\":\"autopar\"}", "autopar reports of model 0000000000000abc"}) {
    put(path, content);
    CAPTURE(content);
    const auto refused = refusal([&] { write_marked_file(path, kMark + "\nnew", kMark); });
    CHECK(contains(refused, "thesis.txt: "));
    CHECK(contains(refused, "overwrite = true"));
    CHECK(contains(refused, "--force"));
    CHECK(read_text_file(path) == content);
  }
  CHECK(
      contains(refusal([&] { put(path, "x"), write_marked_file(path, kMark, kMark); }), "was not written by autopar"));
  write_marked_file(path, kMark + "\nnew", kMark, Overwrite::kAny);
  CHECK(read_text_file(path) == kMark + "\nnew");
}

TEST_CASE("write_marked_file: replaces files of its kind and model only") {
  const TempFolder folder;
  const auto path = folder / "r.txt";
  write_marked_file(path, kMark + "\n1", kMark);
  write_marked_file(path, kMark + "\n2", kMark);
  CHECK(read_text_file(path) == kMark + "\n2");
  const auto other = file_mark("report", 7), kind = file_mark("graph", kModel);
  CHECK(contains(refusal([&] { write_marked_file(path, other, other); }), "holds an " + kMark));
  CHECK(contains(refusal([&] { write_marked_file(path, "// " + kind, kind); }), "not replaced by an " + kind));
  CHECK(read_text_file(path) == kMark + "\n2");
  put(path, "");
  CHECK_NOTHROW(write_marked_file(path, other, other));  // nothing is lost
}

TEST_CASE("write_marked_file: every format is marked with its model") {
  const TempFolder folder;
  const auto path = folder / "f.json";
  const auto plan = small_plan();
  ModelProfile profile;
  profile.hash = kModel;
  const auto refuses = [&](const auto& write) { return contains(refusal(write), "f.json: holds an autopar "); };
  const auto plan_of = [&](std::uint64_t model) {
    return [&, model] {
      Plan other = plan;
      other.model = model;
      write_plan(path, other);
    };
  };
  const auto profile_of = [&](std::uint64_t model) {
    return [&, model] {
      ModelProfile other = profile;
      other.hash = model;
      write_profile(path, other);
    };
  };
  const auto costs = [&] { write_costs(path, {}, {"cpu", "2"}); };
  const auto trace_of = [&](std::uint64_t model) { return [&, model] { write_chrome_trace(path, {}, model); }; };

  write_plan(path, plan);
  CHECK_NOTHROW(plan_of(kModel)());
  CHECK(refuses(plan_of(1)));
  CHECK(refuses(profile_of(kModel)));
  CHECK(refuses(costs));
  CHECK(refuses(trace_of(kModel)));
  CHECK(read_plan(path) == plan);
  write_profile(path, profile, Overwrite::kAny);
  CHECK_NOTHROW(profile_of(kModel)());
  CHECK(refuses(profile_of(1)));
  CHECK(refuses(plan_of(kModel)));
  write_costs(path, {}, {"cpu", "1"}, Overwrite::kAny);
  CHECK_NOTHROW(costs());
  CHECK(refuses(plan_of(kModel)));
  write_chrome_trace(path, {}, kModel, Overwrite::kAny);
  CHECK_NOTHROW(trace_of(kModel)());
  CHECK(refuses(trace_of(1)));
}

TEST_CASE("file mark: a wrong one is refused, a missing one is not") {
  const auto plan = small_plan();
  const auto text = to_json(plan);
  const std::string says = "\"format\": \"" + file_mark("plan", kModel) + "\",";
  const auto with = [&](const std::string& other) {
    auto changed = text;
    return changed.replace(changed.find(says), says.size(), other);
  };
  CHECK(parse_plan(with(""), "f") == plan);
  CHECK(contains(refusal([&] { static_cast<void>(parse_plan(with("\"format\": \"autopar costs\","), "f")); }),
                 "f: format: "));
}

TEST_CASE("write_text_file: links stay, their targets are replaced") {
  const TempFolder folder;
  fs::create_directories(folder / "deep");
  put(folder / "deep" / "target", "old");
  fs::create_symlink("deep/target", folder / "link");
  fs::create_symlink("link", folder / "outer");
  CHECK(contains(refusal([&] { write_marked_file(folder / "outer", kMark, kMark); }), "was not written by autopar"));
  write_text_file(folder / "outer", "new");
  CHECK(fs::is_symlink(folder / "outer"));
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_text_file(folder / "deep" / "target") == "new");
  fs::create_symlink("deep/later", folder / "dangling");
  write_text_file(folder / "dangling", "made");
  CHECK(fs::is_symlink(folder / "dangling"));
  CHECK(read_text_file(folder / "deep" / "later") == "made");
  CHECK(files_in(folder / "deep") == 2);
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  CHECK(contains(refusal([&] { write_text_file(folder / "a", "x"); }), "cannot write"));
  CHECK(contains(refusal([&] { write_marked_file(folder / "a", kMark, kMark); }), "cannot write"));
}

TEST_CASE("write_text_file: umask for new files, old ones keep modes") {
  const TempFolder folder;
  const auto before = ::umask(027);
  write_text_file(folder / "new", "x");
  CHECK(mode_of(folder / "new") == 0640);
  ::umask(0);
  write_text_file(folder / "open", "x");
  CHECK(mode_of(folder / "open") == 0666);
  ::umask(before);
  for (const mode_t mode : {0600, 0664, 0755}) {
    fs::permissions(folder / "new", static_cast<fs::perms>(mode));
    write_text_file(folder / "new", "y");
    CHECK(mode_of(folder / "new") == mode);
  }
  if (::geteuid() == 0) return;  // who may write everything
  fs::permissions(folder / "new", static_cast<fs::perms>(0444));
  CHECK(contains(refusal([&] { write_text_file(folder / "new", "z"); }), "cannot write"));
  CHECK(read_text_file(folder / "new") == "y");
}

TEST_CASE("write_marked_file: devices and pipes are written in place") {
  const TempFolder folder;
  write_marked_file("/dev/null", kMark, kMark);
  CHECK(fs::is_character_file("/dev/null"));

  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(refusal([&] { write_marked_file(pipe, kMark, kMark); }), "cannot write the file: "));  // no reader
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_marked_file(pipe, kMark, kMark);
  CHECK(read_text_file("/proc/self/fd/" + std::to_string(reader)) == kMark);
  ::close(reader);
  CHECK(fs::is_fifo(pipe));

  const int descriptor = ::open((folder / "shell").c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(::write(descriptor, "before ", 7) == 7);
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), folder / "stdout");
  write_marked_file(folder / "stdout", kMark, kMark);
  REQUIRE(::write(descriptor, " after", 6) == 6);
  ::close(descriptor);
  CHECK(read_text_file(folder / "shell") == "before " + kMark + " after");
  CHECK(files_in(folder / "") == 3);
}

TEST_CASE("read_text_file: a named pipe is refused in every format") {
  const TempFolder folder;
  const auto pipe = folder / "pipe", link = folder / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  for (const auto& path : {pipe, link}) {
    const auto is_refused = [&](const auto& read) {
      return contains(refusal(read), path.string() + ": it is a pipe, and must be a regular file");
    };
    CHECK(is_refused([&] { static_cast<void>(read_text_file(path)); }));
    CHECK(is_refused([&] { static_cast<void>(read_plan(path)); }));
    CHECK(is_refused([&] { static_cast<void>(read_profile(path)); }));
    CHECK(is_refused([&] { static_cast<void>(read_cluster(path)); }));
    CHECK(is_refused([&] { static_cast<void>(read_costs(path)); }));
  }
  const std::string before = std::getenv("AUTOPAR_CONFIG") == nullptr ? "" : std::getenv("AUTOPAR_CONFIG");
  ::setenv("AUTOPAR_CONFIG", pipe.c_str(), 1);
  CHECK(contains(refusal([] { static_cast<void>(process_config_sources()); }), "pipe: it is a pipe, and must be"));
  ::setenv("AUTOPAR_CONFIG", "/dev/null", 1);
  CHECK(process_config_sources().text.empty());
  if (before.empty())
    ::unsetenv("AUTOPAR_CONFIG");
  else
    ::setenv("AUTOPAR_CONFIG", before.c_str(), 1);
}

TEST_CASE("read_text_file: folders, missing and long files are refused") {
  const TempFolder folder;
  CHECK(contains(refusal([&] { static_cast<void>(read_text_file(folder / "")); }), "it is a folder"));
  CHECK(contains(refusal([&] { static_cast<void>(read_text_file(folder / "none")); }), "No such file"));
  CHECK(contains(refusal([&] { write_text_file(folder / "", "x"); }), "cannot write"));
  CHECK(contains(refusal([&] { static_cast<void>(read_text_file("/dev/zero", Bytes(1000))); }), "at most 1000"));
  put(folder / "long", std::string(1001, 'x'));
  CHECK(contains(refusal([&] { static_cast<void>(read_text_file(folder / "long", Bytes(1000))); }), "has 1001 bytes"));
  put(folder / "long", std::string(1000, 'x'));
  CHECK(read_text_file(folder / "long", Bytes(1000)).size() == 1000);
}

}  // namespace file_test
