#include <autopar/io/cache_folder.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using autopar::CacheFolder;
using autopar::CacheTrouble;
namespace fs = std::filesystem;

namespace cache_folder_test {

const std::string kName = "gelu.kernel";
const std::string kContent = std::string("code\0of\na device", 16);
constexpr uid_t kSomebodyElse = 12345;

struct Said {
  std::vector<std::string> refused, not_kept;
  [[nodiscard]] CacheFolder::Report report() {
    return [this](CacheTrouble trouble, const std::string& message) {
      (trouble == CacheTrouble::kRefused ? refused : not_kept).push_back(message);
    };
  }
};

/// A folder of its own, as another process would see it: each call opens it anew.
struct Cache {
  TempFolder temp;
  fs::path path = temp / "cache";
  Said said;

  [[nodiscard]] auto read(const std::string& name = kName) { return CacheFolder(path, said.report()).read(name); }
  bool write(const std::string& content = kContent) { return CacheFolder(path, said.report()).write(kName, content); }
  [[nodiscard]] fs::path file() const { return path / kName; }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& item : fs::directory_iterator(path)) found.push_back(item.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
};

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

/// Whether it says yes in a process of its own.
bool in_child(const std::function<bool()>& question) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(question() ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool in_child_of(uid_t user, const std::function<bool()>& question) {
  return in_child([&] { return ::setgid(user) == 0 && ::setuid(user) == 0 && question(); });
}

TEST_CASE("CacheFolder: a stored file is read back, by its owner alone") {
  Cache cache;
  CHECK_FALSE(cache.read());
  CHECK_FALSE(fs::exists(cache.path));  // nothing is made to read
  const auto before = ::umask(0);
  CHECK(cache.write());
  ::umask(before);
  CHECK(cache.read() == kContent);
  CHECK(mode_of(cache.path) == 0700);
  CHECK(mode_of(cache.file()) == 0600);
  CHECK(cache.write("new"));
  CHECK(cache.read() == "new");
  CHECK(cache.write(""));
  CHECK(cache.read() == "");
  CHECK_FALSE(cache.read("other.kernel"));
  CHECK(cache.names() == std::vector<std::string>{kName});
  CHECK(cache.said.refused.empty());
  CHECK(cache.said.not_kept.empty());
}

TEST_CASE("CacheFolder: created if missing, nested ones share its fate") {
  Cache cache;
  cache.path = cache.temp / "home/.cache/autopar";
  const auto outer = std::make_shared<CacheFolder>(cache.path, cache.said.report());
  CacheFolder inner(outer, "kernels");
  CHECK_FALSE(inner.read(kName));
  CHECK(inner.write(kName, kContent));
  CHECK(mode_of(cache.path / "kernels") == 0700);
  CHECK(inner.read(kName) == kContent);
  CHECK_FALSE(outer->read(kName));
  fs::permissions(cache.path, fs::perms(0777));
  CacheFolder again(std::make_shared<CacheFolder>(cache.path, cache.said.report()), "kernels");
  CHECK_FALSE(again.read(kName));
  CHECK_FALSE(again.write(kName, kContent));
  CHECK(cache.said.refused.size() == 1);
}

TEST_CASE("CacheFolder: a damaged or renamed file counts as absent") {
  Cache cache;
  REQUIRE(cache.write());
  const auto whole = bytes_of(cache.file());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(cache.file(), whole.substr(0, length));
    CAPTURE(length);
    CHECK_FALSE(cache.read());
  }
  put(cache.file(), whole + "x");
  CHECK_FALSE(cache.read());
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    put(cache.file(), flipped);
    CAPTURE(bit);
    CHECK_FALSE(cache.read());
  }
  put(cache.file(), kContent);  // as earlier versions had it
  CHECK_FALSE(cache.read());
  put(cache.path / "other.kernel", whole);
  fs::permissions(cache.path / "other.kernel", fs::perms(0600));
  CHECK_FALSE(cache.read("other.kernel"));
  CHECK(cache.said.refused.size() == whole.size() + 1 + 8 * whole.size() + 2);  // once each: each is a process
  CHECK(contains(cache.said.refused.back(), "other.kernel is not used: it is damaged"));
  CHECK(cache.write());
  CHECK(cache.read() == kContent);
}

TEST_CASE("CacheFolder: one that others may write to is refused by name") {
  Cache cache;
  REQUIRE(cache.write());
  for (const mode_t mode : {0775u, 0702u, 01777u, 02770u}) {
    fs::permissions(cache.path, fs::perms(mode));
    cache.said = {};
    CacheFolder folder(cache.path, cache.said.report());
    CAPTURE(mode);
    CHECK_FALSE(folder.read(kName));
    CHECK_FALSE(folder.write(kName, "x"));
    REQUIRE(cache.said.refused.size() == 1);  // said once
    const auto message = cache.said.refused[0];
    CAPTURE(message);
    CHECK(contains(message, cache.path.string() + " is not used: others may write to it"));
    const auto command = message.substr(message.find("chmod 700"));
    REQUIRE(std::system(command.c_str()) == 0);
    CHECK(cache.read() == kContent);
  }
}

TEST_CASE("CacheFolder: an old version's is made private and cleaned") {
  Cache cache;
  REQUIRE(cache.write());
  fs::permissions(cache.path, fs::perms(0755));
  put(cache.path / "gelu.cu-sm_90.cubin", "raw");
  put(cache.path / "mine.txt", "mine");
  CacheFolder folder(cache.path, cache.said.report(), [](std::string_view name) { return name.ends_with(".cubin"); });
  CHECK(folder.read(kName) == kContent);
  CHECK(mode_of(cache.path) == 0700);
  CHECK(cache.names() == std::vector<std::string>{kName, "mine.txt"});
  CHECK(cache.said.refused.empty());
}

TEST_CASE("CacheFolder: non-regular files are refused or replaced") {
  Cache cache;
  REQUIRE(cache.write());
  const auto whole = bytes_of(cache.file());
  const auto precious = cache.temp / "precious";
  const auto refused_by = [&](const std::string& reason, bool is_replaced) {
    CAPTURE(reason);
    cache.said = {};
    CHECK_FALSE(cache.read());
    REQUIRE(cache.said.refused.size() == 1);
    CAPTURE(cache.said.refused[0]);
    CHECK(contains(cache.said.refused[0], cache.file().string() + " is not used: " + reason));
    CHECK(cache.write("new") == is_replaced);
    CHECK(cache.said.not_kept.empty() == is_replaced);
    if (is_replaced) CHECK(cache.read() == "new");
    CHECK(cache.names() == std::vector<std::string>{kName});
    fs::remove_all(cache.file());
  };
  fs::remove(cache.file());
  put(precious, whole);
  fs::create_symlink(precious, cache.file());
  refused_by("it is a link", true);
  CHECK(bytes_of(precious) == whole);  // what a link leads to stays
  fs::create_symlink(cache.temp / "nowhere", cache.file());
  refused_by("it is a link", true);
  CHECK_FALSE(fs::exists(cache.temp / "nowhere"));
  REQUIRE(::mkfifo(cache.file().c_str(), 0600) == 0);
  refused_by("it is no regular file", true);
  fs::create_directories(cache.file() / "inside");
  refused_by("it is no regular file", false);
  put(cache.file(), whole);
  fs::permissions(cache.file(), fs::perms(0620));
  refused_by("others may write to it (mode 0620)", true);
}

TEST_CASE("CacheFolder: a link or file in its place is refused") {
  Cache cache;
  REQUIRE(cache.write());
  fs::rename(cache.path, cache.temp / "elsewhere");
  fs::create_directory_symlink(cache.temp / "elsewhere", cache.path);
  CHECK_FALSE(cache.read());
  CHECK_FALSE(CacheFolder(cache.path / "", cache.said.report()).read(kName));
  CHECK_FALSE(cache.write("x"));
  REQUIRE(cache.said.refused.size() == 3);
  CHECK(contains(cache.said.refused[0], "it is a link"));
  fs::remove(cache.path);
  fs::create_directory_symlink(cache.temp / "nowhere", cache.path);
  CHECK_FALSE(cache.write("x"));
  CHECK_FALSE(fs::exists(cache.temp / "nowhere"));
  fs::remove(cache.path);
  put(cache.path, "a file");
  CHECK_FALSE(cache.read());
  CHECK_FALSE(cache.write("x"));
  CHECK(contains(cache.said.refused.back(), "it is no folder"));
  cache.path = cache.path / "below";
  CHECK_FALSE(cache.write("x"));
  CHECK(contains(cache.said.refused.back(), "the cache " + cache.path.string() + " is not used: Not a directory"));
}

TEST_CASE("CacheFolder: other users' files are refused, root's are read") {
  if (::geteuid() != 0) return;  // nobody else can be tried
  Cache cache;
  REQUIRE(cache.write());
  REQUIRE(::chown(cache.file().c_str(), kSomebodyElse, kSomebodyElse) == 0);
  CHECK_FALSE(cache.read());
  CHECK(contains(cache.said.refused.back(), "it belongs to user 12345, not to user 0"));
  CHECK(cache.write());
  CHECK(cache.read() == kContent);
  REQUIRE(::chown(cache.path.c_str(), kSomebodyElse, kSomebodyElse) == 0);
  cache.said = {};
  CHECK_FALSE(cache.read());
  CHECK_FALSE(cache.write());
  REQUIRE(cache.said.refused.size() == 2);
  CHECK(contains(cache.said.refused[0], "it belongs to user 12345, not to user 0"));
  CHECK(contains(cache.said.refused[0], "XDG_CACHE_HOME"));

  // An image's cache: root's, for all to read.
  REQUIRE(::chown(cache.path.c_str(), 0, 0) == 0);
  fs::permissions(cache.temp / ".", fs::perms(0755));
  fs::permissions(cache.path, fs::perms(0755));
  fs::permissions(cache.file(), fs::perms(0644));
  CHECK(in_child_of(kSomebodyElse, [&] {
    const bool read = cache.read() == kContent && cache.said.refused.size() == 2;
    return read && !cache.write("x") && cache.said.not_kept.size() == 1 && cache.read() == kContent;
  }));
  CHECK(mode_of(cache.path) == 0755);
  fs::permissions(cache.path, fs::perms(0700));
  CHECK(in_child_of(kSomebodyElse, [&] { return !cache.read() && cache.said.refused.size() == 3; }));
}

TEST_CASE("CacheFolder: a failed write leaves nothing behind") {
  Cache cache;
  REQUIRE(cache.write());
  CHECK(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    return !cache.write(std::string(5000, 'x')) && cache.said.not_kept.size() == 1 &&
           contains(cache.said.not_kept[0], "nothing is kept as " + cache.file().string() + ": File too large");
  }));
  CHECK(cache.names() == std::vector<std::string>{kName});
  CHECK(cache.read() == kContent);
}

TEST_CASE("CacheFolder: partial files of dead writers are removed") {
  Cache cache;
  REQUIRE(cache.write());
  put(cache.path / (kName + ".partial-abcdef"), "half");
  const auto living = cache.path / (kName + ".partial-ghijkl");
  const int descriptor = ::open(living.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::flock(descriptor, LOCK_EX) == 0);
  CHECK(cache.read() == kContent);
  CHECK(cache.names() == std::vector<std::string>{kName, living.filename().string()});
  ::close(descriptor);
}

TEST_CASE("CacheFolder: concurrent readers see complete contents") {
  Cache cache;
  std::vector<std::thread> writers;
  REQUIRE(cache.write(std::string(100'000, 'a')));
  for (const char letter : {'a', 'b', 'c'}) {
    writers.emplace_back([&, letter] {
      CacheFolder folder(cache.path);
      for (int i = 0; i < 20; ++i) folder.write(kName, std::string(100'000, letter));
    });
  }
  CacheFolder folder(cache.path, cache.said.report());
  for (int i = 0; i < 50; ++i) {
    const auto text = folder.read(kName);
    REQUIRE(text);
    CHECK(*text == std::string(100'000, text->front()));
  }
  for (auto& writer : writers) writer.join();
  CHECK(cache.said.refused.empty());
  CHECK(cache.names() == std::vector<std::string>{kName});
}

}  // namespace cache_folder_test
