#pragma once

#include <catch_shim.hpp>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <autopar/core/error.hpp>

namespace autopar::test {

/// Damage as disks, editors and enemies do it.
class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  [[nodiscard]] std::string on(std::string text) {
    for (unsigned times = 1 + below(3); times > 0; --times) {
      switch (below(7)) {
        case 0:
          text.resize(below(text.size() + 1));
          break;
        case 1:
          flip(text);
          break;
        case 2:
          number(text);
          break;
        case 3:
          text.insert(below(text.size() + 1), std::string(1 + below(5000), "[{(\"="[below(5)]));
          break;
        case 4:
          copy(text);
          break;
        case 5:
          word(text);
          break;
        default:
          text.insert(below(text.size() + 1), "[" + list(1 + below(2000)) + "]");
          break;
      }
      if (text.empty()) break;
    }
    return text;
  }
  [[nodiscard]] std::size_t below(std::size_t n) { return random_() % std::max<std::size_t>(n, 1); }

 private:
  void flip(std::string& text) {
    for (std::size_t i = 0; i < 1 + below(8) && !text.empty(); ++i)
      text[below(text.size())] ^= static_cast<char>(1 << below(8));
  }
  /// Another number in the place of one.
  void number(std::string& text) {
    static const std::vector<std::string> kNumbers{"0",
                                                   "-1",
                                                   "1e308",
                                                   "-1e308",
                                                   "1e-320",
                                                   "9223372036854775807",
                                                   "9223372036854775808",
                                                   "18446744073709551616",
                                                   "2147483647",
                                                   "2147483648",
                                                   "-2147483649",
                                                   "4294967296",
                                                   "1e15",
                                                   "1e30",
                                                   "nan",
                                                   "inf",
                                                   "null",
                                                   "true",
                                                   "\"7\"",
                                                   "0.5",
                                                   "16777216",
                                                   "1000000",
                                                   "1e9999",
                                                   "65536",
                                                   "-0.0",
                                                   "00",
                                                   "0x10"};
    const auto start = text.find_first_of("0123456789", below(text.size()));
    if (start == std::string::npos) return;
    const auto end = text.find_first_not_of("0123456789.e+-", start);
    text.replace(start, std::min(end, text.size()) - start, kNumbers[below(kNumbers.size())]);
  }
  void copy(std::string& text) {
    const auto from = below(text.size()), length = below(std::min<std::size_t>(400, text.size() - from));
    text.insert(below(text.size()), text.substr(from, length));
  }
  void word(std::string& text) {
    const auto start = text.find('"', below(text.size()));
    if (start == std::string::npos) return;
    const auto end = text.find('"', start + 1);
    if (end != std::string::npos) text.replace(start + 1, end - start - 1, std::string(below(4000), 'x'));
  }
  [[nodiscard]] static std::string list(std::size_t count) {
    std::string out = "1";
    for (std::size_t i = 1; i < count; ++i) out += ",1";
    return out;
  }

  std::mt19937 random_;
};

/// `parse` either takes a damaged text or refuses it with an ap::Error; anything else ends the test.
template <class Parse>
void fuzz(const std::string& good, int rounds, unsigned seed, const Parse& parse) {
  Damage damage(seed);
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string text = damage.on(good);
    try {
      parse(text);
    } catch (const Error& error) {
      ++refused;
      REQUIRE(std::string(error.what()).size() < 100'000);
    }
  }
  CHECK(refused > rounds / 2);
}

/// Megabytes that nest deeper than any reader follows.
inline std::vector<std::string> deep_texts() {
  const std::string deep(1 << 20, '['), braces(1 << 20, '{');
  return {deep, braces, "{\"version\":" + deep, "stages = " + deep, "a" + std::string(1 << 20, '.')};
}

/// The most memory that this process has had.
inline long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}
inline constexpr long kMostKib = 600 * 1024;  ///< that readers may take for texts of such a length

}  // namespace autopar::test
