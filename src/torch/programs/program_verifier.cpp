#include "torch/programs/program_verifier.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>

#include "torch/ranks/collective_try.hpp"

namespace autopar::programs {

namespace {

constexpr std::int64_t kLongestInterval = 1024;  // calls: a capture in so many is nothing beside their steps
constexpr char kBetweenParts = '\x1f';

constexpr const char* kWayOut =
    "Way out: pass it to forward as an argument (a number, or a 0-dim tensor where it changes often), or call "
    "model->recapture() after each change";

std::string joined(const std::optional<trace::CaptureChange>& change) {
  return change ? change->op + kBetweenParts + change->path + kBetweenParts + change->what : std::string();
}

trace::CaptureChange parted(const std::string& text) {
  const auto first = text.find(kBetweenParts), second = text.find(kBetweenParts, first + 1);
  return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

std::string range_of_calls(std::int64_t first, std::int64_t last) {
  return first == last ? "call " + std::to_string(first)
                       : "calls " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

bool ProgramVerifier::members_changed(const std::shared_ptr<CapturedProgram>& program,
                                      const calls::CallArguments& arguments) {
  return options_.verify_capture && program != nullptr &&
         capture_.members().changed(program->verification.members, arguments.beside);
}

// Where members were seen to change, nothing ran between the change and this call: a new capture makes it right. At an
// interval nobody knows since when the program is another, nor whether forward changes what it reads by itself, which
// no replay does: that is an error, after which the next call captures again.
bool ProgramVerifier::is_outdated(programs::CapturedProgram& program, const calls::CallArguments& arguments,
                                  const ForwardFunction& forward, bool members_changed) {
  if (!options_.verify_capture) return false;
  auto& state = program.verification;
  const auto now = state.calls + 1;
  if (!members_changed && now < state.next) return false;
  std::optional<trace::CaptureChange> mine;
  state.outdated = true;  // unless found otherwise: also if forward cannot be captured any more
  ranks::collective_try(ranks_, "verifying the capture",
                        [&] { mine = capture_.change_since(program, arguments, forward); });
  const auto all = ranks_.all_gather(ranks::blob_of(joined(mine)), "comparing with the capture");
  const auto found = std::find_if(all.begin(), all.end(), [](const Blob& blob) { return !blob.empty(); });
  if (found == all.end()) {
    state.outdated = false;
    capture_.members().ignore_changes(state.members, arguments.beside);
    state.next = now + std::min(now, kLongestInterval);
    state.agreed = now;
    return false;
  }
  const auto change = parted(ranks::text_of(*found));
  if (members_changed) {
    warn_of_change(change);
    return true;
  }
  const auto since = now - state.agreed > 1 ? "Of " + range_of_calls(state.agreed + 1, now - 1) +
                                                  " of this program some or all used the old one. "
                                            : std::string("No call used the old one. ");
  throw CaptureError(change.op, change.path,
                     change.what +
                         ": forward reads something beside its arguments (a member, a global) that has changed "
                         "since it was captured, or that it changes itself, which no replay does. " +
                         since + kWayOut);
}

void ProgramVerifier::warn_of_change(const trace::CaptureChange& change) {
  if (!ranks_.is_first()) return;
  const auto log = ranks_.logger(LogModule::kSession);
  const auto text = change.op + (change.path.empty() ? "" : " (near " + change.path + ")") + ": " + change.what;
  if (std::exchange(warned_of_change_, true)) return log.info(text + "; captured again");
  log.warn(text +
           ", because a member or what the loss holds has changed; the model is captured again, and so on each "
           "such change. Each takes time: pass what changes often to forward, as a 0-dim tensor");
}

void ProgramVerifier::verify_batch(CapturedProgram& program, const calls::CallArguments& arguments,
                                   const ForwardFunction& forward, std::int64_t batch) {
  constexpr std::size_t kBatchesVerified = 16;
  auto& known = program.verification.batches;
  if (!arguments.has_batch || known.size() >= kBatchesVerified || !known.insert(batch).second) return;
  ranks::collective_try(ranks_, "verifying the capture",
                        [&] { capture_.verify_at(program, arguments, forward, batch); });
}

}  // namespace autopar::programs
