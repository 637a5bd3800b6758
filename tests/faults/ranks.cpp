// One rank of a job; faults.sh starts it, some with a fault, and judges what comes out.
// usage: fault_ranks FAULT MARKER

#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>

using namespace autopar;
using namespace std::chrono_literals;

namespace {

constexpr int kFaultyStep = 3;
constexpr int kSteps = 200;

/// What a faulty rank does in the middle of its training loop.
void misbehave(World& world, const std::string& fault) {
  if (fault == "killed") ::kill(::getpid(), SIGKILL);
  if (fault == "crashes") ::kill(::getpid(), SIGSEGV);
  if (fault == "exits") std::exit(0);
  if (fault == "exits-hard") ::_exit(0);
  if (fault == "throws" || fault == "throws-uncaught") throw std::domain_error("no such layer");
  if (fault == "tells") {
    world.fail("forward of stage 1", "out of memory");
    ::_exit(1);
  }
  if (fault == "stops") ::raise(SIGSTOP);
}

/// Training steps as a session makes them: agree, then sum.
void train(World& world, const std::string& fault) {
  AnyTransport transport = world.make_transport();
  std::vector<Rank> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
  const GroupId everyone = transport.make_group(ranks);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kFaultyStep) misbehave(world, fault);
    (void)world.all_gather({}, "step " + std::to_string(step));
    const auto memory = std::make_shared<std::vector<std::byte>>(64 << 10);
    transport.wait(transport.all_reduce({memory->data(), memory->size(), memory}, DType::kF32, everyone));
  }
}

int run(int argc, char** argv, const std::string& fault) {
  if (fault == "absent") std::this_thread::sleep_for(10min);
  if (fault == "ends-early") return 0;
  World world(argc, argv);
  if (fault == "stops-first") ::raise(SIGSTOP);
  world.barrier("step 0");
  world.set_stall_limits({Seconds(1), Seconds(2)});
  train(world, fault);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  if (fault == "throws-uncaught") return run(argc, argv, fault);
  try {
    return run(argc, argv, fault);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
