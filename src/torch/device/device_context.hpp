#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <autopar/core/cluster.hpp>
#include <autopar/io/cache_folder.hpp>

#include "kernels/gemm/matrix_product.hpp"
#include "kernels/kernel_source.hpp"
#include "torch/device/device_recording.hpp"

namespace autopar::devices {

/// What a kind of devices offers besides libtorch's operators. One object for each kind, without state that a caller
/// sees; thread-safe. Builds without CUDA have the CPU's only.
class DeviceContext {
 public:
  DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  virtual ~DeviceContext() = default;

  /// The number of devices of this host.
  /// @throws InvalidArgument if there are devices that cannot be used
  [[nodiscard]] virtual int count() const = 0;
  /// Rates and memory of a device, from data sheets and drivers.
  /// @param ranks_here  number of ranks that share the host
  [[nodiscard]] virtual Device describe(c10::DeviceIndex index, int ranks_here) const = 0;
  /// The link between two devices of this host, before it is measured.
  [[nodiscard]] virtual Link link_within_host() const = 0;
  /// The driver's handle of the current stream of this thread; null if the device has no queue.
  [[nodiscard]] virtual void* current_stream(c10::DeviceIndex index) const = 0;
  /// See `autopar::host_memory`.
  [[nodiscard]] virtual at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype,
                                               c10::DeviceIndex index) const = 0;
  /// See `autopar::multiply_unless_one`.
  /// @param factor  on a device of this kind
  virtual void multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const = 0;
  /// Whether there is a kernel compiler for the device. Does not compile.
  [[nodiscard]] virtual bool compiles_kernels(c10::DeviceIndex) const { return false; }
  /// Whether `launch` accepts these kernels. The first call for a device compiles them (a few tenths of a second), or
  /// reads them from the folder of `keep_kernels_in`.
  [[nodiscard]] virtual bool has_kernels(const kernels::KernelSource&, c10::DeviceIndex) const { return false; }
  /// Queues a kernel on this thread's stream of the device.
  /// @param arguments  addresses of the kernel's arguments, in order
  /// @return false if it was not queued: there are no such kernels, or the driver refuses the shape
  [[nodiscard]] virtual bool launch(const kernels::KernelSource&, const char* /*function*/, const kernels::LaunchShape&,
                                    void** /*arguments*/, c10::DeviceIndex) const {
    return false;
  }
  /// Captures what `work` queues on this thread's streams of the device, without running it. The capture owns the
  /// memory that `work` allocates.
  /// @param stream  the stream on which `work` is called; not a device's default stream
  /// @param beside  a recording whose free memory is reused; null: separate memory
  /// @return null if this kind of device cannot capture, or kernels would read what the host has written
  /// @throws what `work` throws, for example operators that wait for the device; then nothing has run
  [[nodiscard]] virtual std::unique_ptr<DeviceRecording> record(c10::Stream, const std::function<void()>& /*work*/,
                                                                const DeviceRecording* /*beside*/) const {
    return nullptr;
  }
  /// A generator for work that is being captured: kernels read the seed from memory when they run.
  /// @param seed  [2] i64 on the device: the seed, and the offset into its random numbers, a multiple of 4
  /// @return undefined if this kind of device cannot capture
  [[nodiscard]] virtual at::Generator recorded_generator(const at::Tensor& /*seed*/) const { return {}; }
  /// Queues a large product on this thread's stream with the fastest algorithm of the device's library. The first
  /// product of a form tries some algorithms, unless an earlier process left its choice in the folder of
  /// `keep_kernels_in`. That waits for the device and takes some tens of the product's time. For a moment it needs the
  /// memory of another result (two if the product is added) and of the larger factor. The bits of the result do not
  /// depend on the choice.
  /// @return false if nothing was queued, since the device's library does not support the product
  [[nodiscard]] virtual bool multiply(const kernels::MatrixProduct& /*product*/) const { return false; }
  /// Whether 8-bit products run there at more than the rate of 16-bit ones; CPUs compute the same numbers by libtorch's
  /// operators, and answer yes.
  [[nodiscard]] virtual bool has_fp8(c10::DeviceIndex) const { return false; }
  /// Sets the folder for compiled kernels and choices of product algorithms, for all devices of the kind; null: none.
  virtual void keep_kernels_in(const std::shared_ptr<CacheFolder>&) const {}
};

/// @throws InvalidArgument for a kind of devices that this build does not support
[[nodiscard]] const DeviceContext& context_of(c10::DeviceType type);
/// Null in a build without CUDA.
[[nodiscard]] const DeviceContext* cuda_context();

/// The current stream of this thread on the device.
[[nodiscard]] c10::Stream current_stream(c10::Device device);
/// Whether that has work that is not done.
[[nodiscard]] inline bool has_work(c10::Device device) { return !device.is_cpu() && !current_stream(device).query(); }

/// Multiplies each tensor by a factor of one element on its device. For 16-bit tensors the factor is not rounded to 16
/// bits.
void multiply_each(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace autopar::devices
