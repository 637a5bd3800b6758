#pragma once

#include <cstdint>
#include <optional>

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace autopar::devices {

/// While it lives, large matrix products on CUDA devices leave multiprocessors to messages, whose kernels occupy two
/// while they wait for the other rank. A product that misses some of its multiprocessors takes up to twice as long; one
/// that counts on fewer from the start takes as long as with all of them (benchmarks/NOTES.md). The room is libtorch's
/// SM carve-out, which is restored afterwards. Does nothing on CPUs.
class RoomForMessages {
 public:
  RoomForMessages(bool wanted, c10::Device device) : is_made_(wanted && device.is_cuda()) {
    if (!is_made_) return;
    before_ = at::globalContext()._SMCarveout_EXPERIMENTAL();
    set(kMultiprocessors);
  }
  ~RoomForMessages() {
    if (is_made_) set(before_);
  }
  RoomForMessages(const RoomForMessages&) = delete;
  RoomForMessages& operator=(const RoomForMessages&) = delete;

 private:
  /// Without libtorch's warning that this is experimental: the user has not asked for it.
  static void set(std::optional<std::int32_t> multiprocessors) {
    struct Silent : c10::WarningHandler {
      void process(const c10::Warning& /*warning*/) override {}
    } silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    at::globalContext()._setSMCarveout_EXPERIMENTAL(multiprocessors);
  }

  // Products start in pairs of multiprocessors: each of a message's two can keep a neighbour idle.
  static constexpr std::int32_t kMultiprocessors = 4;
  std::optional<std::int32_t> before_;
  bool is_made_;
};

}  // namespace autopar::devices
