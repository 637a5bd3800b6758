#include "torch/checkpoint/streamed_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/Parallel.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace autopar::checkpoint {

namespace {

constexpr std::size_t kLine = 64;

void copy_past_caches(const std::byte* from, std::byte* to, std::size_t bytes) {
  std::size_t done = 0;
#ifdef __SSE2__
  for (; done + kLine <= bytes; done += kLine) {
    for (std::size_t k = 0; k < kLine; k += sizeof(__m128i)) {
      const auto part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done + k));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done + k), part);
    }
  }
  _mm_sfence();
#endif
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void streamed_copy(std::span<const std::byte> from, std::span<std::byte> to) {
  constexpr std::int64_t kPortion = std::int64_t{1} << 20;
  const auto bytes = static_cast<std::int64_t>(from.size());
  at::parallel_for(0, (bytes + kPortion - 1) / kPortion, 4, [&](std::int64_t first, std::int64_t last) {
    const auto begin = first * kPortion, end = std::min(bytes, last * kPortion);
    copy_past_caches(from.data() + begin, to.data() + begin, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace autopar::checkpoint
