#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>

#include "cuda_on_cpu/block.hpp"
#include "cuda_on_cpu/device_code.hpp"
#include "cuda_on_cpu/guarded_memory.hpp"
#include "cuda_on_cpu/kernel_table.hpp"
#include "kernels/kernel_source.hpp"

/// Runs kernels of src/kernels on the CPU, as C++ compiles their text:
///
///     const auto sums = cuda_on_cpu::in_every_order(cuda_on_cpu::batch_norm, [&](CudaOnCpu& gpu) {
///       const float* x = gpu.reads("x", numbers);
///       float* partial = gpu.room<float>("partial", blocks * 2 * channels);
///       gpu.launch("batch_norm_sums_f32", {blocks_x, blocks_y, threads_x, threads_y}, x, partial, rows, channels);
///       return gpu.numbers(partial);
///     });
///
/// What a GPU's own tests see too: values, and what a kernel leaves behind. What only this sees: every access outside
/// of memory or of an array, misaligned packs, barriers that some threads do not come to, shared memory that is read
/// before it is written, and results that depend on the order of blocks or threads.
namespace cuda_on_cpu {

// ---------------------------------------------------------------- types of data

struct Bf16 {
  static constexpr const char* kName = "bf16";
  static constexpr double kEpsilon = 0x1p-8;  ///< largest error of rounding, of numbers about 1
  std::uint16_t bits;
};
struct F16 {
  static constexpr const char* kName = "f16";
  static constexpr double kEpsilon = 0x1p-11;
  std::uint16_t bits;
};
template <class T>
constexpr const char* kName = T::kName;
template <>
inline constexpr const char* kName<float> = "f32";
template <>
inline constexpr const char* kName<double> = "f64";
template <class T>
constexpr double kEpsilon = T::kEpsilon;
template <>
inline constexpr double kEpsilon<float> = 0x1p-24;
template <>
inline constexpr double kEpsilon<double> = 0x1p-53;

template <class T>
double number_of(T x) {
  return static_cast<double>(x);
}
inline double number_of(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline double number_of(F16 x) { return float_of_half(x.bits); }

template <class T>
T rounded(double number) {
  const auto single = static_cast<float>(number);
  if constexpr (std::same_as<T, Bf16>) {
    const auto bits = std::bit_cast<std::uint32_t>(single);
    return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  } else if constexpr (std::same_as<T, F16>) {
    return {half_of_float(single)};
  } else {
    return static_cast<T>(number);
  }
}

// ---------------------------------------------------------------- launches

/// Memory and launches of one run of a test.
class CudaOnCpu {
 public:
  CudaOnCpu(Source& source, Order order) : source_(source), order_(order) {}

  /// Memory that kernels only read: these numbers, rounded.
  template <class T>
  const T* reads(const std::string& name, const std::vector<double>& numbers) {
    const T* const made = holds<T>(name, numbers);
    memory_.back()->make_read_only();
    return made;
  }
  /// Memory of these numbers, rounded.
  template <class T>
  T* holds(const std::string& name, const std::vector<double>& numbers) {
    T* const made = room<T>(name, numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) made[i] = rounded<T>(numbers[i]);
    return made;
  }
  /// Memory that a kernel fills; NaN.
  template <class T>
  T* room(const std::string& name, std::size_t elements) {
    memory_.push_back(std::make_unique<GuardedMemory>(name, elements * sizeof(T)));
    return reinterpret_cast<T*>(memory_.back()->begin());
  }

  /// Runs the kernel with these arguments, as detail::launch takes them: pointers by value, null where there is none.
  /// @throws autopar::Error for what a GPU might not forgive, see above
  template <class... Arguments>
  void launch(const std::string& kernel, const autopar::kernels::LaunchShape& shape, Arguments... arguments) {
    void* const addresses[] = {&arguments...};
    launch_with(kernel, shape, {sizeof(Arguments)...}, addresses);
  }

  /// What lies at the begin of memory from reads, holds or room, to its end.
  template <class T>
  [[nodiscard]] std::vector<double> numbers(const T* begin) const {
    const auto& memory = memory_at(begin);
    std::vector<double> made;
    for (std::size_t i = 0; i < memory.bytes() / sizeof(T); ++i) made.push_back(number_of(begin[i]));
    return made;
  }

  struct Content {
    std::string name;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::vector<Content> contents() const;

 private:
  void launch_with(const std::string& kernel, const autopar::kernels::LaunchShape& shape,
                   const std::vector<std::size_t>& sizes, void* const* addresses);
  [[nodiscard]] const GuardedMemory& memory_at(const void* begin) const;

  Source& source_;
  Order order_;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
};

/// @throws autopar::Error, with the memory's name, where two runs have left other bits
void check_same(const std::vector<CudaOnCpu::Content>& first, const std::vector<CudaOnCpu::Content>& other,
                Order order);

/// Does the work with blocks and threads in every order. @returns what it returns
/// @throws autopar::Error if what it leaves in memory differs
template <class Work>
auto in_every_order(Source& source, const Work& work) {
  CudaOnCpu first(source, {});
  auto made = work(first);
  for (const Order order : {Order{true, false}, Order{false, true}, Order{true, true}}) {
    CudaOnCpu other(source, order);
    static_cast<void>(work(other));
    check_same(first.contents(), other.contents(), order);
  }
  return made;
}

}  // namespace cuda_on_cpu
