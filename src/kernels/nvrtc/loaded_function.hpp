#pragma once

#include <dlfcn.h>

namespace autopar::kernels {

/// A function of a shared library that is there where GPUs are, and that nothing links; null if it is not there.
/// @param library  of `dlopen`, which may have failed
template <class Function>
[[nodiscard]] Function loaded(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace autopar::kernels
