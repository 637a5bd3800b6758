#include <autopar/io/regular_file.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

using namespace autopar;
namespace fs = std::filesystem;

namespace regular_file_test {

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

void make_socket(const fs::path& path) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  const auto name = path.string();
  REQUIRE(name.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, name.c_str(), name.size());
  REQUIRE(::bind(made, reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)) == 0);
  ::close(made);
}

TEST_CASE("open_regular: contents stay readable after a rename") {
  const TempFolder folder;
  put(folder / "file", "content");
  fs::create_symlink("file", folder / "link");
  for (const char* name : {"file", "link"}) {
    put(folder / "file", "content");
    const auto file = open_regular(folder / name);
    CHECK_NOTHROW(require_regular(folder / name));
    fs::remove(folder / "file");
    put(folder / "file", "another");
    std::array<char, 16> text{};
    CHECK(::pread(file.descriptor(), text.data(), text.size(), 0) == 7);
    CHECK(std::string(text.data()) == "content");
    CHECK((::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("RegularFile: closed with its owner, movable") {
  const TempFolder folder;
  put(folder / "file", "content");
  int number = -1;
  {
    auto file = open_regular(folder / "file");
    const auto taken = std::move(file);
    RegularFile kept;
    kept = open_regular(folder / "file");
    number = taken.descriptor();
    CHECK(number >= 0);
    CHECK(file.descriptor() == -1);
  }
  CHECK(::fcntl(number, F_GETFD) == -1);
}

TEST_CASE("open_regular: other file types are refused without blocking") {
  const TempFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_directory(folder / "folder");
  make_socket(folder / "socket");
  fs::create_symlink("/dev/null", folder / "device");
  const std::array<std::pair<const char*, const char*>, 4> kinds{
      {{"pipe", "a pipe"}, {"folder", "a folder"}, {"socket", "a socket"}, {"device", "a device"}}};
  for (const auto& [name, kind] : kinds) {
    const auto path = folder / name;
    CAPTURE(name);
    const auto text = path.string() + ": it is " + kind + ", and must be a regular file";
    CHECK(contains(refusal([&] { static_cast<void>(open_regular(path)); }), text));
    CHECK(contains(refusal([&] { require_regular(path); }), text));
  }
}

TEST_CASE("open_regular: a missing file has the system's reason") {
  const TempFolder folder;
  put(folder / "file", "content");
  CHECK(contains(refusal([&] { static_cast<void>(open_regular(folder / "none")); }),
                 (folder / "none").string() + ": cannot open: No such file or directory"));
  CHECK_NOTHROW(require_regular(folder / "none"));
  CHECK(contains(refusal([&] { static_cast<void>(open_regular(folder / "file" / "below")); }), "Not a directory"));
  CHECK_NOTHROW(require_regular(folder / "file" / "below"));
  fs::create_symlink("circle", folder / "circle");
  CHECK(contains(refusal([&] { static_cast<void>(open_regular(folder / "circle")); }), "symbolic links"));
}

TEST_CASE("open_regular: links are refused on request") {
  const TempFolder folder;
  put(folder / "file", "content");
  fs::create_symlink("file", folder / "link");
  CHECK(contains(refusal([&] { static_cast<void>(open_regular(folder / "link", Links::kRefused)); }),
                 "link: it is a symbolic link, and must be a regular file"));
  CHECK_NOTHROW(static_cast<void>(open_regular(folder / "file", Links::kRefused)));
}

}  // namespace regular_file_test
