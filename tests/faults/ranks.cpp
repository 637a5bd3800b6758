// One rank of a job; faults.sh starts it, some with a fault, and judges what comes out.
// usage: fault_ranks FAULT MARKER
//        fault_ranks FAULT MARKER RANK LAST_START [STEPS], under `autopar run` (supervised.sh): that rank has the fault
//        in the first LAST_START starts. Each start goes on with the step that the earlier one reached; "again-FAULT"
//        begins anew.

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/step_page.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/runtime/world.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>

using namespace autopar;
using namespace std::chrono_literals;

namespace {

constexpr int kFaultyStep = 3;
constexpr int kSteps = 200;

/// A signal that asks for the end, as training::Interrupt takes it.
volatile std::sig_atomic_t asked = 0;

struct Fault {
  std::string kind;
  int rank = -1;       ///< -1: this one, whichever it is
  int last_start = 1;  ///< of those that have it
  int steps = kSteps;
  bool begins_anew = false;
};

/// How far supervised ranks have come.
class Progress {
 public:
  explicit Progress(const World& world) : world_(world), supervision_(supervision(process_environment())) {
    if (!supervision_) return;
    const auto file = supervision_->folder / "step";
    if (const auto reached = step_reached(file)) first_ = static_cast<int>(reached->step);
    if (world.rank() == 0) page_.emplace(file);
  }

  [[nodiscard]] int first() const { return first_; }
  [[nodiscard]] bool has(const Fault& fault) const {
    return fault.rank < 0 || (fault.rank == world_.rank() && supervision_ && supervision_->start <= fault.last_start);
  }
  void reach(int step) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    if (page_) page_->reach({step, std::chrono::duration<double>(now).count()});
  }

 private:
  const World& world_;
  std::optional<Supervision> supervision_;
  std::optional<StepPage> page_;
  int first_ = 0;
};

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
/// @return 128 + the signal that has asked for the end, or 0
int train(World& world, const Fault& fault) {
  AnyTransport transport = world.make_transport();
  std::vector<Rank> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
  const GroupId everyone = transport.make_group(ranks);
  Progress progress(world);
  const int first = fault.begins_anew ? 0 : progress.first();
  world.barrier("first step");
  for (int step = first; step < fault.steps; ++step) {
    if (step == first + kFaultyStep && progress.has(fault)) misbehave(world, fault.kind);
    const auto signal = static_cast<std::byte>(asked);
    int all = 0;
    for (const auto& other : world.all_gather({&signal, 1}, "step " + std::to_string(step)))
      all = std::max(all, std::to_integer<int>(other.at(0)));
    if (all != 0) return 128 + all;
    const auto memory = std::make_shared<std::vector<std::byte>>(64 << 10);
    transport.wait(transport.all_reduce({memory->data(), memory->size(), memory}, DType::kF32, everyone));
    progress.reach(step + 1);
    if (fault.rank >= 0) std::this_thread::sleep_for(10ms);
  }
  return 0;
}

int run(int argc, char** argv, const Fault& fault) {
  if (fault.kind == "absent") std::this_thread::sleep_for(10min);
  if (fault.kind == "ends-early") return 0;
  World world(argc, argv);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {  // MPI has its own until now
    if (fault.rank >= 0) std::signal(signal, [](int number) { asked = number; });
  }
  if (fault.kind == "stops-first") ::raise(SIGSTOP);
  world.barrier("step 0");
  world.set_stall_limits({Seconds(1), Seconds(2)});
  return train(world, fault);
}

}  // namespace

int main(int argc, char** argv) {
  Fault fault;
  if (argc > 1) fault.kind = argv[1];
  const std::string again = "again-";
  fault.begins_anew = fault.kind.starts_with(again);
  if (fault.begins_anew) fault.kind.erase(0, again.size());
  if (argc > 4) {
    fault.rank = std::stoi(argv[3]);
    fault.last_start = std::stoi(argv[4]);
  }
  if (argc > 5) fault.steps = std::stoi(argv[5]);
  if (fault.kind == "throws-uncaught") return run(argc, argv, fault);
  try {
    return run(argc, argv, fault);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
