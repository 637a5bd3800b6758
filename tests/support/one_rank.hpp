#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/ranks/ranks.hpp"

namespace autopar::test {

/// A rank without others and without a World: what it gathers is its own, and its loggers are silent.
class OneRank : public ranks::Ranks {
 public:
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] Rank rank() const override { return Rank(0); }
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view) override {
    return {Blob(mine.begin(), mine.end())};
  }
  [[nodiscard]] Blob broadcast(Blob mine, Rank, std::string_view) override { return mine; }
  void all_reduce_sum(std::span<double>, std::string_view) override {}
  void send(std::span<const std::byte>, Rank, std::string_view) override {}
  void receive(std::span<std::byte>, Rank, std::string_view) override {}
  void fail(std::string_view action, std::string_view message) noexcept override {
    failures.push_back(std::string(action) + ": " + std::string(message));
  }
  [[nodiscard]] OneCaller::Inside enter(std::string_view action) override { return caller_.enter(action); }
  [[nodiscard]] Logger logger(LogModule) const override { return {}; }

  std::vector<std::string> failures;  ///< that were told to the others

 private:
  OneCaller caller_;
};

}  // namespace autopar::test
