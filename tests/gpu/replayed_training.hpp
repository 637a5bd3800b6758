#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

/// What a training leaves behind, to compare steps that were replayed with the same steps launched kernel by kernel.
struct ReplayedTraining {
  std::vector<std::pair<std::string, torch::Tensor>> state;  ///< of several ranks: whole, on rank 0
  std::vector<double> losses;
  std::int64_t replayed = 0;
};

/// Bit for bit, but for how many steps were replayed.
inline void check_same(const ReplayedTraining& a, const ReplayedTraining& b) {
  CHECK(a.losses == b.losses);
  REQUIRE(a.state.size() == b.state.size());
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    INFO(a.state[i].first);
    CHECK(torch::equal(a.state[i].second, b.state[i].second));
  }
}
