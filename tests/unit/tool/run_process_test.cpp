// Processes and signals of `autopar run`.

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <unistd.h>

#include <autopar/core/error.hpp>

#include "run/process.hpp"
#include "run/questions.hpp"
#include "run/signals.hpp"

using namespace autopar;
using namespace autopar::tool;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("run: questions are answered side by side, or not in time", "[tool]") {
  Signals signals;
  const auto begin = std::chrono::steady_clock::now();
  const auto answers = answers_of({{"sh", "-c", "echo out; echo err >&2"},
                                   {"sleep", "60"},
                                   {"no-such-program-anywhere"},
                                   {"sh", "-c", "exit 3"},
                                   {"sh", "-c", "sleep 60 & seq 100000"},
                                   {"sh", "-c", "test \"$QUESTION\" = 'a b' && test -z \"$HOME\" && cat"}},
                                  {"PATH=/usr/bin:/bin", "QUESTION=a b"}, signals, 1.5);
  CHECK(seconds_since(begin) < 20);
  REQUIRE(answers.size() == 6);
  CHECK(answers[0] == Answer{true, "out\n", "err\n"});
  CHECK_FALSE(answers[1].is_done);
  CHECK_FALSE(answers[2].is_done);
  CHECK(contains(answers[2].complaints, "no-such-program-anywhere"));
  CHECK_FALSE(answers[3].is_done);
  CHECK(answers[4].is_done);
  CHECK(answers[4].output.size() == kMostAnswer);
  CHECK(answers[5].is_done);  // standard input is empty
}

TEST_CASE("run: a signal that asks for the end ends questions", "[tool]") {
  Signals signals;
  const auto begin = std::chrono::steady_clock::now();
  const auto answers = answers_of({{"sh", "-c", "kill -TERM " + std::to_string(::getpid()) + "; sleep 60"}},
                                  inherited_environment(), signals, 60);
  CHECK(seconds_since(begin) < 30);
  CHECK_FALSE(answers[0].is_done);
  CHECK(signals.first_request() == SIGTERM);
  CHECK(signals.take_requests() == std::vector<int>{SIGTERM});
  CHECK(signals.take_requests().empty());
}

TEST_CASE("run: signals keep their order, and ignored ones are not seen", "[tool]") {
  const auto before = std::signal(SIGUSR1, SIG_IGN);
  {
    Signals signals;
    for (const int signal : {SIGUSR1, SIGHUP, SIGINT}) ::kill(::getpid(), signal);
    CHECK_FALSE(signals.read());
    auto requests = signals.take_requests();
    std::ranges::sort(requests);  // the system hands on those that wait by number
    CHECK(requests == std::vector<int>{SIGINT, SIGTERM});
    ::kill(::getpid(), SIGWINCH);
    CHECK(signals.read());
    CHECK(signals.requests_seen() == 2);
    ::kill(::getpid(), SIGINT);  // not read: the end of the object takes it
  }
  std::signal(SIGUSR1, before);
}

TEST_CASE("run: a process has a group, a status and a program that is there", "[tool]") {
  Signals signals;
  CHECK(contains(refusal([&] { Process({"/no/such/program"}, {}, 1, 2, signals); }),
                 "'/no/such/program' cannot be started"));
  Process process({"sh", "-c", "kill -9 $$"}, inherited_environment(), 1, 2, signals);
  const auto begin = std::chrono::steady_clock::now();
  while (!process.wait_status() && seconds_since(begin) < 20) ::usleep(1000);
  REQUIRE(process.wait_status());
  CHECK(shell_status(*process.wait_status()) == 137);
  process.send(SIGKILL);  // nobody, as it is gone
  process.send_to_group(SIGKILL);
}
