#pragma once

#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace autopar::shapes::meta {

/// Registers a kernel for the form of an operator's results, unless libtorch has one.
template <class Kernel>
void add(torch::Library& library, const char* name, const char* overload, Kernel kernel) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
  if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
  const auto qualified = *overload == '\0' ? std::string(name) : std::string(name) + "." + overload;
  library.impl(qualified.c_str(), kernel);
}

/// Fourier transforms, complex numbers, factorisations of matrices, and other operators on signals and images.
void register_transforms(torch::Library& library);
void register_attention(torch::Library& library);
/// Patches, selections, distances and random numbers.
void register_selections(torch::Library& library);

}  // namespace autopar::shapes::meta
