#pragma once

#include <compare>
#include <cstdint>

namespace autopar {

/// A number with a unit: only equal units add and compare. `value()` returns the number without its unit.
template <class Unit, class Rep>
class Quantity {
 public:
  using rep = Rep;

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep value) : value_(value) {}

  [[nodiscard]] constexpr Rep value() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) {
    value_ += other.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value_ -= other.value_;
    return *this;
  }
  constexpr Quantity& operator*=(Rep factor) {
    value_ *= factor;
    return *this;
  }

  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, Rep factor) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator*(Rep factor, Quantity a) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator/(Quantity a, Rep divisor) { return Quantity(a.value_ / divisor); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value_) / static_cast<double>(b.value_);
  }
  friend constexpr auto operator<=>(Quantity, Quantity) = default;

 private:
  Rep value_{};
};

using Bytes = Quantity<struct BytesUnit, std::int64_t>;
using Seconds = Quantity<struct SecondsUnit, double>;
using Flops = Quantity<struct FlopsUnit, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondUnit, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondUnit, double>;

[[nodiscard]] constexpr Seconds operator/(Bytes bytes, BytesPerSecond rate) {
  return Seconds(static_cast<double>(bytes.value()) / rate.value());
}
[[nodiscard]] constexpr Seconds operator/(Flops flops, FlopsPerSecond rate) {
  return Seconds(flops.value() / rate.value());
}

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n)); }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n) << 10); }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n) << 20); }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n) << 30); }
constexpr Seconds operator""_s(long double n) { return Seconds(static_cast<double>(n)); }
constexpr Seconds operator""_ms(long double n) { return Seconds(static_cast<double>(n) * 1e-3); }
constexpr Seconds operator""_us(long double n) { return Seconds(static_cast<double>(n) * 1e-6); }
}  // namespace literals

/// A quantity that is linear in the number of samples n of a micro-batch: per_sample * n + fixed.
struct Affine {
  double per_sample = 0;
  double fixed = 0;

  [[nodiscard]] constexpr double at(double samples) const { return per_sample * samples + fixed; }

  constexpr Affine& operator+=(Affine other) {
    per_sample += other.per_sample;
    fixed += other.fixed;
    return *this;
  }
  constexpr Affine& operator-=(Affine other) {
    per_sample -= other.per_sample;
    fixed -= other.fixed;
    return *this;
  }
  friend constexpr Affine operator+(Affine a, Affine b) { return {a.per_sample + b.per_sample, a.fixed + b.fixed}; }
  friend constexpr Affine operator*(Affine a, double k) { return {a.per_sample * k, a.fixed * k}; }
  friend constexpr bool operator==(Affine, Affine) = default;
};

}  // namespace autopar
