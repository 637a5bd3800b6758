#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "torch/ranks/ranks.hpp"

namespace autopar::test {

/// A rank without others and without a World: what it gathers is its own, and its loggers are silent.
class OneRank final : public ranks::Ranks {
 public:
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] Rank rank() const override { return Rank(0); }
  [[nodiscard]] std::vector<Blob> all_gather(const Blob& mine, std::string_view) override { return {mine}; }
  [[nodiscard]] Blob broadcast(Blob mine, Rank, std::string_view) override { return mine; }
  [[nodiscard]] Logger logger(LogModule) const override { return {}; }
};

}  // namespace autopar::test
