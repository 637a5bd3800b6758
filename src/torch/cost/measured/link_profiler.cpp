#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shard/tensor_buffer.hpp"
#include "torch/cost/measured/of_rank_0.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/device/room_for_messages.hpp"

namespace autopar::cost {

namespace {

/// Bytes of a transfer: from what latency decides to the largest buckets.
std::vector<std::int64_t> probe_sizes(c10::Device device) {
  std::vector<std::int64_t> sizes{1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 21, 1 << 22, 1 << 23};
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
    stopwatch_.run_beside(meeting());
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

  /// How much computation and these transfers delay each other, with the stopwatch's own work; messages go one way.
  /// @pre the device computes while it exchanges
  [[nodiscard]] Contention contention(const CostCurve& curve) {
    constexpr double kTransfers = 5e-3;        // seconds together, about
    constexpr double kLong = 3, kShort = 0.4;  // of the transfers' time: they end first, or last
    const devices::RoomForMessages room(!probe_.is_sum, device_);
    const Several several = several_of(kTransfers, curve);
    const double transfers = median_of([] {}, several);
    const auto delayed = [&](double share, double& computing) {
      const auto compute = [&] { stopwatch_.keep_busy(share * transfers); };
      computing = median_of(compute, {});
      return median_of(compute, several);
    };
    double of_long = 0, of_short = 0;
    const double with_long = delayed(kLong, of_long), with_short = delayed(kShort, of_short);
    return {std::clamp((with_long - of_long) / transfers, 0.0, 1.0),
            std::clamp((with_short - transfers) / of_short, 0.0, 1.0)};
  }

 private:
  struct Several {
    std::int64_t bytes = 4;  ///< of each
    int count = 0;
  };

  /// Of the size of gradient buckets or smaller, so many as take about this time together.
  [[nodiscard]] static Several several_of(double seconds, const CostCurve& curve) {
    constexpr std::int64_t kSizes[] = {1 << 25, 1 << 23, 1 << 20};
    constexpr int kMost = 200;
    const auto of_one = [&](std::int64_t bytes) { return curve(Bytes(bytes)).value(); };
    const auto fits = std::ranges::find_if(kSizes, [&](std::int64_t bytes) { return of_one(bytes) <= seconds; });
    const auto bytes = fits == std::end(kSizes) ? *std::rbegin(kSizes) : *fits;
    return {bytes, std::clamp(static_cast<int>(seconds / of_one(bytes)), 1, kMost)};
  }

  /// Median device time of work that the probe's ranks start together, with several transfers beside it.
  [[nodiscard]] double median_of(const std::function<void()>& work, const Several& several) {
    const Buffer buffer = buffer_of_size(several.bytes);
    std::vector<AnyTransport::Ticket> under_way;
    auto together = meeting();
    together.begin = [&] {
      for (int i = 0; i < several.count; ++i) under_way.push_back(started(buffer));
    };
    together.end = [&] {
      for (const auto& transfer : std::exchange(under_way, {})) wire_.wait(transfer);
    };
    stopwatch_.run_beside(std::move(together));
    const double seconds = seconds_of(work);
    stopwatch_.run_beside(meeting());
    return seconds;
  }

  [[nodiscard]] detail::StepStopwatch::Together meeting() {
    detail::StepStopwatch::Together together;
    together.meet = [this, token = buffer_of_size(4)] { transfer(token); };
    return together;
  }

  [[nodiscard]] bool is_first() const { return wire_.rank() == probe_.ranks.front(); }
  [[nodiscard]] Rank peer() const { return is_first() ? probe_.ranks.back() : probe_.ranks.front(); }
  /// A sum, or a message from the first rank to the last.
  [[nodiscard]] AnyTransport::Ticket started(const Buffer& buffer) {
    if (probe_.is_sum) return wire_.all_reduce(buffer, DType::kF32, group_);
    return is_first() ? wire_.send(buffer, peer(), {}) : wire_.receive(buffer, peer(), {});
  }

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
    const auto send = [&] {
      if (device_.is_cpu()) computing_.take();
      wire_.wait(wire_.send(buffer, peer(), {}));
    };
    const auto receive = [&] { wire_.wait(wire_.receive(buffer, peer(), {})); };
    if (is_first()) send();
    receive();
    if (!is_first()) send();
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
  const auto probes = link_probes(detail::of_rank_0(world, spans, "agreeing on the classes of links"), world.size());
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
      points.push_back(
          {static_cast<double>(bytes), detail::of_rank_0(world, std::vector{own}, "sharing measured links")[0]});
      if (points.back().y > kLongTransfer) break;
    }
    const CostCurve curve(points);
    const std::pair key(probe.link, static_cast<int>(probe.ranks.size()));
    if (probe.is_sum)
      links.all_reduces[key] = curve;
    else
      links.messages[probe.link] = curve;
    if (device.is_cpu()) continue;
    const std::vector own{takes_part ? bench.contention(curve) : Contention{}};
    const auto contention = detail::of_rank_0(world, own, "sharing measured contention")[0];
    if (probe.is_sum)
      links.contention[key] = contention;
    else
      links.message_delays[probe.link] = contention.of_computing;
  }
  return links;
}

}  // namespace autopar::cost
