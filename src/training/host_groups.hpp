#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::training {

/// A rank's files, and the rank of another host that keeps copies of them.
struct CopyPath {
  Rank from, to;
  int phase = 0;  ///< within one, no rank both sends and receives
};

/// Which ranks share a host: hosts are numbered by their lowest rank, from 0.
class HostGroups {
 public:
  HostGroups() = default;
  /// @param names  by rank, equal on one host
  explicit HostGroups(const std::vector<std::string>& names) {
    std::vector<std::string> known;
    for (std::size_t r = 0; r < names.size(); ++r) {
      const auto host = static_cast<std::size_t>(std::find(known.begin(), known.end(), names[r]) - known.begin());
      if (host == known.size()) {
        known.push_back(names[r]);
        ranks_.emplace_back();
      }
      ranks_[host].push_back(Rank::of(r));
      host_of_.push_back(host);
    }
  }

  [[nodiscard]] std::size_t count() const { return ranks_.size(); }
  [[nodiscard]] std::size_t host_of(Rank rank) const { return host_of_[rank.index()]; }
  [[nodiscard]] const std::vector<Rank>& ranks(std::size_t host) const { return ranks_[host]; }
  /// The rank that looks after its host's folder.
  [[nodiscard]] Rank leader(std::size_t host) const { return ranks_[host].front(); }

  /// Each host's files go to the next one, in a ring. None with one host.
  [[nodiscard]] std::vector<CopyPath> copies() const {
    std::vector<CopyPath> paths;
    for (std::size_t h = 0; count() > 1 && h < count(); ++h) {
      const auto& next = ranks_[(h + 1) % count()];
      const int phase = count() % 2 == 1 && h + 1 == count() ? 2 : static_cast<int>(h % 2);
      for (std::size_t i = 0; i < ranks_[h].size(); ++i) paths.push_back({ranks_[h][i], next[i % next.size()], phase});
    }
    std::ranges::stable_sort(paths, {}, &CopyPath::phase);
    return paths;
  }

 private:
  std::vector<std::vector<Rank>> ranks_;
  std::vector<std::size_t> host_of_;
};

/// What all ranks say, by rank. Collective.
[[nodiscard]] inline std::vector<std::string> told_by_all(World& world, const std::string& mine, const char* action) {
  std::vector<std::string> texts;
  for (const auto& told : world.all_gather(std::as_bytes(std::span(mine)), action))
    texts.emplace_back(reinterpret_cast<const char*>(told.data()), told.size());
  return texts;
}

}  // namespace autopar::training
