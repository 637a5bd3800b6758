#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shard/tensor_buffer.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/cost/measured/sums_beside.hpp"

namespace autopar::cost {

namespace {

/// Bytes of a transfer: from what latency decides to the largest buckets.
std::vector<std::int64_t> probe_sizes(c10::Device device) {
  std::vector<std::int64_t> sizes{1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23};
  if (!device.is_cpu()) sizes.insert(sizes.end(), {1 << 26, 1 << 28});
  return sizes;
}
constexpr double kLongTransfer = 0.03;  // seconds; what takes longer tells how long more bytes take
constexpr int kLinkRepetitions = 7;

/// A pair or a group that represents its class and contains rank 0.
struct LinkProbe {
  LinkClass link = 1;
  bool is_sum = false;
  std::vector<Rank> ranks;  ///< ascending, rank 0 first
};

/// `count` ranks that only this level joins: one of each group of the next inner level, if there are enough groups.
std::optional<LinkProbe> sum_probe(int span, int inner, int count, int world) {
  const int stride = inner * count <= std::min(span, world) ? inner : 1;
  if (stride == 1 && count <= inner) return std::nullopt;
  LinkProbe probe{span, true, {}};
  for (int i = 0; i < count; ++i) probe.ranks.push_back(Rank(i * stride));
  return probe;
}

std::vector<LinkProbe> link_probes(const std::vector<int>& spans, int world) {
  std::vector<LinkProbe> probes;
  int inner = 1;
  for (const int span : spans) {
    const int joined = std::min(span, world);
    if (joined > inner) {
      probes.push_back({span, false, {Rank(0), Rank(inner)}});
      for (int count = 2; count < joined; count *= 2) {
        if (auto probe = sum_probe(span, inner, count, world)) probes.push_back(std::move(*probe));
      }
      if (auto probe = sum_probe(span, inner, joined, world)) probes.push_back(std::move(*probe));
    }
    inner = std::max(inner, span);
  }
  return probes;
}

/// Rank 0's values, on every rank.
template <class T>
std::vector<T> of_rank_0(World& world, const std::vector<T>& mine, std::string_view action) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span<const T>(mine));
  const auto blob = world.broadcast(Blob(bytes.begin(), bytes.end()), Rank(0), action);
  std::vector<T> values(blob.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), blob.data(), blob.size());
  return values;
}

/// Computation before a message, as in a step: the receiver waits, and the message leaves both ranks' caches.
class Computing {
 public:
  static constexpr std::chrono::microseconds kLength{1000};

  /// Takes kLength of host time.
  void take() {
    const auto end = std::chrono::steady_clock::now() + kLength;
    while (std::chrono::steady_clock::now() < end) {
      for (std::size_t i = 0; i < kStride; ++i) memory_[(position_ + i) % memory_.size()] += 1;
      position_ += kStride;
    }
  }

 private:
  static constexpr std::size_t kStride = 1 << 12;
  std::vector<int> memory_ = std::vector<int>(1 << 21);  // 8 MiB: larger than a core's private caches
  std::size_t position_ = 0;
};

/// One probe's transfers, as its ranks measure them.
class LinkBench {
 public:
  LinkBench(AnyTransport& wire, detail::StepStopwatch& stopwatch, const LinkProbe& probe, GroupId group)
      : wire_(wire), stopwatch_(stopwatch), device_(stopwatch.device()), probe_(probe), group_(group) {
    detail::StepStopwatch::Together together;
    together.meet = [this, token = buffer_of_size(4)] { transfer(token); };
    stopwatch_.run_beside(std::move(together));
  }
  LinkBench(const LinkBench&) = delete;
  LinkBench& operator=(const LinkBench&) = delete;
  ~LinkBench() { stopwatch_.run_beside({}); }

  /// Seconds.
  [[nodiscard]] double of_transfer(std::int64_t bytes) {
    const Buffer buffer = buffer_of_size(bytes);
    if (device_.is_cpu()) return on_host(buffer);
    constexpr std::int64_t kTogether = 1 << 26;  // bytes that follow one another
    const auto count = static_cast<int>(std::clamp<std::int64_t>(kTogether / bytes, 1, 20));
    return seconds_of([&] {
             for (int i = 0; i < count; ++i) transfer(buffer);
           }) /
           (probe_.is_sum ? count : 2 * count);
  }

 private:
  [[nodiscard]] Buffer buffer_of_size(std::int64_t bytes) const {
    return buffer_of(at::zeros({bytes / 4}, at::TensorOptions(at::kFloat).device(device_)));
  }

  [[nodiscard]] double on_host(const Buffer& buffer) {
    std::vector<double> times;
    for (int i = 0; i <= kLinkRepetitions; ++i) {
      const double seconds = detail::seconds_of(device_, [&] { transfer(buffer); });
      if (i > 0) times.push_back(probe_.is_sum ? seconds : one_way(seconds));  // the first one sets up connections
    }
    return detail::median(times);
  }
  /// @param seconds  of a message there, one back, and the computation before them
  [[nodiscard]] static double one_way(double seconds) {
    return std::max(0.0, seconds / 2 - std::chrono::duration<double>(Computing::kLength).count());
  }

  /// A sum, or a message there and one back.
  void transfer(const Buffer& buffer) {
    if (probe_.is_sum) return wire_.wait(wire_.all_reduce(buffer, DType::kF32, group_));
    const bool first = wire_.rank() == probe_.ranks.front();
    const Rank peer = first ? probe_.ranks.back() : probe_.ranks.front();
    const auto send = [&] {
      if (device_.is_cpu()) computing_.take();
      wire_.wait(wire_.send(buffer, peer, {}));
    };
    const auto receive = [&] { wire_.wait(wire_.receive(buffer, peer, {})); };
    if (first) send();
    receive();
    if (!first) send();
  }

  /// Median device time of work that the probe's ranks start together.
  [[nodiscard]] double seconds_of(const std::function<void()>& work) {
    std::vector<double> times;
    static_cast<void>(stopwatch_.time(work));
    for (int i = 0; i < kLinkRepetitions; ++i) times.push_back(stopwatch_.time(work).device);
    return detail::median(times);
  }

  AnyTransport& wire_;
  detail::StepStopwatch& stopwatch_;
  c10::Device device_;
  const LinkProbe& probe_;
  GroupId group_;
  Computing computing_;
};

}  // namespace

MeasuredLinks measure_links(World& world, AnyTransport& wire, const Cluster& cluster, c10::Device device) {
  std::vector<int> spans;
  for (const auto& level : cluster.levels) spans.push_back(level.span);
  // Hosts may have different numbers of ranks; probes must be the same on every rank.
  const auto probes = link_probes(of_rank_0(world, spans, "agreeing on the classes of links"), world.size());
  std::vector<DirectedPair> pairs;
  for (const auto& probe : probes) {
    if (probe.is_sum) continue;
    pairs.push_back({probe.ranks.front(), probe.ranks.back()});
    pairs.push_back({probe.ranks.back(), probe.ranks.front()});
  }
  wire.connect(pairs);
  detail::StepStopwatch stopwatch(device);
  MeasuredLinks links;
  for (const auto& probe : probes) {
    const auto group = probe.is_sum ? wire.make_group(probe.ranks) : GroupId{};
    world.barrier("measuring links");
    const bool takes_part = std::find(probe.ranks.begin(), probe.ranks.end(), world.rank_id()) != probe.ranks.end();
    LinkBench bench(wire, stopwatch, probe, group);
    // Rank 0 is in every pair and group; what it has measured decides what all do next.
    std::vector<MeasuredPoint> points;
    for (const auto bytes : probe_sizes(device)) {
      const double own = takes_part ? bench.of_transfer(bytes) : 0;
      points.push_back({static_cast<double>(bytes), of_rank_0(world, std::vector{own}, "sharing measured links")[0]});
      if (points.back().y > kLongTransfer) break;
    }
    const TransferCurve curve(points);
    if (!probe.is_sum) {
      links.messages[probe.link] = curve;
      continue;
    }
    const std::pair key(probe.link, static_cast<int>(probe.ranks.size()));
    links.all_reduces[key] = curve;
    if (device.is_cpu()) continue;
    detail::SumsBeside sums(wire, group, curve, device);
    const std::vector own{takes_part ? sums.contention(stopwatch) : Contention{}};
    links.contention[key] = of_rank_0(world, own, "sharing measured contention")[0];
  }
  return links;
}

}  // namespace autopar::cost
