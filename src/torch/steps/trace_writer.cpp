#include "torch/steps/trace_writer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <utility>

#include <autopar/core/error.hpp>

#include "torch/planning/plan_files.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::steps {

namespace {

constexpr const char* kOption = "trace_file";

/// Names a run, so that a rank can tell rank 0's folder from one of its own disk.
std::string new_run() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

/// Names the kernel, which has one steady clock.
std::string boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  return text;
}

template <class Number>
std::span<const std::byte> bytes_of(const Number& number) {
  return std::as_bytes(std::span(&number, 1));
}

template <class Number>
Number number_of(const Blob& blob) {
  Number number{};
  if (blob.size() != sizeof(number)) throw InvalidArgument("ranks of a trace exchange numbers of different sizes");
  std::memcpy(&number, blob.data(), sizeof(number));
  return number;
}

}  // namespace

TraceWriter::TraceWriter(const Options& options, planning::OptionalFiles& files, ranks::Ranks& ranks)
    : options_(options),
      files_(files),
      ranks_(ranks),
      log_(ranks.logger(LogModule::kSession)),
      parts_(options.trace_file, ranks.size(), planning::overwrite_of(options)) {}

void TraceWriter::warn_of(const std::vector<std::string>& skipped) {
  for (const auto& line : skipped) log_.warn(line);
}

bool TraceWriter::all_share() const {
  return std::ranges::all_of(shares_, [](bool shares) { return shares; });
}

Seconds TraceWriter::seconds(TraceClock::Time time) const {
  return Seconds(std::chrono::duration<double>(time - origin_).count());
}

void TraceWriter::keep_leftovers() {
  const auto kept = parts_.recover();
  warn_of(kept.skipped);
  if (kept.ranks == 0) return;
  log_.info(kept.path.string() + " has the timelines of " + std::to_string(kept.ranks) +
            " ranks of a run that was killed");
}

bool TraceWriter::start() {
  shares_.assign(static_cast<std::size_t>(ranks_.size()), true);
  if (ranks_.is_first()) files_.write(kOption, [&] { keep_leftovers(); });
  if (ranks_.size() > 1) {
    if (!find_folder()) return false;
    compare_clocks();
  } else {
    origin_ = std::chrono::steady_clock::now();
  }
  return true;
}

bool TraceWriter::find_folder() {
  constexpr const char* kAction = "preparing the trace";
  std::string run;
  if (ranks_.is_first()) {
    run = new_run();
    if (!files_.write(kOption, [&] { parts_.open(run); })) run.clear();
  }
  run = ranks::text_of(ranks_.broadcast(ranks::blob_of(run), Rank(0), kAction));
  if (run.empty()) return false;
  const auto mine = std::byte{parts_.run() == run};
  const auto answers = ranks_.all_gather(std::span(&mine, 1), kAction);
  for (std::size_t r = 0; r < answers.size(); ++r) shares_[r] = answers[r] == Blob{std::byte{1}};
  return true;
}

void TraceWriter::compare_clocks() {
  constexpr const char* kAction = "comparing clocks for the trace";
  const auto boots = ranks_.all_gather(ranks::blob_of(boot()), kAction);  // also: all go on from here
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  const auto times = ranks_.all_gather(bytes_of(now), kAction);
  const auto& mine = boots[ranks_.rank().index()];
  const bool is_same_clock = !mine.empty() && mine == boots.front();
  const auto origin = is_same_clock ? number_of<std::int64_t>(times.front()) : now;
  origin_ = TraceClock::Time(TraceClock::Time::duration(origin));
}

void TraceWriter::write(const TracePart& part) {
  if (ranks_.size() == 1) {
    files_.write(kOption, [&] {
      write_chrome_trace(options_.trace_file, part.events, part.model, planning::overwrite_of(options_),
                         {part.process});
    });
    return;
  }
  constexpr const char* kAction = "writing the trace";
  files_.write(kOption, [&] { parts_.write(part); });
  const auto text = shares() ? std::string() : to_text(part);
  const std::uint64_t size = text.size();
  const auto sizes = ranks_.all_gather(bytes_of(size), kAction);  // also: all parts are there
  if (size > 0) ranks_.send(std::as_bytes(std::span(text)), Rank(0), kAction);
  if (!ranks_.is_first()) return;
  receive_parts(sizes);
  files_.write(kOption, [&] { warn_of(parts_.join(part.model).skipped); });
}

void TraceWriter::receive_parts(const std::vector<Blob>& sizes) {
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto size = number_of<std::uint64_t>(sizes[r]);
    if (size == 0) continue;
    Blob bytes(size);
    ranks_.receive(bytes, Rank::of(r), "writing the trace");
    files_.write(kOption, [&] { parts_.write(parse_trace_part(ranks::text_of(bytes), "rank " + std::to_string(r))); });
  }
}

void TraceWriter::keep(const TracePart& part) {
  if (ranks_.size() == 1) return write(part);
  files_.write(kOption, [&] { parts_.write(part); });
}

void TraceWriter::finish(const TracePart& part) {
  if (ranks_.size() == 1) return write(part);
  if (!shares()) {
    files_.write(kOption, [&] { parts_.write(part); });
    log_.warn("the last steps of the trace lie on this rank's host, beside " + options_.trace_file +
              ": trace_every says how often others are sent to rank 0");
    return;
  }
  files_.write(kOption, [&] { warn_of(parts_.finish(part, shares_).skipped); });
}

}  // namespace autopar::steps
