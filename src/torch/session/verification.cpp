// Whether a program is still what forward does. Members that forward reads are numbers in a capture; when they change,
// so must the program.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/hash_tensor.h>
#include <ATen/ops/view_as_real.h>

#include <autopar/core/error.hpp>

#include "torch/parameters/whole_handles.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

namespace {

constexpr std::int64_t kLongestInterval = 1024;  // calls: a capture in so many is nothing beside their steps
constexpr char kBetweenParts = '\x1f';

constexpr const char* kWayOut =
    "Way out: pass it to forward as an argument (a number, or a 0-dim tensor where it changes often), or call "
    "model->recapture() after each change";

std::uint64_t hash_of_bits(const at::Tensor& tensor) {
  const auto real = tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
  return real.numel() == 0
             ? 0
             : static_cast<std::uint64_t>(at::hash_tensor(real.flatten()).view(at::kLong).item<std::int64_t>());
}

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

bool Impl::members_changed(const std::string& key, const CallArguments& arguments) const {
  const auto known = programs_.peek(key);
  return options_.verify_capture && known != nullptr && members_.changed(known->verification.members, arguments.beside);
}

std::optional<trace::CaptureChange> Impl::change_of(const CapturedProgram& program, const CallArguments& arguments,
                                                    const ForwardFunction& forward) {
  const auto flat_forward = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(arguments.flat_count), defined;
    for (std::size_t i = 0; i < tensors.size(); ++i) all[arguments.positions[i]] = tensors[i];
    for (auto& tensor : forward(all).tensors) {
      if (tensor.defined()) defined.push_back(tensor);
    }
    return defined;
  };
  const NormalModeScope as_captured;
  const parameters::WholeHandles whole(parameters_.registry());
  const auto before = members_.look({});
  auto change =
      trace::change_since_capture(program.captured, *module_, program.inputs, flat_forward, capture_options());
  members_.ignore_changes_for_all(before);
  return change;
}

// Where members were seen to change, nothing ran between the change and this call: a new capture makes it right. At an
// interval nobody knows since when the program is another, nor whether forward changes what it reads by itself, which
// no replay does: that is an error, after which the next call captures again.
bool Impl::is_outdated(CapturedProgram& program, const CallArguments& arguments, const ForwardFunction& forward,
                       bool members_changed) {
  if (!options_.verify_capture) return false;
  auto& state = program.verification;
  const auto now = state.calls + 1;
  if (!members_changed && now < state.next) return false;
  std::optional<trace::CaptureChange> mine;
  program.outdated = true;  // unless found otherwise: also if forward cannot be captured any more
  ranks::collective_try(world_, "verifying the capture", [&] { mine = change_of(program, arguments, forward); });
  const auto all = world_.all_gather(ranks::blob_of(joined(mine)), "comparing with the capture");
  const auto found = std::find_if(all.begin(), all.end(), [](const Blob& blob) { return !blob.empty(); });
  if (found == all.end()) {
    program.outdated = false;
    members_.ignore_changes(state.members, arguments.beside);
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

void Impl::warn_of_change(const trace::CaptureChange& change) {
  if (world_.rank() != 0) return;
  const auto text = change.op + (change.path.empty() ? "" : " (near " + change.path + ")") + ": " + change.what;
  if (std::exchange(warned_of_change_, true)) return log_.info(text + "; captured again");
  log_.warn(text +
            ", because a member or what the loss holds has changed; the model is captured again, and so on each "
            "such change. Each takes time: pass what changes often to forward, as a 0-dim tensor");
}

// Parameters that several ranks have whole have the same bits there, whatever the plan.
void Impl::verify_replicas() {
  if (options_.verify_replicas == 0 || stats_.calls % options_.verify_replicas != 0) return;
  const at::NoGradGuard no_grad;
  const auto compared = [this](const parameters::StateTensor& tensor) {
    return tensor.is_parameter && tensor.holders.size() > 1 && !parameters_.is_sharded(tensor);
  };
  std::vector<std::uint64_t> mine;
  for (const auto& tensor : parameters_.tensors()) {
    if (compared(tensor)) mine.push_back(parameters_.holds(tensor) ? hash_of_bits(tensor.handle) : 0);
  }
  const auto all = world_.all_gather(std::as_bytes(std::span(mine)), "comparing the replicas' parameters");
  std::size_t i = 0;
  for (const auto& tensor : parameters_.tensors()) {
    if (!compared(tensor)) continue;
    const auto of = [&](Rank rank) {
      std::uint64_t hash = 0;
      std::memcpy(&hash, all[rank.index()].data() + i * sizeof(hash), sizeof(hash));
      return hash;
    };
    const std::vector<std::vector<Rank>> whole{tensor.holders};
    const auto& sets = tensor.slices ? tensor.replicas_of_shard : whole;
    for (const auto& equal : sets) {
      const auto first = equal.front();
      for (const auto rank : equal) {
        if (of(rank) == of(first)) continue;
        throw InvalidArgument("verify_replicas: before call " + std::to_string(stats_.calls + 1) + " parameter '" +
                              tensor.name() + "' has other values on rank " + std::to_string(rank.value()) + " (hash " +
                              std::to_string(of(rank)) + ") than on rank " + std::to_string(first.value()) + " (hash " +
                              std::to_string(of(first)) +
                              "); one of them was stepped otherwise, or written; load a checkpoint on all ranks");
      }
    }
    ++i;
  }
}

}  // namespace autopar::session
