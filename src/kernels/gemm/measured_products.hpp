#pragma once

#include <memory>

#include <autopar/io/cache_folder.hpp>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::kernels {

/// Products by cuBLASLt, whose library is loaded at the first product. The first product of a form on a device times up
/// to eight algorithms on its own factors. It keeps the fastest that gives the same bits: see `fastest_alike`. It times
/// none if an earlier process has kept a choice. During graph capture, or if memory is short, it takes the library's
/// first. Thread-safe.
class MeasuredProducts {
 public:
  MeasuredProducts();
  ~MeasuredProducts();
  MeasuredProducts(const MeasuredProducts&) = delete;
  MeasuredProducts& operator=(const MeasuredProducts&) = delete;

  /// See DeviceContext::multiply; false if cuBLASLt is missing or has no algorithm for the form.
  [[nodiscard]] bool queue(const MatrixProduct& product);
  /// Sets the folder that keeps choices, for devices that have had no product yet. See DeviceContext::keep_kernels_in.
  void keep_in(const std::shared_ptr<CacheFolder>& folder);

 private:
  struct Devices;
  std::unique_ptr<Devices> devices_;
};

}  // namespace autopar::kernels
