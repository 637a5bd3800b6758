// One rank of a world in which something goes wrong; failure.sh starts it and judges what comes out.
// usage: failure_ranks SCENARIO [MARKER]

#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <unistd.h>

using namespace autopar;
using namespace std::chrono_literals;

namespace {

/// Training steps as a session makes them: agree, then exchange a message with the neighbour and sum.
void steps(World& world, AnyTransport transport, int count) {
  const GroupId everyone = transport.make_group([&] {
    std::vector<Rank> ranks;
    for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
    return ranks;
  }());
  for (int step = 0; step < count; ++step) {
    (void)world.all_gather({}, "agreement on step " + std::to_string(step));
    const auto memory = std::make_shared<std::vector<std::byte>>(64 << 10);
    transport.wait(transport.all_reduce({memory->data(), memory->size(), memory}, DType::kF32, everyone));
  }
}

void misbehave(World& world, AnyTransport transport, const std::string& scenario) {
  steps(world, transport, 3);
  const bool culprit = world.rank() == world.size() - 1;
  if (culprit && scenario == "throws") throw std::domain_error("no such layer");
  if (scenario.starts_with("alike")) {
    std::this_thread::sleep_for(100ms);  // until the last step has ended on every rank
    throw std::domain_error("wrong on all ranks");
  }
  if (scenario == "planned") {
    world.expect_exception();
    throw std::domain_error("planned, and not run");
  }
  if (culprit && scenario == "tells") {
    world.fail("forward of stage 1", "out of memory");
    throw std::domain_error("out of memory");
  }
  if (culprit && scenario == "dies") ::kill(::getpid(), SIGKILL);
  if (culprit && scenario == "exits") ::_exit(0);
  if (culprit && scenario == "stalls") std::this_thread::sleep_for(10min);
  if (culprit && scenario == "leaves") return;
  if (!culprit && scenario == "dies-busy") std::this_thread::sleep_for(10min);
  if (culprit && scenario == "dies-busy") ::kill(::getpid(), SIGKILL);
  if (culprit && scenario == "slow") std::this_thread::sleep_for(1500ms);
  steps(world, transport, 3);
  if (culprit && scenario == "late") std::this_thread::sleep_for(3s);
}

void run(int argc, char** argv, const std::string& scenario) {
  WorldOptions options;
  options.stall = {Seconds(1), Seconds(3)};
  if (scenario == "wrong-size") options.expected_size = 7;
  World world(argc, argv, options);
  try {
    misbehave(world, world.make_transport(), scenario);
    std::printf("rank %d is done\n", world.rank());
  } catch (const TransportError& error) {
    std::fprintf(stderr, "rank %d TransportError: %s\n", world.rank(), error.what());
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  if (scenario == "alike-uncaught") run(argc, argv, scenario);
  try {
    run(argc, argv, scenario);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
  return 0;
}
