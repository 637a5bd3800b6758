#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace images {

/// JPEG files in a folder for each class, in an order that depends on their names alone.
struct ImageFolder {
  std::filesystem::path root;
  std::vector<std::string> classes;  ///< names of folders, sorted; a label is a place in them
  std::vector<std::string> files;    ///< below `root`: "cat/1.jpg"
  std::vector<std::int32_t> labels;  ///< of each file

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(files.size()); }
  [[nodiscard]] std::filesystem::path path(std::int64_t index) const {
    return root / files.at(static_cast<std::size_t>(index));
  }
  /// The same for the same classes and files, wherever they lie.
  [[nodiscard]] std::uint64_t fingerprint() const;
};

/// Lists `root`/CLASS/**.jpg and .jpeg, in small or capital letters; other files, hidden ones among them, are passed
/// over.
/// @param classes  those of the training, for validation: labels are places in these, and some may have no images
/// @throws std::runtime_error naming a folder that is missing, a class that is unknown, and without `classes` one that
///         has no images
[[nodiscard]] ImageFolder read_image_folder(const std::filesystem::path& root,
                                            const std::vector<std::string>& classes = {});

}  // namespace images
