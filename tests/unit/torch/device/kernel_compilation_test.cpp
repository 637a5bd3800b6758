#include "torch/device/kernel_compilation.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <catch_shim.hpp>

namespace autopar::test {
namespace kernel_compilation_test {

/// A device whose kernels are compiled when `at_once` threads are at it, and never on that of the test.
class Device final : public devices::DeviceContext {
 public:
  explicit Device(std::size_t at_once) : at_once_(at_once) {}

  [[nodiscard]] bool has_kernels(const kernels::KernelSource& source, c10::DeviceIndex index) const override {
    constexpr std::chrono::seconds kForever(20);
    std::unique_lock<std::mutex> lock(mutex_);
    asked_.emplace_back(source.name);
    threads_.insert(std::this_thread::get_id());
    is_other_device_ = is_other_device_ || index != 3;
    arrived_.notify_all();
    if (!arrived_.wait_for(lock, kForever, [&] { return asked_.size() >= at_once_; })) return false;
    if (std::string(source.name) == "wrong.cu") throw std::runtime_error("wrong.cu");
    return true;
  }
  [[nodiscard]] std::vector<std::string> asked() const {
    auto all = asked_;
    std::ranges::sort(all);
    return all;
  }
  [[nodiscard]] std::size_t threads() const { return threads_.size(); }
  [[nodiscard]] bool is_other_device() const { return is_other_device_; }
  void wait_for(std::size_t count) const {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [&] { return asked_.size() >= count; });
  }

  [[nodiscard]] int count() const override { return 4; }
  [[nodiscard]] autopar::Device describe(c10::DeviceIndex, int) const override { return {}; }
  [[nodiscard]] Link link_within_host() const override { return {}; }
  [[nodiscard]] void* current_stream(c10::DeviceIndex) const override { return nullptr; }
  [[nodiscard]] at::Tensor host_memory(std::int64_t, c10::ScalarType, c10::DeviceIndex) const override { return {}; }
  void multiply_unless_one(const std::vector<at::Tensor>&, const at::Tensor&) const override {}

 private:
  std::size_t at_once_;
  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  mutable std::vector<std::string> asked_;
  mutable std::set<std::thread::id> threads_;
  mutable bool is_other_device_ = false;
};

const std::vector<kernels::KernelSource> kSources{{"a.cu", "a"}, {"wrong.cu", "b"}, {"c.cu", "c"}, {"d.cu", "d"}};
const std::vector<std::string> kNames{"a.cu", "c.cu", "d.cu", "wrong.cu"};

TEST_CASE("KernelCompilation: parallel, once each, errors stay silent") {
  for (const std::size_t most : {1, 3, 100}) {
    CAPTURE(most);
    const auto threads = std::min(most, kSources.size());
    const Device device(threads);
    {
      const devices::KernelCompilation ahead(device, 3, kSources, most);
      device.wait_for(kSources.size());
    }
    CHECK(device.asked() == kNames);
    CHECK(device.threads() == threads);
    CHECK_FALSE(device.is_other_device());
  }
}

TEST_CASE("KernelCompilation: no kernels, no work") {
  const Device device(1);
  { const devices::KernelCompilation none(device, 3, {}); }
  CHECK(device.asked().empty());
}

}  // namespace kernel_compilation_test
}  // namespace autopar::test
