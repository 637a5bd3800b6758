#pragma once

#include <string>
#include <type_traits>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "kernels/nvrtc/loaded_function.hpp"

namespace autopar::kernels {

/// Functions of cuBLASLt. Nothing links it: they are looked up in the library that libtorch's CUDA library has loaded.
struct BlasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_of_algorithm = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_of_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_matrix = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_wish = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_wish = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_of_wish = nullptr;
  bool is_there = true;

  BlasLt() {
    auto* const library = dlopen(("libcublasLt.so." + std::to_string(CUDART_VERSION / 1000)).c_str(), RTLD_NOW);
    const auto take = [&](auto& function, const char* name) {
      function = loaded<std::remove_reference_t<decltype(function)>>(library, name);
      is_there = is_there && function != nullptr;
    };
    take(create, "cublasLtCreate");
    take(version, "cublasLtGetVersion");
    take(multiply, "cublasLtMatmul");
    take(find, "cublasLtMatmulAlgoGetHeuristic");
    take(get_of_algorithm, "cublasLtMatmulAlgoConfigGetAttribute");
    take(create_product, "cublasLtMatmulDescCreate");
    take(set_of_product, "cublasLtMatmulDescSetAttribute");
    take(create_matrix, "cublasLtMatrixLayoutCreate");
    take(create_wish, "cublasLtMatmulPreferenceCreate");
    take(destroy_wish, "cublasLtMatmulPreferenceDestroy");
    take(set_of_wish, "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace autopar::kernels
