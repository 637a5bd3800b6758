#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

/// The number of CUDA devices of this process; 0 without a driver or in a build without CUDA.
extern "C" int autopar_test_visible_gpus() {
#if AUTOPAR_HAS_CUDA
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
#else
  return 0;
#endif
}
