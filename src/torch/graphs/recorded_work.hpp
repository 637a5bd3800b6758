#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <autopar/runtime/any_transport.hpp>

#include "torch/device/device_recording.hpp"

namespace autopar::graphs {

/// What a recording exchanges with other ranks; empty: nothing.
struct RecordedExchanges {
  AnyTransport wire{};
  std::shared_ptr<autopar::detail::RecordedOperations> operations{};
};

/// A device's work with the tensors that it reads and makes: run again for other inputs, it costs the host one launch.
///
///   std::vector<at::Tensor> loss = forward.run({images, labels});
///
/// What is made lies in the recording's memory, which the next run writes again: it may be run when nobody holds
/// anything of the last one. Small results are copied, as users keep losses.
class RecordedWork {
 public:
  /// @param inputs   memory that the work reads
  /// @param made     memory that it writes; undefined tensors stay so
  /// @param results  how many of `made`, from the first, users may keep
  RecordedWork(std::unique_ptr<devices::DeviceRecording> work, std::vector<at::Tensor> inputs,
               std::vector<at::Tensor> made, std::size_t results, RecordedExchanges exchanges = {});

  [[nodiscard]] const devices::DeviceRecording& recording() const { return *work_; }
  /// Whether nobody holds what the last run has made.
  [[nodiscard]] bool is_free() const;
  /// @param inputs  of the same forms, on any device; undefined: not read
  /// Collective if the work exchanges. @pre is_free()
  [[nodiscard]] std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

 private:
  [[nodiscard]] bool is_copied(std::size_t made) const;

  struct Memory {
    c10::Storage storage;
    std::size_t held;  ///< by this object, this member included
  };
  RecordedExchanges exchanges_;
  std::unique_ptr<devices::DeviceRecording> work_;
  std::vector<at::Tensor> inputs_, made_;
  std::size_t results_;
  std::vector<Memory> written_;  ///< that `made_` lie in
};

}  // namespace autopar::graphs
