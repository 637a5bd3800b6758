#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// Peak bytes of the rank that needs most; stages on one rank add up.
/// @param meshes  by stage
/// @param bytes_of  peak bytes of a stage, by its position in `meshes`
template <class BytesOf>
[[nodiscard]] Bytes peak_of_ranks(const std::vector<Mesh>& meshes, const BytesOf& bytes_of) {
  std::vector<Bytes> of_rank;
  for (std::size_t s = 0; s < meshes.size(); ++s) {
    for (const Rank rank : meshes[s].ranks()) {
      if (rank.index() >= of_rank.size()) of_rank.resize(rank.index() + 1);
      of_rank[rank.index()] += bytes_of(s);
    }
  }
  return of_rank.empty() ? Bytes{} : *std::max_element(of_rank.begin(), of_rank.end());
}

}  // namespace autopar
