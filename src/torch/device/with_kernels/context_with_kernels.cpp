#include "torch/device/cuda/cuda_context.hpp"

#include <memory>
#include <vector>

#include "kernels/gemm/measured_products.hpp"
#include "kernels/nvrtc/compiled_kernels.hpp"
#include "torch/device/with_kernels/multiply.hpp"

namespace autopar::devices {

namespace {

class CudaContextWithKernels final : public CudaContext {
 public:
  void multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const override {
    multiply_on_device(tensors, factor);
  }
  [[nodiscard]] bool compiles_kernels(c10::DeviceIndex index) const override { return kernels::has_compiler(index); }
  [[nodiscard]] bool has_kernels(const kernels::KernelSource& source, c10::DeviceIndex index) const override {
    return kernels::has_compiled(source, index);
  }
  [[nodiscard]] bool launch(const kernels::KernelSource& source, const char* function,
                            const kernels::LaunchShape& shape, void** arguments,
                            c10::DeviceIndex index) const override {
    return kernels::launch_compiled(source, function, shape, arguments, index);
  }
  [[nodiscard]] bool multiply(const kernels::MatrixProduct& product) const override { return products_.queue(product); }
  [[nodiscard]] bool has_fp8(c10::DeviceIndex index) const override {
    constexpr int kAda = 89;
    return kernels::has_compiler(index) && kernels::generation_of(index) >= kAda;
  }
  void keep_kernels_in(const std::shared_ptr<CacheFolder>& folder) const override {
    kernels::keep_compiled_in(folder);
    products_.keep_in(folder);
  }

 private:
  mutable kernels::MeasuredProducts products_;
};

}  // namespace

const DeviceContext* cuda_context() {
  static const CudaContextWithKernels cuda;
  return &cuda;
}

}  // namespace autopar::devices
