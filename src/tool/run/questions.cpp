#include "questions.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file_descriptor.hpp>

#include "process.hpp"

namespace autopar::tool {

namespace {

using Clock = std::chrono::steady_clock;

/// A command, and what it has printed until now.
class Question {
 public:
  Question(const Command& command, const std::vector<std::string>& environment, const Signals& signals) {
    FileDescriptor out = pipe_to(out_), err = pipe_to(err_);
    process_.emplace(command, environment, out.number(), err.number(), signals);
  }

  [[nodiscard]] int out() const { return out_.number(); }
  [[nodiscard]] int err() const { return err_.number(); }

  void read() {
    read_from(out_, answer_.output);
    read_from(err_, answer_.complaints);
  }
  [[nodiscard]] bool is_over() { return process_->wait_status().has_value(); }
  /// When it is over.
  [[nodiscard]] Answer answer() {
    read();
    answer_.is_done = process_->wait_status() == 0;
    return answer_;
  }

 private:
  static FileDescriptor pipe_to(FileDescriptor& reader) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) throw InvalidArgument("no pipe can be made: too many files are open");
    reader = FileDescriptor(ends[0]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return FileDescriptor(ends[1]);
  }

  static void read_from(FileDescriptor& descriptor, std::string& text) {
    std::array<char, 4096> bytes;
    while (descriptor) {
      const auto got = ::read(descriptor.number(), bytes.data(), bytes.size());
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) return descriptor.close();
      text.append(bytes.data(), std::min(static_cast<std::size_t>(got), kMostAnswer - text.size()));
    }
  }

  FileDescriptor out_, err_;
  std::optional<Process> process_;
  Answer answer_;
};

/// Waits until something has come or `end` is there. @return false: it is
bool wait_for(const std::vector<std::unique_ptr<Question>>& questions, const Signals& signals, Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  if (left <= 0) return false;
  std::vector<pollfd> polled{{signals.descriptor(), POLLIN, 0}};
  for (const auto& question : questions) {
    if (!question) continue;
    for (const int descriptor : {question->out(), question->err()}) polled.push_back({descriptor, POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(left));
  return true;
}

}  // namespace

std::vector<Answer> answers_of(const std::vector<Command>& commands, const std::vector<std::string>& environment,
                               Signals& signals, double limit) {
  std::vector<Answer> answers(commands.size());
  std::vector<std::unique_ptr<Question>> questions;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    try {
      questions.push_back(std::make_unique<Question>(commands[i], environment, signals));
    } catch (const InvalidArgument& error) {
      questions.push_back(nullptr);
      answers[i].complaints = error.what();
    }
  }
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit));
  const int requests = signals.requests_seen();
  const auto is_left = [](const auto& question) { return question != nullptr; };
  while (std::ranges::any_of(questions, is_left) && signals.requests_seen() == requests) {
    for (std::size_t i = 0; i < questions.size(); ++i) {
      if (!questions[i]) continue;
      questions[i]->read();
      if (!questions[i]->is_over()) continue;
      answers[i] = questions[i]->answer();
      questions[i].reset();
    }
    if (!std::ranges::any_of(questions, is_left) || !wait_for(questions, signals, end)) break;
    signals.read();
  }
  return answers;
}

}  // namespace autopar::tool
