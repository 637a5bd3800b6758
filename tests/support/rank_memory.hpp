#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

/// CPU tensors' memory in the books of whoever made it: what a rank of a Loopback world holds, how much it held at
/// most, and a limit beyond which it gets none. A rank is one thread, on which its backwards run, too; what it made
/// stays in its books whoever frees it.
class RankMemory final : public c10::Allocator {
 public:
  /// Of one rank. Bytes as they were asked for.
  class Ledger {
   public:
    [[nodiscard]] std::int64_t live() const { return live_; }
    [[nodiscard]] std::int64_t peak() const { return peak_; }
    /// The largest number of bytes held from now on is what `peak` says.
    void forget_peak() { peak_ = live_.load(); }
    void set_limit(std::int64_t bytes) { limit_ = bytes; }

   private:
    friend class RankMemory;
    void take(std::int64_t bytes) {
      const auto now = live_ += bytes;
      if (now > limit_) {
        live_ -= bytes;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "a rank holds ", now - bytes, " bytes and asks for ", bytes,
                         " more; its limit is ", limit_.load());
      }
      peak_ = std::max(peak_.load(), now);
    }
    std::atomic<std::int64_t> live_{0}, peak_{0}, limit_{std::numeric_limits<std::int64_t>::max()};
  };

  /// While it lives, what its thread makes is in these books.
  class Scope {
   public:
    explicit Scope(Ledger& ledger) : outer_(std::exchange(current(), &ledger)) {}
    ~Scope() { current() = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Ledger* outer_;
  };

  /// In place of c10's CPU allocator from the first call on: c10 keeps a reference for as long as the process lives.
  static RankMemory& install() {
    static RankMemory* const memory = [] {
      auto* made = new RankMemory;
      c10::SetAllocator(c10::DeviceType::CPU, made, std::numeric_limits<std::uint8_t>::max());
      return made;
    }();
    return *memory;
  }
  /// New books. They are kept, for memory may outlive the rank that made it.
  [[nodiscard]] Ledger& open() {
    const std::lock_guard lock(mutex_);
    return ledgers_.emplace_back();
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    auto* const ledger = current();
    if (ledger != nullptr) ledger->take(static_cast<std::int64_t>(bytes));
    auto* const block = static_cast<Header*>(inner().raw_allocate(bytes + sizeof(Header)));
    *block = {ledger, static_cast<std::int64_t>(bytes)};
    return {block + 1, block + 1, &release, cpu};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  /// In front of each piece, of which kernels expect to start at a line of the cache.
  struct alignas(64) Header {
    Ledger* ledger = nullptr;
    std::int64_t bytes = 0;
  };

  static void release(void* data) {
    if (data == nullptr) return;
    auto* const block = static_cast<Header*>(data) - 1;
    if (block->ledger != nullptr) block->ledger->live_ -= block->bytes;
    inner().raw_deallocate(block);
  }
  static c10::Allocator& inner() { return *c10::GetDefaultCPUAllocator(); }
  static Ledger*& current() {
    thread_local Ledger* ledger = nullptr;
    return ledger;
  }

  std::mutex mutex_;
  std::deque<Ledger> ledgers_;
};
