#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace kernels_test {

/// A format of 8 bits: a sign, an exponent and `mantissa` bits.
struct Format {
  std::string name;
  int mantissa, bias;
  unsigned largest;  ///< the code of its largest number
};
inline const Format kE4M3{"e4m3", 3, 7, 0x7e}, kE5M2{"e5m2", 2, 15, 0x7b};

inline double number_of_code(const Format& format, unsigned code) {
  const int exponent = static_cast<int>(code >> format.mantissa) & ((1 << (7 - format.mantissa)) - 1);
  const int fraction = static_cast<int>(code) & ((1 << format.mantissa) - 1);
  const double size = exponent == 0
                          ? std::ldexp(fraction, 1 - format.bias - format.mantissa)
                          : std::ldexp(fraction + (1 << format.mantissa), exponent - format.bias - format.mantissa);
  return (code & 0x80) != 0 ? -size : size;
}

/// The code of the nearest number, of two as near the even one.
inline unsigned nearest_code(const Format& format, double number) {
  if (std::isnan(number)) return 0x7f;
  unsigned best = 0;
  double least = std::numeric_limits<double>::infinity();
  const double size = std::min(std::abs(number), number_of_code(format, format.largest));
  for (unsigned code = 0; code <= format.largest; ++code) {
    const double distance = std::abs(number_of_code(format, code) - size);
    if (distance > least || (distance == least && code % 2 == 1)) continue;
    best = code;
    least = distance;
  }
  return std::signbit(number) ? best | 0x80 : best;
}

}  // namespace kernels_test
