#pragma once

#include <functional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace autopar {

/// A second stream of a device, for work whose results nobody needs before `join`. It shares the device with the
/// caller's stream. One thread at a time.
class SideStream {
 public:
  /// @param device  one that has streams
  explicit SideStream(c10::Device device);

  /// Runs `work` there, after everything that the current stream has been given; soon, with what is put in next: a few
  /// together cost the host one change of stream.
  /// @param work  holds what it reads; it is let go of when the current stream cannot overtake it any more
  void put(std::function<void()> work);
  /// What the current stream is given from now on waits for all that was put in.
  void join();
  /// Forgets what was put in and not joined.
  void drop();

 private:
  void start();

  c10::Stream stream_;
  c10::Event ready_, done_;
  std::vector<std::function<void()>> waiting_, running_;  ///< put in and not given to the device, given and not joined
};

}  // namespace autopar
