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

/// What a kind of devices has beside the operators of libtorch. One object a kind, without state that a caller sees;
/// any thread may use it. Builds without CUDA have that of CPUs alone.
class DeviceContext {
 public:
  DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  virtual ~DeviceContext() = default;

  /// Devices of this host. @throws InvalidArgument if there are some that cannot be used
  [[nodiscard]] virtual int count() const = 0;
  /// Rates and memory of one, as data sheets and drivers have them. @param ranks_here  that share the host
  [[nodiscard]] virtual Device describe(c10::DeviceIndex index, int ranks_here) const = 0;
  /// Between two of this host, until it is measured.
  [[nodiscard]] virtual Link link_within_host() const = 0;
  /// The driver's handle of the stream that this thread queues on now; null where nothing is queued.
  [[nodiscard]] virtual void* current_stream(c10::DeviceIndex index) const = 0;
  /// See `autopar::host_memory`.
  [[nodiscard]] virtual at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype,
                                               c10::DeviceIndex index) const = 0;
  /// See `autopar::multiply_unless_one`. @param factor  of this kind of devices
  virtual void multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const = 0;
  /// Whether there is a compiler of kernels for the device. Asks nothing else: compiles nothing.
  [[nodiscard]] virtual bool compiles_kernels(c10::DeviceIndex) const { return false; }
  /// Whether `launch` takes these kernels. The first question for a device compiles them (a few tenths of a second), or
  /// reads what an earlier process left in the folder of `keep_kernels_in`.
  [[nodiscard]] virtual bool has_kernels(const kernels::KernelSource&, c10::DeviceIndex) const { return false; }
  /// Queues a kernel on this thread's stream of the device. @param arguments  addresses of what the kernel takes, in
  /// order
  /// @return false if it was not queued: there are no such kernels, or the driver refuses the shape
  [[nodiscard]] virtual bool launch(const kernels::KernelSource&, const char* /*function*/, const kernels::LaunchShape&,
                                    void** /*arguments*/, c10::DeviceIndex) const {
    return false;
  }
  /// Records what `work` queues on this thread's streams of the device, in place of running it. Memory that `work`
  /// takes is the recording's.
  /// @param stream  that `work` is called on; not a device's default one
  /// @param beside  takes of its memory what is free there; null: of memory of its own
  /// @return null where devices of this kind cannot record, or kernels would read what the host has written
  /// @throws what `work` throws, as operators do that wait for the device; nothing has run then
  [[nodiscard]] virtual std::unique_ptr<DeviceRecording> record(c10::Stream, const std::function<void()>& /*work*/,
                                                                const DeviceRecording* /*beside*/) const {
    return nullptr;
  }
  /// A generator for work that is being recorded: kernels draw by the seed that they find in memory when they run.
  /// @param seed  [2] i64 on the device: the seed, and how many of its draws they pass over, a multiple of 4
  /// @return undefined where devices of this kind cannot record
  [[nodiscard]] virtual at::Generator recorded_generator(const at::Tensor& /*seed*/) const { return {}; }
  /// Queues a large product on this thread's stream by the fastest algorithm of the device's library. The first product
  /// of a form tries some, unless an earlier process left its choice in the folder of `keep_kernels_in`: it waits for
  /// the device, takes some tens of its times, and for a moment the memory of another result (two where it adds) and of
  /// its larger factor. Bits do not depend on what was the fastest.
  /// @return false if nothing was queued: the device's library has nothing for it
  [[nodiscard]] virtual bool multiply(const kernels::MatrixProduct& /*product*/) const { return false; }
  /// Where compiled kernels, and which algorithms products are made by, are kept from now on, for all devices of the
  /// kind; null: nowhere.
  virtual void keep_kernels_in(const std::shared_ptr<CacheFolder>&) const {}
};

/// @throws InvalidArgument for a kind of devices that this build does not know
[[nodiscard]] const DeviceContext& context_of(c10::DeviceType type);
/// Null in a build without CUDA.
[[nodiscard]] const DeviceContext* cuda_context();

/// The stream of the device that this thread queues on now.
[[nodiscard]] c10::Stream current_stream(c10::Device device);

/// Multiplies each by a factor of one element on its device; 16-bit tensors by the factor as it is, not rounded to
/// them.
void multiply_each(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace autopar::devices
