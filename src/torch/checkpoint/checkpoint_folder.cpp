#include "torch/checkpoint/checkpoint_folder.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <regex>
#include <set>
#include <system_error>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/regular_file.hpp>
#include <autopar/io/safetensors.hpp>

namespace autopar::checkpoint {

namespace {

constexpr const char* kExtension = ".safetensors";
constexpr Bytes kMostIndex(std::int64_t{1} << 30);

std::string generation_ending(std::int64_t generation) { return "-g" + std::to_string(generation) + kExtension; }

/// Of a file's name, finished or not: "model-0003-g7.safetensors.partial-a1b2c3". None for files of others.
std::optional<std::int64_t> generation_of(const std::string& name) {
  static const std::regex kOurs(R"((?:model|optimizer)(?:-\d{4,9})?-g(\d{1,18})\.safetensors(?:\.partial-.{6})?)");
  std::smatch parts;
  if (!std::regex_match(name, parts, kOurs)) return std::nullopt;
  return std::stoll(parts[1]);
}

/// Empty if the folder cannot be read.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    files.push_back(at->path());
  }
  return files;
}

/// Gives data files of a single file their plain names. One that stays aside is found there.
void settle(const std::filesystem::path& folder, const CheckpointIndex& index) {
  for (const auto& file : index.files) {
    const auto aside = path_aside(folder, file.name, index.generation), at = folder / file.name;
    std::error_code error;
    if (aside != at && std::filesystem::exists(aside, error)) std::filesystem::rename(aside, at, error);
  }
}

void remove_all_but(const std::filesystem::path& folder, const CheckpointIndex& index) {
  std::set<std::filesystem::path> kept;
  for (const auto& file : index.files) kept.insert(path_of(folder, file.name, index.generation));
  for (const auto& path : files_in(folder)) {
    std::error_code error;
    if (generation_of(path.filename().string()) && !kept.contains(path)) std::filesystem::remove(path, error);
  }
}

bool has_our_checksums(const std::filesystem::path& file) {
  try {
    return SafetensorsReader(file).has_checksums();
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

std::string data_file(CheckpointFormat format, Section section, Rank writer, std::int64_t generation) {
  const std::string stem = section == Section::kModel ? "model" : "optimizer";
  if (format == CheckpointFormat::kSingleFile) return stem + kExtension;
  std::array<char, 16> rank{};
  std::snprintf(rank.data(), rank.size(), "-%04d", writer.value());
  return stem + rank.data() + generation_ending(generation);
}

std::filesystem::path path_aside(const std::filesystem::path& folder, const std::string& file,
                                 std::int64_t generation) {
  if (generation_of(file)) return folder / file;
  return folder / (std::filesystem::path(file).stem().string() + generation_ending(generation));
}

std::filesystem::path path_of(const std::filesystem::path& folder, const std::string& file, std::int64_t generation) {
  const auto aside = path_aside(folder, file, generation);
  std::error_code error;
  return std::filesystem::exists(aside, error) ? aside : folder / file;
}

std::optional<CheckpointIndex> read_index(const std::filesystem::path& folder) {
  const auto path = folder / kIndexFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    return parse_checkpoint_index(read_text_file(path, kMostIndex), path.string());
  } catch (const ConfigError& reason) {
    throw CheckpointError(reason.what());
  }
}

std::int64_t next_generation(const std::filesystem::path& folder, const std::optional<CheckpointIndex>& present) {
  std::int64_t last = present ? present->generation : 0;
  for (const auto& path : files_in(folder)) last = std::max(last, generation_of(path.filename().string()).value_or(0));
  return last + 1;
}

void require_replaceable(const std::filesystem::path& folder, const std::optional<CheckpointIndex>& present,
                         const CheckpointIndex& index) {
  for (const auto& file : index.files) {
    const auto path = folder / file.name;
    require_regular(path);
    std::error_code error;
    const bool is_indexed =
        present && std::ranges::find(present->files, file.name, &CheckpointFile::name) != present->files.end();
    if (is_indexed || !std::filesystem::exists(path, error) || has_our_checksums(path)) continue;
    throw CheckpointError(path.string() +
                          " was not written by autopar, so it is not replaced; name another folder, move the file, or "
                          "pass {.format = ap::sharded()}");
  }
}

void publish(const std::filesystem::path& folder, const CheckpointIndex& index) {
  std::vector<std::string> before;
  try {
    if (const auto old = read_index(folder)) {
      for (const auto& file : old->files) before.push_back(file.name);
    }
  } catch (const CheckpointError&) {
  }
  try {
    write_text_file(folder / kIndexFile, to_json(index));
  } catch (const ConfigError& reason) {
    throw CheckpointError(reason.what());
  }
  settle(folder, index);
  remove_all_but(folder, index);
  for (const auto& file : before) {
    std::error_code error;
    if (std::ranges::find(index.files, file, &CheckpointFile::name) == index.files.end())
      std::filesystem::remove(folder / file, error);
  }
}

bool has_orphans(const std::filesystem::path& folder) {
  const auto index = read_index(folder);
  if (!index) return false;
  std::set<std::filesystem::path> named;
  for (const auto& file : index->files) named.insert(folder / file.name);
  return std::ranges::any_of(files_in(folder), [&](const auto& path) {
    const auto name = path.filename().string();
    const bool is_ours = generation_of(name) || name == kSeenFile || name.find(".partial-") != std::string::npos;
    return is_ours && !named.contains(path);
  });
}

std::optional<CheckpointIndex> remove_orphans(const std::filesystem::path& folder) {
  for (const auto* file : {kIndexFile, kModelFile, kSeenFile}) static_cast<void>(remove_partial_files(folder / file));
  std::error_code error;
  std::filesystem::remove(folder / kSeenFile, error);
  auto index = read_index(folder);
  if (!index) return std::nullopt;
  settle(folder, *index);
  remove_all_but(folder, *index);
  return index;
}

}  // namespace autopar::checkpoint
