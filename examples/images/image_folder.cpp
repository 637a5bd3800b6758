#include "image_folder.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <system_error>

namespace images {

namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_jpeg(const fs::path& path) {
  auto extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return extension == ".jpg" || extension == ".jpeg";
}

std::vector<std::string> folders_in(const fs::path& root) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(root, error);
  if (error) {
    throw std::runtime_error(root.string() + ": " + error.message() +
                             "; a folder of images has a folder for each class: " + (root / "CLASS/NAME.jpg").string());
  }
  for (const auto& entry : entries) {
    if (entry.is_directory() && !is_hidden(entry.path())) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Below the root, in an order of their own.
std::vector<std::string> images_of(const fs::path& root, const std::string& name) {
  std::vector<std::string> files;
  const auto options = fs::directory_options::follow_directory_symlink;
  for (const auto& entry : fs::recursive_directory_iterator(root / name, options)) {
    if (is_jpeg(entry.path()) && !is_hidden(entry.path()) && !entry.is_directory())
      files.push_back(entry.path().lexically_relative(root).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::uint64_t ImageFolder::fingerprint() const {
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a
  const auto add = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      for (const char letter : name + '\n') hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
    }
  };
  add(classes);
  add(files);
  return hash;
}

ImageFolder read_image_folder(const fs::path& root, const std::vector<std::string>& classes) {
  const auto folders = folders_in(root);
  ImageFolder made{root, classes.empty() ? folders : classes, {}, {}};
  for (const auto& name : folders) {
    const auto label = std::lower_bound(made.classes.begin(), made.classes.end(), name);
    if (label == made.classes.end() || *label != name) {
      throw std::runtime_error((root / name).string() + " is a class that the training does not have; it has " +
                               std::to_string(classes.size()) + ", from '" + classes.front() + "' to '" +
                               classes.back() + "'");
    }
    const auto files = images_of(root, name);
    if (files.empty() && classes.empty()) {
      throw std::runtime_error((root / name).string() +
                               " has no .jpg or .jpeg; remove the folder, or put the images of the class there");
    }
    made.files.insert(made.files.end(), files.begin(), files.end());
    made.labels.insert(made.labels.end(), files.size(), static_cast<std::int32_t>(label - made.classes.begin()));
  }
  if (made.files.empty()) {
    throw std::runtime_error(root.string() + " has no images: a folder of images has a folder for each class: " +
                             (root / "CLASS/NAME.jpg").string());
  }
  return made;
}

}  // namespace images
