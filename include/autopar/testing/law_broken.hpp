#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar::testing {

/// A policy broke a law of its concept. The message has the law, the input that shows it, and the policy's result.
class LawBroken : public Error {
 public:
  /// @param law    as the concept states it
  /// @param seed   of the input's generator
  /// @param input  what the policy was called with
  /// @param given  its result, or why the result is wrong
  LawBroken(std::string law, std::uint64_t seed, const std::string& input, const std::string& given)
      : Error("law broken: " + law + "\n  seed: " + std::to_string(seed) + "\n  input: " + input +
              "\n  the policy gave: " + given),
        law_(std::move(law)),
        seed_(seed) {}

  [[nodiscard]] const std::string& law() const { return law_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  std::string law_;
  std::uint64_t seed_;
};

}  // namespace autopar::testing
