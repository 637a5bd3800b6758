#include "other_half.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace train {

namespace {

std::array<int, 2> made_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe to the other half");
  return ends;
}

/// The environment without what makes a process a rank of mpiexec's: the other half is a world of its own.
std::vector<char*> environment() {
  std::vector<char*> own;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto of_launcher = [&](const char* prefix) { return text.starts_with(prefix); };
    if (std::ranges::none_of(std::array{"PMI", "OMPI_", "MPI_", "MPIR_", "HYD"}, of_launcher)) own.push_back(*entry);
  }
  own.push_back(nullptr);
  return own;
}

}  // namespace

OtherHalf::OtherHalf(std::vector<std::string> arguments) {
  for (const char* more : {"--mode", "libtorch", "--on-demand"}) arguments.emplace_back(more);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const auto input = made_pipe(), output = made_pipe();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  const int failed = posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, pointers.data(), environment().data());
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  to_ = fdopen(input[1], "w");
  from_ = fdopen(output[0], "r");
  if (failed != 0) throw std::runtime_error("the other half does not start");
}

OtherHalf::~OtherHalf() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

std::string OtherHalf::line() {
  std::string text;
  for (int c = 0; (c = std::fgetc(from_)) != EOF && c != '\n';) text.push_back(static_cast<char>(c));
  if (text.empty()) throw std::runtime_error("the libtorch half ended without a figure; see what it wrote above");
  return text;
}

void OtherHalf::wait_until_ready() { line(); }

double OtherHalf::step() {
  std::fputs("step\n", to_);
  std::fflush(to_);
  return std::stod(line());
}

nlohmann::json OtherHalf::finish() {
  std::fclose(std::exchange(to_, nullptr));
  return nlohmann::json::parse(line());
}

}  // namespace train
