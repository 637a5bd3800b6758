#pragma once

#include <functional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace autopar::autograd {

/// A second stream of a device, for work whose results are not needed before `join`. It shares the device with the
/// caller's stream. One thread at a time.
class SideStream {
 public:
  /// @param device  must have streams
  explicit SideStream(c10::Device device);

  /// Runs `work` on this stream, after all work queued on the current stream so far. Calls are batched: several
  /// together cost the host one change of stream.
  /// @param work  holds its inputs; released once the current stream can no longer overtake it
  void put(std::function<void()> work);
  /// Makes later work on the current stream wait for all `put` work.
  void join();
  /// Discards work that was put in and not joined.
  void drop();

 private:
  void start();

  c10::Stream stream_;
  c10::Event ready_, done_;
  std::vector<std::function<void()>> waiting_, running_;  ///< put in but not launched; launched but not joined
};

}  // namespace autopar::autograd
