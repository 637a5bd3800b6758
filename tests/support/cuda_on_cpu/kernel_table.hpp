#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace cuda_on_cpu {

/// A kernel as C++ compiled it.
struct Kernel {
  std::string name;
  void (*call)(void* const* arguments);  ///< of one thread; addresses, as cuLaunchKernel takes them
  std::vector<std::size_t> sizes;        ///< of the parameters, in bytes
  std::size_t launches = 0;
};

/// The kernels of a text.
struct Source {
  std::string name;  ///< "batch_norm"
  std::vector<Kernel> kernels;

  /// @throws autopar::InvalidArgument if there is none, with the names that there are
  Kernel& kernel(const std::string& kernel);
  /// Names of those that no test has launched.
  [[nodiscard]] std::vector<std::string> never_launched() const;
};

template <auto kFunction>
struct Caller;
template <class... Parameters, void (*kFunction)(Parameters...)>
struct Caller<kFunction> {
  static void call(void* const* arguments) {
    [&]<std::size_t... kPlaces>(std::index_sequence<kPlaces...>) {
      kFunction(*static_cast<const Parameters*>(arguments[kPlaces])...);
    }
    (std::index_sequence_for<Parameters...>{});
  }
  static Kernel named(const char* name) { return {name, call, {sizeof(Parameters)...}}; }
};

}  // namespace cuda_on_cpu
