#pragma once

#include <functional>
#include <string>
#include <vector>

#include <autopar/core/units.hpp>

namespace autopar {

/// A sharded checkpoint of which each rank has written its part, perhaps where no other rank sees it. It is complete in
/// a folder that has the files of all ranks, and `index` as its index.json.
struct SavedParts {
  std::string index{};                            ///< empty: the save was refused
  std::vector<std::vector<std::string>> files{};  ///< their names in the folder, by rank
};

/// Whether to write so many bytes of this rank. It may communicate; its answer is the same on all ranks.
using AcceptParts = std::function<bool(Bytes mine)>;

}  // namespace autopar
