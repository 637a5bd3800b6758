#pragma once

#include <dlfcn.h>

namespace autopar::kernels {

/// A function of a shared library that exists where GPUs exist and that nothing links; null if it is missing.
/// @param library  the result of `dlopen`, which may have failed
template <class Function>
[[nodiscard]] Function loaded(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace autopar::kernels
