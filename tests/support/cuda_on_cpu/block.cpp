// Threads change by longjmp between stacks, which the checks of fortified longjmp take for a mistake.
#undef _FORTIFY_SOURCE

#include "cuda_on_cpu/block.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <autopar/core/error.hpp>

#include "cuda_on_cpu/device_code.hpp"

#if defined(AUTOPAR_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

namespace {

constexpr unsigned kWarp = 32, kMostThreads = 1024;
constexpr std::size_t kStackBytes =
    (128 << 10) + 4096 + 192;  // no power of two, which a cache would keep in few places

std::string text_of(const uint3& index) { return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ")"; }
std::string text_of(const Site& site) {
  return std::string(site.file_name()) + " line " + std::to_string(site.line()) + ", " + site.function_name();
}
bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

/// Fills the shared memory of all kernels with NaN: the thread-local variables of this library, which are no others.
void spoil_shared_memory() {
  const auto visit = [](dl_phdr_info* info, std::size_t, void*) {
    const std::span headers(info->dlpi_phdr, info->dlpi_phnum);
    const auto own = reinterpret_cast<std::uintptr_t>(&threadIdx);
    const bool is_own = std::ranges::any_of(headers, [&](const auto& header) {
      return header.p_type == PT_LOAD && own - info->dlpi_addr - header.p_vaddr < header.p_memsz;
    });
    if (!is_own) return 0;
    for (const auto& header : headers)
      if (header.p_type == PT_TLS && info->dlpi_tls_data) std::memset(info->dlpi_tls_data, 0xff, header.p_memsz);
    return 1;
  };
  dl_iterate_phdr(visit, nullptr);
}

enum class State { ready, at_block_barrier, at_warp_barrier, ended };

struct Fiber {
  uint3 index{};
  State state = State::ready;
  Site site;               ///< where it waits
  unsigned mask = 0;       ///< of an exchange
  std::uint64_t bits = 0;  ///< given to an exchange, then got from it
  int from = -1;
  ucontext_t begin{};
  bool has_begun = false;
  jmp_buf place{};            ///< to go on
  void* sanitizer = nullptr;  ///< what it keeps of a fiber that waits
};

/// Of the threads of a block: those of all launches, one after the other.
std::byte* stacks() {
  static void* const mapped = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw autopar::Error("no memory for the stacks of a block's threads");
  return static_cast<std::byte*>(mapped);
}

/// One launch.
class Launch {
 public:
  Launch(const Kernel& kernel, const autopar::kernels::LaunchShape& shape, void* const* arguments, Order order)
      : kernel_(kernel), arguments_(arguments), order_(order), fibers_(shape.threads_x * shape.threads_y) {
    blockDim = {shape.threads_x, shape.threads_y, 1};
    gridDim = {shape.blocks_x, shape.blocks_y, 1};
    for (unsigned i = 0; i < fibers_.size(); ++i) make(i);
  }

  void run_block(unsigned block) {
    blockIdx = {block % gridDim.x, block / gridDim.x, 0};
    spoil_shared_memory();
    for (auto& fiber : fibers_) fiber.state = State::ready;
    const auto warps = (fibers_.size() + kWarp - 1) / kWarp;
    do {
      for (std::size_t i = 0; i < warps; ++i) run_warp(order_.threads_backwards ? warps - 1 - i : i);
    } while (release_block());
  }

  /// Gives the next thread its turn.
  void wait(State state, const Site& site = Site::current()) {
    running_->state = state;
    running_->site = site;
    if (_setjmp(running_->place) == 0) {
      start_switch(&running_->sanitizer, scheduler_stack_, scheduler_stack_bytes_);
      _longjmp(scheduler_, 1);
    }
    finish_switch(running_->sanitizer, nullptr, nullptr);
  }
  /// From the signal's handler: what is on the thread's stack is given up.
  void fail(bool is_trap, const void* address) {
    is_trap_ = is_trap;
    address_ = address;
    has_failed_ = true;
    start_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
    _longjmp(scheduler_, 1);
  }
  /// In each block once more.
  void call_kernel() {
    finish_switch(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
    while (true) {
      kernel_.call(arguments_);
      wait(State::ended);
    }
  }
  [[nodiscard]] bool is_in_thread() const { return running_ != nullptr; }
  Fiber& running() { return *running_; }

 private:
  void make(unsigned place) {
    auto& fiber = fibers_[place];
    fiber.index = {place % blockDim.x, place / blockDim.x, 0};
    getcontext(&fiber.begin);
    fiber.begin.uc_stack.ss_sp = stacks() + place * kStackBytes;
    fiber.begin.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.begin, call_running_kernel, 0);
#if defined(AUTOPAR_ADDRESS_SANITIZER)
    __asan_unpoison_memory_region(fiber.begin.uc_stack.ss_sp, kStackBytes);  // what another launch has left there
#endif
  }

  void resume(Fiber& fiber) {
    running_ = &fiber;
    threadIdx = fiber.index;
    if (_setjmp(scheduler_) == 0) {
      start_switch(&sanitizer_, running_->begin.uc_stack.ss_sp, kStackBytes);
      if (running_->has_begun) _longjmp(running_->place, 1);
      running_->has_begun = true;
      setcontext(&running_->begin);
    }
    finish_switch(sanitizer_, nullptr, nullptr);
    running_ = nullptr;
    if (has_failed_) throw ThreadFault{{is_trap_, address_, place_of(fiber)}};
  }

  /// To the block's barrier or the end, before any other warp: what it does too early shows.
  void run_warp(std::size_t place) {
    const auto first = place * kWarp;
    const auto warp = std::span(fibers_).subspan(first, std::min<std::size_t>(kWarp, fibers_.size() - first));
    do {
      for (std::size_t i = 0; i < warp.size(); ++i) {
        auto& fiber = warp[order_.threads_backwards ? warp.size() - 1 - i : i];
        if (fiber.state == State::ready) resume(fiber);
      }
    } while (release_warp(warp));
  }

  /// Lets those go on that have waited for each other. @returns whether any may
  bool release_block() {
    const Fiber* waiting = nullptr;
    bool all_wait = true;
    for (const auto& fiber : fibers_) {
      if (fiber.state == State::at_block_barrier) {
        if (waiting && !same(waiting->site, fiber.site)) throw apart(*waiting, fiber);
        waiting = &fiber;
      }
      all_wait &= fiber.state == State::at_block_barrier || fiber.state == State::ended;
    }
    if (waiting && all_wait) {
      for (auto& fiber : fibers_)
        if (fiber.state == State::at_block_barrier) fiber.state = State::ready;
      return true;
    }
    for (const auto& fiber : fibers_)
      if (fiber.state != State::ended) throw stuck(fiber);
    return false;
  }

  bool release_warp(std::span<Fiber> warp) {
    bool may_go_on = false;
    for (std::size_t lane = 0; lane < warp.size(); ++lane) {
      if (warp[lane].state != State::at_warp_barrier) continue;
      const auto& waiting = warp[lane];
      if ((waiting.mask >> lane & 1) == 0)
        throw autopar::Error(said_of(waiting) + " takes part in a shuffle whose mask leaves it out");
      bool all_wait = true;
      for (std::size_t other = 0; other < warp.size(); ++other) {
        if ((waiting.mask >> other & 1) == 0 || warp[other].state == State::ended) continue;
        const bool waits = warp[other].state == State::at_warp_barrier;
        if (waits && (warp[other].mask != waiting.mask || !same(warp[other].site, waiting.site)))
          throw apart(waiting, warp[other]);
        all_wait &= waits;
      }
      if (!all_wait) continue;
      exchange_in(warp, waiting.mask);
      may_go_on = true;
    }
    return may_go_on;
  }

  void exchange_in(std::span<Fiber> warp, unsigned mask) {
    std::array<std::uint64_t, kWarp> given{};
    std::array<bool, kWarp> takes_part{};
    for (std::size_t lane = 0; lane < warp.size(); ++lane) {
      given[lane] = warp[lane].bits;
      takes_part[lane] = (mask >> lane & 1) != 0 && warp[lane].state == State::at_warp_barrier;
    }
    for (std::size_t lane = 0; lane < warp.size(); ++lane) {
      if (!takes_part[lane]) continue;
      auto& fiber = warp[lane];
      const auto from = fiber.from < 0 ? lane : static_cast<std::size_t>(fiber.from);
      if (from >= kWarp || !takes_part[from])
        throw autopar::Error(said_of(fiber) + " reads lane " + std::to_string(from) + ", which takes no part");
      fiber.bits = given[from];
      fiber.state = State::ready;
    }
  }

  [[nodiscard]] static std::string place_of(const Fiber& fiber) {
    return "thread " + text_of(fiber.index) + " of block " + text_of(blockIdx);
  }
  [[nodiscard]] std::string said_of(const Fiber& fiber) const { return kernel_.name + ": " + place_of(fiber); }
  [[nodiscard]] autopar::Error apart(const Fiber& one, const Fiber& other) const {
    return autopar::Error(said_of(one) + " waits at " + text_of(one.site) + ", " + place_of(other) + " at " +
                          text_of(other.site) + ": all threads must come to the same barrier");
  }
  [[nodiscard]] autopar::Error stuck(const Fiber& fiber) const {
    return autopar::Error(said_of(fiber) + " waits without end at " + text_of(fiber.site) +
                          ": other threads wait elsewhere");
  }

  // What the address sanitizer must know of changes of stacks.
  static void start_switch([[maybe_unused]] void** kept, [[maybe_unused]] const void* stack,
                           [[maybe_unused]] std::size_t bytes) {
#if defined(AUTOPAR_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(kept, stack, bytes);
#endif
  }
  static void finish_switch([[maybe_unused]] void* kept, [[maybe_unused]] const void** from,
                            [[maybe_unused]] std::size_t* bytes) {
#if defined(AUTOPAR_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(kept, from, bytes);
#endif
  }

  static void call_running_kernel();

  const Kernel& kernel_;
  void* const* arguments_;
  Order order_;
  std::vector<Fiber> fibers_;
  jmp_buf scheduler_{};
  void* sanitizer_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
  Fiber* running_ = nullptr;
  bool has_failed_ = false, is_trap_ = false;
  const void* address_ = nullptr;
};

Launch* launched = nullptr;  // as threadIdx and the like are of the one launch that runs

void Launch::call_running_kernel() { launched->call_kernel(); }

/// Faults of threads end the launch; all others stay what they were.
class FaultHandler {
 public:
  FaultHandler() {
    struct sigaction own {};
    own.sa_sigaction = handle;
    own.sa_flags = SA_SIGINFO | SA_NODEFER;  // as it is left by longjmp
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &own, &before_[i]);
  }
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
  ~FaultHandler() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};

  static void handle(int signal, siginfo_t* info, void*) {
    if (launched && launched->is_in_thread()) launched->fail(signal != SIGSEGV && signal != SIGBUS, info->si_addr);
    std::signal(signal, SIG_DFL);  // a fault of the harness: once more, and to the end
  }

  std::array<struct sigaction, kSignals.size()> before_{};
};

/// The launch that device code sees.
class Launched {
 public:
  explicit Launched(Launch& launch) {
    if (launched) throw std::logic_error("a launch within a launch");
    launched = &launch;
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() { launched = nullptr; }

 private:
  FaultHandler handler_;
};

}  // namespace

void run_blocks(const Kernel& kernel, const autopar::kernels::LaunchShape& shape, void* const* arguments, Order order) {
  const auto threads = shape.threads_x * shape.threads_y, blocks = shape.blocks_x * shape.blocks_y;
  if (threads == 0 || threads > kMostThreads || blocks == 0)
    throw autopar::InvalidArgument(kernel.name + ": " + std::to_string(blocks) + " blocks of " +
                                   std::to_string(threads) + " threads; a GPU takes 1 to 1024 threads");
  Launch launch(kernel, shape, arguments, order);
  const Launched visible(launch);
  for (unsigned i = 0; i < blocks; ++i) launch.run_block(order.blocks_backwards ? blocks - 1 - i : i);
}

// ---------------------------------------------------------------- what device code calls

int lane() { return static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % kWarp); }

void wait_for_block(const Site& site) { launched->wait(State::at_block_barrier, site); }

std::uint64_t exchange(unsigned mask, std::uint64_t given, int from, const Site& site) {
  auto& own = launched->running();
  own.mask = mask;
  own.bits = given;
  own.from = from;
  launched->wait(State::at_warp_barrier, site);
  return own.bits;
}

float float_of_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = std::ldexp(static_cast<float>(fraction), -24);
  if (exponent > 0) size = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) size = fraction == 0 ? INFINITY : NAN;
  return std::copysign(size, bits >> 15 ? -1.f : 1.f);
}

unsigned short half_of_float(float x) {
  constexpr float kLeastNormal = 0x1p-14f, kFirstInfinite = 65520;
  const float size = std::fabs(x);
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  if (x != x) return 0x7fff;
  if (size >= kFirstInfinite) return static_cast<unsigned short>(sign | 0x7c00);
  if (size < kLeastNormal)
    return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(size * 0x1p24f)));
  const auto bits = bits_as<unsigned>(size);
  return static_cast<unsigned short>(sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10)));
}

}  // namespace cuda_on_cpu
