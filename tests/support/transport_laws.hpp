#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/world.hpp>

/// The laws of `Transport` as properties of random traffic, for any World. They throw where Catch's assertions, which
/// are not for several threads, cannot be used.
namespace transport_laws {

using namespace autopar;

inline void require(bool condition, const std::string& law) {
  if (!condition) throw std::runtime_error("law broken: " + law);
}

inline Buffer buffer_of(const std::shared_ptr<std::vector<std::byte>>& bytes) {
  return {bytes->data(), bytes->size(), bytes};
}

inline std::vector<std::byte> pattern(std::uint32_t seed, std::size_t bytes) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> result(bytes);
  for (auto& byte : result) byte = static_cast<std::byte>(random() >> 7);
  return result;
}

struct Message {
  int from = 0;
  int to = 0;
  std::size_t bytes = 0;
  Tag tag;
};

enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };

struct SumStep {
  Collective kind = Collective::kAllReduce;
  std::size_t group = 0;
  std::size_t elements = 0;
  bool doubles = false;

  /// Of the whole buffer: those that have a part for each member are larger.
  [[nodiscard]] std::size_t whole(std::size_t members) const {
    if (kind == Collective::kAllReduce) return elements;
    return elements * members * (kind == Collective::kAllToAll ? 2 : 1);
  }
  [[nodiscard]] std::size_t element_bytes() const { return doubles ? 8 : 4; }
};

/// One step of the traffic that every rank derives from the seed: a message or a collective.
struct Step {
  bool is_sum = false;
  Message message;
  SumStep sum;
};

inline std::vector<Step> random_traffic(std::uint32_t seed, int ranks, std::size_t groups, int steps) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::vector<std::size_t> sizes{0, 1, 7, 64, 1000, 4096, 70'000, 400'000};
  std::vector<Step> traffic;
  for (int i = 0; i < steps; ++i) {
    Step step;
    step.is_sum = ranks == 1 || below(3) == 0;
    const std::size_t size = sizes[static_cast<std::size_t>(below(static_cast<int>(sizes.size())))];
    step.sum = {static_cast<Collective>(below(4)), static_cast<std::size_t>(below(static_cast<int>(groups))),
                size / 4 + size % 4, below(2) == 0};
    step.message = {below(ranks), 0, size, {below(9), below(9), below(2)}};
    if (ranks > 1) step.message.to = (step.message.from + 1 + below(ranks - 1)) % ranks;
    traffic.push_back(step);
  }
  return traffic;
}

/// Addend `member` of sum `step`: of very different magnitudes, so that another order of additions gives other bits.
template <class T>
std::vector<T> addend(std::uint32_t seed, std::size_t elements) {
  std::minstd_rand random(seed + 17);
  std::vector<T> values(elements);
  for (auto& value : values) {
    const auto mantissa = static_cast<T>(static_cast<double>(random()) / 1e9 - 1);
    value = mantissa * static_cast<T>(1 << (random() % 24));
  }
  return values;
}

template <class T>
std::vector<std::byte> expected_sum(std::uint32_t seed, std::size_t step, const std::vector<Rank>& members,
                                    std::size_t elements) {
  std::vector<T> total;
  for (const Rank member : members) {
    const auto part = addend<T>(seed + static_cast<std::uint32_t>(step * 31 + member.index()), elements);
    if (total.empty()) {
      total = part;
    } else {
      for (std::size_t i = 0; i < elements; ++i) total[i] += part[i];
    }
  }
  const auto raw = std::as_bytes(std::span(total));
  return {raw.begin(), raw.end()};
}

inline std::vector<std::byte> own_addend(std::uint32_t seed, std::size_t step, Rank self, const SumStep& sum,
                                         std::size_t members) {
  const auto mixed = seed + static_cast<std::uint32_t>(step * 31 + self.index());
  if (sum.doubles) {
    const auto values = addend<double>(mixed, sum.whole(members));
    const auto raw = std::as_bytes(std::span(values));
    return {raw.begin(), raw.end()};
  }
  const auto values = addend<float>(mixed, sum.whole(members));
  const auto raw = std::as_bytes(std::span(values));
  return {raw.begin(), raw.end()};
}

/// What a collective leaves in the buffer, and where: of a sum into shards only the own part is said, of an exchange of
/// parts what it receives.
struct Outcome {
  std::vector<std::byte> bytes;
  std::size_t begin = 0;
};
inline Outcome outcome(std::uint32_t seed, std::size_t step, const std::vector<Rank>& members, Rank self,
                       const SumStep& sum) {
  const auto part = sum.elements * sum.element_bytes();
  const auto position = static_cast<std::size_t>(std::find(members.begin(), members.end(), self) - members.begin());
  if (sum.kind == Collective::kAllGather || sum.kind == Collective::kAllToAll) {
    const bool one_each = sum.kind == Collective::kAllToAll;
    Outcome all{{}, one_each ? part * members.size() : 0};
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto whole = own_addend(seed, step, members[i], sum, members.size());
      const auto from = whole.begin() + static_cast<std::ptrdiff_t>((one_each ? position : i) * part);
      all.bytes.insert(all.bytes.end(), from, from + static_cast<std::ptrdiff_t>(part));
    }
    return all;
  }
  auto total = sum.doubles ? expected_sum<double>(seed, step, members, sum.whole(members.size()))
                           : expected_sum<float>(seed, step, members, sum.whole(members.size()));
  if (sum.kind == Collective::kAllReduce) return {std::move(total), 0};
  const auto from = total.begin() + static_cast<std::ptrdiff_t>(position * part);
  return {{from, from + static_cast<std::ptrdiff_t>(part)}, position * part};
}

inline AnyTransport::Ticket start(AnyTransport& transport, const SumStep& sum, Buffer buffer, GroupId group) {
  const auto dtype = sum.doubles ? DType::kF64 : DType::kF32;
  switch (sum.kind) {
    case Collective::kAllReduce:
      return transport.all_reduce(std::move(buffer), dtype, group);
    case Collective::kReduceScatter:
      return transport.reduce_scatter(std::move(buffer), dtype, group);
    case Collective::kAllGather:
      return transport.all_gather(std::move(buffer), group);
    case Collective::kAllToAll:
      break;
  }
  return transport.all_to_all(std::move(buffer), group);
}

/// Every message arrives once, unchanged and in order; every sum has the bits of the additions in the order of ranks,
/// on every member, whole or in shards; what is gathered are the members' parts, and what is exchanged those for this
/// rank; nothing waits for ever although ranks wait at random times.
inline void random_traffic_arrives(World& world, AnyTransport transport, std::uint32_t seed, int steps) {
  const int ranks = world.size();
  std::vector<std::vector<Rank>> groups;
  std::vector<GroupId> ids;
  for (int first = 0; first < ranks; ++first) {
    std::vector<Rank> members;
    for (int rank = first; rank < ranks; rank += first % 2 + 1) members.emplace_back(rank);
    groups.push_back(members);
    ids.push_back(transport.make_group(members));
  }
  struct Pending {
    AnyTransport::Ticket ticket;
    std::shared_ptr<std::vector<std::byte>> memory;
    Outcome expected;
    std::size_t step;
  };
  std::vector<Pending> pending;
  std::mt19937 whim(seed * 7 + static_cast<unsigned>(world.rank()));
  const auto finish = [&](std::size_t which) {
    transport.wait(pending[which].ticket);
    require(transport.done(pending[which].ticket), "an operation is done after wait");
    const auto& [bytes, begin] = pending[which].expected;
    require(std::equal(bytes.begin(), bytes.end(), pending[which].memory->begin() + static_cast<std::ptrdiff_t>(begin)),
            "step " + std::to_string(pending[which].step) + " of seed " + std::to_string(seed) + " has other bytes");
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
  };

  const auto traffic = random_traffic(seed, ranks, groups.size(), steps);
  for (std::size_t i = 0; i < traffic.size(); ++i) {
    const Step& step = traffic[i];
    Pending next;
    next.step = i;
    if (step.is_sum) {
      const auto& members = groups[step.sum.group];
      if (std::find(members.begin(), members.end(), world.rank_id()) == members.end()) continue;
      next.memory =
          std::make_shared<std::vector<std::byte>>(own_addend(seed, i, world.rank_id(), step.sum, members.size()));
      next.expected = outcome(seed, i, members, world.rank_id(), step.sum);
      next.ticket = start(transport, step.sum, buffer_of(next.memory), ids[step.sum.group]);
    } else {
      const auto content = pattern(seed + static_cast<std::uint32_t>(i), step.message.bytes);
      next.expected = {content, 0};
      if (step.message.from == world.rank()) {
        next.memory = std::make_shared<std::vector<std::byte>>(content);
        next.ticket = transport.send(buffer_of(next.memory), Rank(step.message.to), step.message.tag);
      } else if (step.message.to == world.rank()) {
        next.memory = std::make_shared<std::vector<std::byte>>(content.size());
        next.ticket = transport.receive(buffer_of(next.memory), Rank(step.message.from), step.message.tag);
      } else {
        continue;
      }
    }
    pending.push_back(std::move(next));
    while (!pending.empty() && whim() % 3 == 0) finish(whim() % pending.size());
  }
  while (!pending.empty()) finish(whim() % pending.size());
}

inline Blob blob(const std::string& text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

/// all_gather, broadcast, sums, barrier and bytes between two ranks, of small and large blobs.
inline void control_plane_agrees(World& world) {
  const auto size = static_cast<std::size_t>(world.size());
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{5}, std::size_t{248}, std::size_t{249}, std::size_t{90'000}}) {
    const auto mine = pattern(static_cast<std::uint32_t>(world.rank()), length + world.rank_id().index());
    const auto all = world.all_gather(mine, "test gather");
    require(all.size() == size, "one blob a rank");
    for (std::size_t rank = 0; rank < size; ++rank) {
      require(all[rank] == pattern(static_cast<std::uint32_t>(rank), length + rank),
              "all_gather gives each rank's bytes");
    }
    for (std::size_t root = 0; root < size; ++root) {
      const auto told = world.broadcast(world.rank_id().index() == root ? pattern(5, length) : blob("ignored"),
                                        Rank::of(root), "test broadcast");
      require(told == pattern(5, length), "broadcast gives the root's bytes");
    }
  }
  std::vector<double> doubles{1.5, static_cast<double>(world.rank())};
  world.all_reduce_sum(std::span(doubles), "test sum");
  require(doubles == std::vector<double>{1.5 * static_cast<double>(size), static_cast<double>(size * (size - 1)) / 2},
          "sums of doubles");
  std::vector<std::int64_t> integers{std::int64_t{1} << 60, -world.rank()};
  if (world.rank() > 0) integers[0] = 1;
  world.all_reduce_sum(std::span(integers), "test sum");
  require(integers[0] == (std::int64_t{1} << 60) + world.size() - 1, "sums of integers are exact");
  world.barrier();
  if (size > 1 && world.rank_id() == Rank(1)) world.send(pattern(9, 300'000), Rank(0), "test bytes");
  if (size > 1 && world.rank_id() == Rank(0)) {
    Blob landing(300'000);
    world.receive(landing, Rank(1), "test bytes");
    require(landing == pattern(9, 300'000), "bytes between two ranks");
  }
  world.barrier();
}

/// Messages of two transports do not mix, whatever their order.
inline void transports_are_independent(World& world) {
  if (world.size() < 2) return;
  AnyTransport first = world.make_transport();
  AnyTransport second = world.make_transport();
  const Tag tag{1, 2, 0};
  const auto a = std::make_shared<std::vector<std::byte>>(pattern(1, 50));
  const auto b = std::make_shared<std::vector<std::byte>>(pattern(2, 50));
  if (world.rank_id() == Rank(0)) {
    const auto one = first.send(buffer_of(a), Rank(1), tag);
    const auto two = second.send(buffer_of(b), Rank(1), tag);
    first.wait(one);
    second.wait(two);
  } else if (world.rank_id() == Rank(1)) {
    const auto into_a = std::make_shared<std::vector<std::byte>>(50);
    const auto into_b = std::make_shared<std::vector<std::byte>>(50);
    const auto two = second.receive(buffer_of(into_b), Rank(0), tag);
    const auto one = first.receive(buffer_of(into_a), Rank(0), tag);
    second.wait(two);
    first.wait(one);
    require(*into_a == *a && *into_b == *b, "each transport has its own messages");
  }
  world.barrier();
}

}  // namespace transport_laws
