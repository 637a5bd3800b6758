#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>

#include "shard/tensor_buffer.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/measured/stopwatch.hpp"

namespace autopar::cost {

namespace {

constexpr std::int64_t kLinkProbes[] = {1 << 10, 1 << 16, 1 << 20, 1 << 23};  // bytes
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

class LinkBench {
 public:
  LinkBench(AnyTransport& wire, c10::Device device) : wire_(wire), device_(device) {}

  /// Seconds by bytes, as measured on this rank.
  [[nodiscard]] FittedLine measure(const LinkProbe& probe, GroupId group) {
    std::vector<MeasuredPoint> points;
    for (const auto bytes : kLinkProbes) {
      const auto buffer = buffer_of(at::empty({bytes / 4}, at::TensorOptions(at::kFloat).device(device_)));
      std::vector<double> times;
      for (int i = 0; i <= kLinkRepetitions; ++i) {
        const double seconds = detail::seconds_of(device_, [&] {
          if (probe.is_sum)
            wire_.wait(wire_.all_reduce(buffer, DType::kF32, group));
          else
            there_and_back(probe, buffer);
        });
        if (i > 0) times.push_back(probe.is_sum ? seconds : one_way(seconds));  // the first one sets up connections
      }
      points.push_back({static_cast<double>(bytes), detail::median(times)});
    }
    return fit_line(points);
  }

 private:
  void there_and_back(const LinkProbe& probe, const Buffer& buffer) {
    const bool first = wire_.rank() == probe.ranks.front();
    const Rank peer = first ? probe.ranks.back() : probe.ranks.front();
    const auto send = [&] {
      if (device_.is_cpu()) computing_.take();
      wire_.wait(wire_.send(buffer, peer, {}));
    };
    const auto receive = [&] { wire_.wait(wire_.receive(buffer, peer, {})); };
    if (first) send();
    receive();
    if (!first) send();
  }

  /// @param seconds  of a message there, one back, and the computation before them
  [[nodiscard]] double one_way(double seconds) const {
    const double before = device_.is_cpu() ? std::chrono::duration<double>(Computing::kLength).count() : 0;
    return std::max(0.0, seconds / 2 - before);
  }

  AnyTransport& wire_;
  c10::Device device_;
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
  LinkBench bench(wire, device);
  std::vector<FittedLine> lines;
  for (const auto& probe : probes) {
    const auto group = probe.is_sum ? wire.make_group(probe.ranks) : GroupId{};
    world.barrier("measuring links");
    const bool takes_part = std::find(probe.ranks.begin(), probe.ranks.end(), world.rank_id()) != probe.ranks.end();
    lines.push_back(takes_part ? bench.measure(probe, group) : FittedLine{});
  }
  lines = of_rank_0(world, lines, "sharing measured links");  // rank 0 is in every pair and group
  MeasuredLinks links;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const auto& probe = probes[i];
    if (probe.is_sum)
      links.all_reduces[{probe.link, static_cast<int>(probe.ranks.size())}] = lines[i];
    else
      links.messages[probe.link] = lines[i];
  }
  return links;
}

}  // namespace autopar::cost
