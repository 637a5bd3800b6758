#include <autopar/io/folder_lock.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <replaced.hpp>
#include <temp_folder.hpp>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

using namespace autopar;

namespace {

constexpr LockKind kLockKinds[] = {LockKind::kAutomatic, LockKind::kLease};

std::string lock_refusal(const std::filesystem::path& folder, LockKind kind = LockKind::kAutomatic) {
  return refusal([&] { const FolderLock lock(folder, kind); });
}

std::string own_process() { return "process " + std::to_string(::getpid()) + " on host "; }

/// A process that holds the lock of a folder until it is killed.
class HoldingProcess {
 public:
  HoldingProcess(const std::filesystem::path& folder, LockKind kind) {
    int ends[2] = {};
    REQUIRE(::pipe(ends) == 0);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) {
      try {
        const FolderLock lock(folder, kind);
        if (::write(ends[1], "x", 1) == 1) ::pause();
      } catch (...) {
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    char said = 0;
    CHECK(::read(ends[0], &said, 1) == 1);
    ::close(ends[0]);
  }
  HoldingProcess(const HoldingProcess&) = delete;
  HoldingProcess& operator=(const HoldingProcess&) = delete;
  ~HoldingProcess() { kill(); }

  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }
  [[nodiscard]] std::string described() const { return "process " + std::to_string(id_) + " on host "; }

 private:
  ::pid_t id_ = -1;
};

/// What a lease of this process says.
std::string lease_text(const TempFolder& folder) {
  const FolderLock lock(folder / "of-the-text", LockKind::kLease);
  return read_text_file(folder / "of-the-text/.autopar-lock");
}

/// Runs `work(process)` in so many processes at once. @return the sum of its results
template <class Work>
int sum_over_processes(int processes, const Work& work) {
  std::vector<::pid_t> ids;
  for (int i = 0; i < processes; ++i) {
    ids.push_back(::fork());
    REQUIRE(ids.back() >= 0);
    if (ids.back() == 0) ::_exit(work(i));
  }
  int sum = 0;
  for (const auto id : ids) {
    int status = 0;
    ::waitpid(id, &status, 0);
    CHECK(WIFEXITED(status));
    sum += WEXITSTATUS(status);
  }
  return sum;
}

/// Memory that forks share.
struct SharedCounts {
  std::atomic<int> holders{0}, most{0}, tried{0};
};
class SharedMemory {
 public:
  SharedMemory() {
    void* memory = ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    counts_ = new (memory) SharedCounts;
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { ::munmap(counts_, sizeof(SharedCounts)); }
  SharedCounts* operator->() const { return counts_; }

 private:
  SharedCounts* counts_;
};

}  // namespace

TEST_CASE("FolderLock: one a folder, and no file afterwards") {
  static_assert(!std::is_copy_constructible_v<FolderLock>);
  for (const auto kind : kLockKinds) {
    const TempFolder parent;
    const auto folder = parent / "new/folder";
    {
      FolderLock lock(folder, kind);
      CHECK(std::filesystem::exists(folder / ".autopar-lock"));
      for (const auto other : kLockKinds) {
        const auto message = lock_refusal(folder, other);
        CAPTURE(message);
        CHECK(message.starts_with(folder.string() + ": another job writes to this folder: " + own_process()));
        CHECK(contains(message, ", since 20"));
        CHECK(contains(message, "wait until it ends"));
      }
      CHECK(lock_refusal(parent / "other", kind).empty());
      FolderLock moved(std::move(lock));
      CHECK_FALSE(lock_refusal(folder, kind).empty());
      FolderLock another(parent / "third", kind);
      another = std::move(moved);
      CHECK(lock_refusal(parent / "third", kind).empty());
      CHECK_FALSE(lock_refusal(folder, kind).empty());
    }
    CHECK_FALSE(std::filesystem::exists(folder / ".autopar-lock"));
    CHECK(lock_refusal(folder, kind).empty());
  }
}

TEST_CASE("FolderLock: a killed holder's lock is free") {
  for (const auto kind : kLockKinds) {
    const TempFolder folder;
    HoldingProcess holder(folder / "", kind);
    for (const auto other : kLockKinds) CHECK(contains(lock_refusal(folder / "", other), holder.described()));
    const auto how = "if that process is gone, remove " + (folder / ".autopar-lock").string();
    CHECK(contains(lock_refusal(folder / "", LockKind::kLease), how));
    holder.kill();
    CHECK(std::filesystem::exists(folder / ".autopar-lock"));
    for (const auto other : kLockKinds) CHECK(lock_refusal(folder / "", other).empty());
    CHECK_FALSE(std::filesystem::exists(folder / ".autopar-lock.takeover"));
  }
}

TEST_CASE("FolderLock: a fork does not release its parent's lock") {
  for (const auto kind : kLockKinds) {
    const TempFolder folder;
    std::optional<FolderLock> lock(std::in_place, folder / "", kind);
    CHECK(sum_over_processes(1, [&](int) {
            lock.reset();
            return 1;
          }) == 1);
    CHECK(contains(lock_refusal(folder / "", kind), own_process()));
  }
}

TEST_CASE("FolderLock: a lease is taken over only from a process that is certainly gone") {
  const TempFolder folder;
  const auto path = folder / ".autopar-lock";
  const auto text = lease_text(folder);
  const auto started = text.substr(text.find("\"started\":"), text.find(",\"since\"") - text.find("\"started\":"));
  const auto process = "\"process\":" + std::to_string(::getpid());
  const auto refused = [&](const std::string& content, LockKind kind = LockKind::kLease) {
    write_text_file(path, content);
    const auto message = lock_refusal(folder / "", kind);
    if (!message.empty()) CHECK(read_text_file(path) == content);
    std::filesystem::remove(path);
    return message;
  };
  CHECK(contains(refused(text), own_process()));
  CHECK(refused(replaced(text, started, "\"started\":1")).empty());  // another process has its id now
  const auto elsewhere = replaced(replaced(text, "\"host\":\"", "\"host\":\"elsewhere-"), process, "\"process\":77");
  for (const auto kind : kLockKinds) {
    CHECK(contains(refused(elsewhere, kind), "process 77 on host elsewhere-"));
    CHECK(contains(refused(elsewhere, kind), "if that process is gone, remove " + path.string()));
    CHECK_FALSE(refused(replaced(elsewhere, started, "\"started\":1"), kind).empty());
    // A container of this host, or this host before it was booted: the same process ids mean others.
    const auto system = replaced(replaced(text, "\"system\":\"", "\"system\":\"x"), process, "\"process\":2147483647");
    CHECK(contains(refused(system, kind), "process 2147483647"));
    CHECK(refused(replaced(text, process, "\"process\":2147483647"), kind).empty());  // more than ids there are
  }
  // With locks of the system, what a killed holder on another host left is no lease.
  CHECK(refused(replaced(elsewhere, "\"lease\":true", "\"lease\":false"), LockKind::kAutomatic).empty());
  write_text_file(folder / ".autopar-lock.takeover", "");
  const auto message = refused(replaced(text, started, "\"started\":1"));
  CHECK(contains(message, "taking over this folder; if no job starts there, remove " + path.string() + ".takeover"));
}

TEST_CASE("FolderLock: hostile content of its file") {
  const TempFolder folder;
  const auto path = folder / ".autopar-lock";
  const auto text = lease_text(folder);
  std::vector<std::string> hostile{"", "x", "[]", "{}", std::string(100'000, '['), std::string(100, '\0'), "\xff"};
  for (const char* process : {"0", "-1", "1.5", "2147483648", "123456789012345678901234567890", "\"1\"", "null"}) {
    const auto own = "\"process\":" + std::to_string(::getpid());
    hostile.push_back(replaced(text, own, std::string("\"process\":") + process));
  }
  hostile.push_back(replaced(text, "\"since\"", "\"extra\":1,\"since\""));
  hostile.push_back(replaced(text, "autopar folder lock", "autopar plan"));
  for (std::size_t length = 0; length + 2 < text.size(); ++length) hostile.push_back(text.substr(0, length));
  for (const auto& content : hostile) {
    std::ofstream(path, std::ios::binary) << content;
    const auto message = lock_refusal(folder / "", LockKind::kLease);
    CAPTURE(content.substr(0, 300), message);
    REQUIRE(contains(message, "does not say by whom; if no job writes there, remove that file"));
    REQUIRE(lock_refusal(folder / "").empty());  // with locks of the system, content is for messages
  }
  // Control characters do not reach a terminal.
  std::ofstream(path, std::ios::binary) << replaced(text, "\"host\":\"", "\"host\":\"\\u001b[2J");
  CHECK_FALSE(contains(lock_refusal(folder / "", LockKind::kLease), "\x1b"));
  std::filesystem::remove(path);
}

TEST_CASE("FolderLock: what is no regular file is refused without waiting") {
  const TempFolder folder;
  const auto path = folder / ".autopar-lock";
  for (const auto kind : kLockKinds) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(contains(lock_refusal(folder / "", kind), "is not a regular file"));
    std::filesystem::remove(path);
    write_text_file(folder / "precious", "text");
    std::filesystem::create_symlink(folder / "precious", path);
    CHECK(contains(lock_refusal(folder / "", kind), "cannot lock the folder: .autopar-lock: "));
    CHECK(read_text_file(folder / "precious") == "text");
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(contains(lock_refusal(folder / "", kind), "cannot lock the folder: .autopar-lock: "));
    std::filesystem::remove(path);
    write_text_file(folder / "file", "text");
    CHECK(contains(lock_refusal(folder / "file", kind), "cannot make the folder"));
  }
}

TEST_CASE("FolderLock: removes only its own file") {
  for (const auto kind : kLockKinds) {
    const TempFolder folder;
    {
      const FolderLock lock(folder / "", kind);
      std::filesystem::remove(folder / ".autopar-lock");
      write_text_file(folder / ".autopar-lock", "of another");
    }
    CHECK(read_text_file(folder / ".autopar-lock") == "of another");
  }
}

TEST_CASE("FolderLock: jobs that start and end at once never hold it together") {
  constexpr int kProcesses = 8, kRounds = 1000;
  for (const auto kind : kLockKinds) {
    const TempFolder folder;
    const SharedMemory shared;
    const int taken = sum_over_processes(kProcesses, [&](int) {
      int count = 0;
      for (int round = 0; round < kRounds; ++round) {
        try {
          const FolderLock lock(folder / "", kind);
          const int holders = ++shared->holders;
          if (holders > shared->most) shared->most = holders;
          ++count;
          ::sched_yield();  // so that others meet the lock
          --shared->holders;
        } catch (const CheckpointError&) {
        }
      }
      return count > 0 ? 1 : 0;
    });
    CHECK(shared->most == 1);
    CHECK(taken >= 1);
    CHECK_FALSE(std::filesystem::exists(folder / ".autopar-lock"));
  }
}

TEST_CASE("FolderLock: one of many takes over what a killed job left") {
  constexpr int kProcesses = 4;
  for (const auto kind : kLockKinds) {
    for (int round = 0; round < 50; ++round) {
      const TempFolder folder;
      HoldingProcess(folder / "", kind).kill();
      const SharedMemory shared;
      const int taken = sum_over_processes(kProcesses, [&](int) {
        std::optional<FolderLock> lock;
        try {
          lock.emplace(folder / "", kind);
        } catch (const CheckpointError&) {
        }
        ++shared->tried;
        while (shared->tried < kProcesses) ::usleep(100);
        return lock ? 1 : 0;
      });
      REQUIRE(taken == 1);
    }
  }
}
