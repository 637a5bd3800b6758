#include "torch/autograd/side_stream.hpp"

#include <cstddef>
#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "torch/device/device_context.hpp"

namespace autopar::autograd {

namespace {

constexpr std::size_t kTogether = 4;

}  // namespace

SideStream::SideStream(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      ready_(device.type()),
      done_(device.type()) {}

void SideStream::put(std::function<void()> work) {
  waiting_.push_back(std::move(work));
  if (waiting_.size() == kTogether) start();
}

void SideStream::start() {
  ready_.record(devices::current_stream(stream_.device()));
  ready_.block(stream_);
  {
    const c10::StreamGuard here(stream_);
    for (const auto& work : waiting_) work();
  }
  // The allocator reuses freed memory in the order of the current stream.
  if (!running_.empty()) done_.block(devices::current_stream(stream_.device()));
  running_ = std::exchange(waiting_, {});
  done_.record(stream_);
}

void SideStream::join() {
  if (!waiting_.empty()) start();
  if (!running_.empty()) done_.block(devices::current_stream(stream_.device()));
  running_.clear();
}

// Work that started in an aborted capture (DeviceContext::record) never runs, and its events cannot be waited for.
void SideStream::drop() {
  waiting_.clear();
  try {
    join();
  } catch (const c10::Error&) {
    running_.clear();
    ready_ = c10::Event(stream_.device_type());
    done_ = c10::Event(stream_.device_type());
  }
}

}  // namespace autopar::autograd
