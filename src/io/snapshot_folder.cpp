#include <autopar/io/snapshot_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/regular_file.hpp>

#include "lock_holder.hpp"

namespace autopar {

namespace fs = std::filesystem;

namespace {

constexpr const char* kOwnerFile = "supervisor";  ///< "PROCESS START SYSTEM"

bool is_own_folder(const fs::path& path, mode_t forbidden) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & forbidden) == 0;
}

}  // namespace

bool is_private_folder(const fs::path& path) { return is_own_folder(path, S_IWGRP | S_IWOTH); }

bool make_private_folder(const fs::path& path) {
  constexpr mode_t kOwnerOnly = 0700;
  if (::mkdir(path.c_str(), kOwnerOnly) != 0 && errno != EEXIST) return false;
  return is_private_folder(path);
}

bool own_snapshot_folder(const fs::path& folder) {
  const auto path = folder / kOwnerFile;
  ::unlink(path.c_str());
  constexpr mode_t kOwnerReads = 0600;
  const RegularFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerReads));
  const auto self = detail::this_process(/*is_lease=*/false);
  const auto text = std::to_string(self.process) + ' ' + std::to_string(self.started) + ' ' + self.system + '\n';
  return ::write(file.descriptor(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

SnapshotOwner owner_of_snapshots(const fs::path& folder) {
  constexpr std::size_t kMostText = 512;
  std::string text(kMostText, '\0');
  try {
    const auto file = open_regular(folder / kOwnerFile, Links::kRefused);
    const auto got = ::pread(file.descriptor(), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  } catch (const Error&) {
    return SnapshotOwner::kNone;
  }
  std::istringstream values(text);
  auto owner = detail::this_process(/*is_lease=*/false);  // of this host, as is whoever sees the folder
  const bool is_whole = values >> owner.process >> owner.started && owner.process > 0 && owner.started > 0 &&
                        std::getline(values >> std::ws, owner.system);
  if (!is_whole) return SnapshotOwner::kNone;
  return detail::is_gone(owner) ? SnapshotOwner::kGone : SnapshotOwner::kThere;
}

int remove_stale_snapshots(const fs::path& path) {
  const auto name = path.filename().string();
  const auto prefix = name.substr(0, name.find('-', name.find('-') + 1) + 1);  // "autopar-UID-"
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    if (!is_own_folder(entry.path(), 0) || owner_of_snapshots(entry.path()) != SnapshotOwner::kGone) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
    if (!ignored) ++removed;
  }
  return removed;
}

}  // namespace autopar
