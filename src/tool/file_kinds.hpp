#pragma once

#include <string>
#include <vector>

namespace autopar::tool {

/// An argument of a command that is a file.
struct FileArgument {
  std::string name;  ///< "PROFILE"
  std::string kind;  ///< what it is to be: plan | profile | cluster | costs | …
  std::string path;
};

/// What a file is by its first lines: "plan", "profile", "cluster", …; empty where they do not tell, it is not there,
/// or it is no regular file, which is read once only.
[[nodiscard]] std::string kind_of_file(const std::string& path);

/// Files that stand in one another's place are named before one of them is refused for its first letter.
/// @param usage  "autopar plan PROFILE CLUSTER"
/// @throws InvalidArgument naming the first file that is known to be of another kind, and the order
void require_kinds(const std::vector<FileArgument>& arguments, const std::string& usage);

}  // namespace autopar::tool
