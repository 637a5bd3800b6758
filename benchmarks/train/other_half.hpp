#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace train {

/// This program again, in a process of its own that trains the module unwrapped: so neither half finds the other's
/// memory, loaded kernels or caches. It steps when told to (`serve_steps`).
class OtherHalf {
 public:
  /// Starts the program with `arguments` and "--mode libtorch --on-demand". @throws std::runtime_error if it does not
  /// start
  explicit OtherHalf(std::vector<std::string> arguments);
  ~OtherHalf();
  OtherHalf(const OtherHalf&) = delete;
  OtherHalf& operator=(const OtherHalf&) = delete;

  void wait_until_ready();
  /// One step. @return its seconds, as the other process measured them
  double step();
  /// Ends it. @return its line
  nlohmann::json finish();

 private:
  std::string line();

  int process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace train
