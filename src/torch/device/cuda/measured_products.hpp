#pragma once

#include <memory>

#include "torch/device/matrix_product.hpp"

namespace autopar {

/// Products by cuBLASLt, whose library is loaded at the first one. The first product of a form on a device times up to
/// eight algorithms on its own factors and keeps the fastest that makes the same bits: `fastest_alike`. Where a graph
/// is captured, or memory is short, it keeps the library's first. Any thread may use it.
class MeasuredProducts {
 public:
  MeasuredProducts();
  ~MeasuredProducts();
  MeasuredProducts(const MeasuredProducts&) = delete;
  MeasuredProducts& operator=(const MeasuredProducts&) = delete;

  /// See DeviceContext::multiply; false where cuBLASLt is missing, or has nothing for this form.
  [[nodiscard]] bool queue(const MatrixProduct& product, const ProductForm& form);

 private:
  struct Devices;
  std::unique_ptr<Devices> devices_;
};

}  // namespace autopar
