#include <autopar/runtime/config.hpp>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

#include <autopar/runtime/loopback.hpp>

#if AUTOPAR_HAS_CUDA

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace gpu_nccl_transport_test {

using namespace autopar;
using transport_laws::require;

void check(cudaError_t code) { require(code == cudaSuccess, std::string("CUDA: ") + cudaGetErrorString(code)); }

/// A compute stream on this rank's device.
class Stream {
 public:
  explicit Stream(int device) {
    check(cudaSetDevice(device));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void synchronise() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

Buffer on_device(const std::vector<std::byte>& content, const Stream& stream) {
  void* data = nullptr;
  check(cudaMallocAsync(&data, std::max<std::size_t>(content.size(), 1), stream.get()));
  check(cudaMemcpyAsync(data, content.data(), content.size(), cudaMemcpyHostToDevice, stream.get()));
  const cudaStream_t raw = stream.get();
  return {static_cast<std::byte*>(data), content.size(), {data, [raw](void* p) { cudaFreeAsync(p, raw); }}};
}

std::vector<std::byte> on_host(const Buffer& buffer, const Stream& stream) {
  std::vector<std::byte> content(buffer.bytes);
  check(cudaMemcpyAsync(content.data(), buffer.data, buffer.bytes, cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronise();
  return content;
}

AnyTransport nccl(World& world, const Stream& stream) {
  return world.make_transport({TransportKind::kNccl, world.local_rank(), [raw = stream.get()] { return raw; }});
}

std::vector<DirectedPair> all_pairs(int ranks) {
  std::vector<DirectedPair> pairs;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from != to) pairs.push_back({Rank(from), Rank(to)});
    }
  }
  return pairs;
}

/// Small whole numbers, so that sums are exact in any order.
std::vector<std::byte> whole_numbers(std::uint32_t seed, std::size_t elements, bool doubles) {
  std::minstd_rand random(seed + 3);
  std::vector<std::byte> bytes(elements * (doubles ? 8 : 4));
  for (std::size_t i = 0; i < elements; ++i) {
    const auto value = static_cast<double>(random() % 2001) - 1000;
    const auto single = static_cast<float>(value);
    if (doubles) {
      std::memcpy(bytes.data() + 8 * i, &value, 8);
    } else {
      std::memcpy(bytes.data() + 4 * i, &single, 4);
    }
  }
  return bytes;
}

template <class T>
std::vector<std::byte> sum_of(const std::vector<std::vector<std::byte>>& addends) {
  std::vector<T> total(addends.front().size() / sizeof(T));
  for (const auto& addend : addends) {
    for (std::size_t i = 0; i < total.size(); ++i) {
      T value;
      std::memcpy(&value, addend.data() + i * sizeof(T), sizeof(T));
      total[i] += value;
    }
  }
  const auto raw = std::as_bytes(std::span(total));
  return {raw.begin(), raw.end()};
}

void random_traffic_arrives(World& world, std::uint32_t seed) {
  const Stream stream(world.local_rank());
  AnyTransport transport = nccl(world, stream);
  transport.connect(all_pairs(world.size()));
  std::vector<std::vector<Rank>> groups;
  std::vector<GroupId> ids;
  for (int first = 0; first < world.size(); ++first) {
    std::vector<Rank> members;
    for (int rank = first; rank < world.size(); ++rank) members.emplace_back(rank);
    groups.push_back(members);
    ids.push_back(transport.make_group(members));
  }
  struct Pending {
    AnyTransport::Ticket ticket;
    Buffer buffer;
    std::vector<std::byte> expected;
  };
  std::vector<Pending> pending;
  const auto traffic = transport_laws::random_traffic(seed, world.size(), groups.size(), 120);
  for (std::size_t i = 0; i < traffic.size(); ++i) {
    const auto& step = traffic[i];
    const auto mixed = seed + static_cast<std::uint32_t>(i * 31);
    if (step.is_sum) {
      const auto& members = groups[step.sum.group];
      if (std::find(members.begin(), members.end(), world.rank_id()) == members.end()) continue;
      std::vector<std::vector<std::byte>> addends;
      for (const Rank member : members) {
        addends.push_back(whole_numbers(mixed + static_cast<std::uint32_t>(member.value()),
                                        step.sum.whole(members.size()), step.sum.doubles));
      }
      const auto self =
          static_cast<std::size_t>(std::find(members.begin(), members.end(), world.rank_id()) - members.begin());
      Buffer buffer = on_device(addends[self], stream);
      auto ticket = transport_laws::start(transport, step.sum, buffer, ids[step.sum.group]);
      const auto part = step.sum.elements * step.sum.element_bytes();
      const bool one_each = step.sum.kind == transport_laws::Collective::kAllToAll;
      if (one_each || step.sum.kind == transport_laws::Collective::kAllGather) {
        std::vector<std::byte> all;
        for (std::size_t m = 0; m < members.size(); ++m) {
          const auto from = addends[m].begin() + static_cast<std::ptrdiff_t>((one_each ? self : m) * part);
          all.insert(all.end(), from, from + static_cast<std::ptrdiff_t>(part));
        }
        const std::size_t begin = one_each ? buffer.bytes / 2 : 0;
        pending.push_back({ticket, {buffer.data + begin, all.size(), buffer.owner}, all});
        continue;
      }
      auto total = step.sum.doubles ? sum_of<double>(addends) : sum_of<float>(addends);
      if (step.sum.kind == transport_laws::Collective::kReduceScatter) {
        const auto from = total.begin() + static_cast<std::ptrdiff_t>(self * part);
        total = {from, from + static_cast<std::ptrdiff_t>(part)};
        const Buffer own{buffer.data + self * part, part, buffer.owner};
        pending.push_back({ticket, own, total});
        continue;
      }
      pending.push_back({ticket, buffer, total});
      continue;
    }
    const auto content = transport_laws::pattern(mixed, step.message.bytes);
    if (step.message.from == world.rank()) {
      const Buffer buffer = on_device(content, stream);
      pending.push_back({transport.send(buffer, Rank(step.message.to), step.message.tag), buffer, content});
    } else if (step.message.to == world.rank()) {
      const Buffer buffer = on_device(std::vector<std::byte>(content.size()), stream);
      pending.push_back({transport.receive(buffer, Rank(step.message.from), step.message.tag), buffer, content});
    }
  }
  for (const auto& each : pending) {
    transport.wait(each.ticket);
    require(on_host(each.buffer, stream) == each.expected, "bytes after wait, in seed " + std::to_string(seed));
    require(transport.done(each.ticket), "an operation is done once the compute stream has passed its wait");
  }
  world.barrier();
}

TEST_CASE("NCCL transport: transport laws hold under random traffic") {
  World world(0, nullptr);
  for (std::uint32_t seed = 1; seed <= 3; ++seed) REQUIRE_NOTHROW(random_traffic_arrives(world, seed));
}

TEST_CASE("NCCL transport: operation uses the stream current at start") {
  World world(0, nullptr);
  const Stream first(world.local_rank()), second(world.local_rank());
  const Stream* now = &first;
  AnyTransport transport =
      world.make_transport({TransportKind::kNccl, world.local_rank(), [&now] { return now->get(); }});
  transport.connect({{Rank(0), Rank(1)}});
  constexpr std::size_t kBytes = 1 << 20, kBusy = 64 << 20;
  const auto content = transport_laws::pattern(5, kBytes);
  now = &second;
  if (world.rank() == 0) {
    const Buffer busy = on_device(std::vector<std::byte>(kBusy), second);
    const Buffer buffer = on_device(std::vector<std::byte>(kBytes), second);
    second.synchronise();
    for (int i = 0; i < 500; ++i) check(cudaMemsetAsync(busy.data, i, kBusy, second.get()));  // milliseconds
    const Buffer late = on_device(content, second);
    check(cudaMemcpyAsync(buffer.data, late.data, kBytes, cudaMemcpyDeviceToDevice, second.get()));
    transport.wait(transport.send(buffer, Rank(1), {}));
    second.synchronise();
  } else if (world.rank() == 1) {
    const Buffer buffer = on_device(std::vector<std::byte>(kBytes), second);
    transport.wait(transport.receive(buffer, Rank(0), {}));
    REQUIRE((on_host(buffer, second) == content));  // not shown: torch prints vectors, but no bytes
  }
  world.barrier();
}

TEST_CASE("NCCL transport: no operation blocks the host") {
  World world(0, nullptr);
  const Stream stream(world.local_rank());
  AnyTransport transport = nccl(world, stream);
  transport.connect({{Rank(0), Rank(1)}});
  if (world.rank() == 1) {
    const Buffer buffer = on_device(std::vector<std::byte>(1 << 20), stream);
    const auto begin = std::chrono::steady_clock::now();
    const auto ticket = transport.receive(buffer, Rank(0), {});
    transport.wait(ticket);
    const auto waited = std::chrono::steady_clock::now() - begin;
    REQUIRE_FALSE(transport.done(ticket));
    world.barrier("the receive is posted");
    REQUIRE((on_host(buffer, stream) == transport_laws::pattern(4, 1 << 20)));
    REQUIRE(waited < std::chrono::milliseconds(100));
  } else {
    world.barrier("the receive is posted");
    if (world.rank() == 0) {
      const Buffer buffer = on_device(transport_laws::pattern(4, 1 << 20), stream);
      transport.wait(transport.send(buffer, Rank(1), {}));
      stream.synchronise();
    }
  }
  world.barrier();
}

TEST_CASE("NCCL transport: failure frees a device waiting for a message") {
  World processes(0, nullptr);
  if (processes.rank() == 0) {
    std::atomic<int> told{0};
    std::chrono::duration<double> waited{};
    WorldOptions options;
    options.stall = {Seconds(5), Seconds(10)};
    const auto body = [&](World& world) {
      const Stream stream(world.local_rank());
      AnyTransport transport = nccl(world, stream);
      transport.connect(all_pairs(2));
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        world.fail("forward of stage 1", "out of memory");
        return;
      }
      const Buffer buffer = on_device(std::vector<std::byte>(4096), stream);
      const auto ticket = transport.receive(buffer, Rank(1), {});
      transport.wait(ticket);
      const auto begin = std::chrono::steady_clock::now();
      stream.synchronise();
      waited = std::chrono::steady_clock::now() - begin;
      try {
        transport.wait(ticket);
      } catch (const TransportError& error) {
        told += error.peer() == Rank(1) && std::string(error.what()).find("out of memory") != std::string::npos;
      }
    };
    loopback::run(2, body, options);
    REQUIRE(told == 1);
    REQUIRE(waited.count() < 5);
  }
  processes.barrier();
}

TEST_CASE("NCCL transport: missing device is named") {
  World world(0, nullptr);
  const Stream stream(world.local_rank());
  const TransportOptions beyond{TransportKind::kNccl, 99, [raw = stream.get()] { return raw; }};
  REQUIRE_THROWS_AS(world.make_transport(beyond), InvalidArgument);
}

}  // namespace gpu_nccl_transport_test

#else

TEST_CASE("NCCL transport: build without CUDA refuses it by name") {
  autopar::World world(0, nullptr);
  REQUIRE_THROWS_AS(world.make_transport({autopar::TransportKind::kNccl, 0, nullptr}), autopar::InvalidArgument);
}

#endif
