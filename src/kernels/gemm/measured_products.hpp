#pragma once

#include <memory>

#include <autopar/io/cache_folder.hpp>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::kernels {

/// Products by cuBLASLt, whose library is loaded at the first one. The first product of a form on a device times up to
/// eight algorithms on its own factors and keeps the fastest that makes the same bits: `fastest_alike`. It tries none
/// where an earlier process has kept a choice; where a graph is captured, or memory is short, it takes the library's
/// first. Any thread may use it.
class MeasuredProducts {
 public:
  MeasuredProducts();
  ~MeasuredProducts();
  MeasuredProducts(const MeasuredProducts&) = delete;
  MeasuredProducts& operator=(const MeasuredProducts&) = delete;

  /// See DeviceContext::multiply; false where cuBLASLt is missing, or has nothing for its form.
  [[nodiscard]] bool queue(const MatrixProduct& product);
  /// Where choices are kept, of devices that have had no product yet. See DeviceContext::keep_kernels_in.
  void keep_in(const std::shared_ptr<CacheFolder>& folder);

 private:
  struct Devices;
  std::unique_ptr<Devices> devices_;
};

}  // namespace autopar::kernels
