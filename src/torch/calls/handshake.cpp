#include "torch/calls/handshake.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <autopar/core/error.hpp>

#include "capture/replay/plain_message.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/ranks/error_message.hpp"

namespace autopar::calls {

namespace {

static_assert(std::is_trivially_copyable_v<CallHeader>);

std::string rank_name(std::size_t rank) { return "rank " + std::to_string(rank); }

[[noreturn]] void refuse(const std::string& what, std::size_t a, const std::string& value_a, std::size_t b,
                         const std::string& value_b, const std::string& remedy) {
  throw InvalidArgument(what + ": " + rank_name(a) + " has " + value_a + ", " + rank_name(b) + " has " + value_b +
                        "; " + remedy);
}

/// The part in which two texts differ, with a little around it.
std::pair<std::string, std::string> difference(const std::string& a, const std::string& b) {
  std::size_t first = 0;
  while (first < a.size() && first < b.size() && a[first] == b[first]) ++first;
  const auto start = first < 60 ? 0 : first - 60;
  const auto cut = [&](const std::string& text) {
    return "'" + std::string(start > 0 ? "…" : "") + text.substr(start, 160) + "'";
  };
  return {cut(a), cut(b)};
}

bool differ(double a, double b) {
  constexpr double kRounding = 1e-5;
  if (a == b || (std::isnan(a) && std::isnan(b))) return false;
  return !(std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b)));
}

// Nobody has begun the call, so the world stays as usable as it was.
void require_none_failed(ranks::Ranks& ranks, const std::vector<CallHeader>& headers, const std::exception_ptr& error) {
  if (std::ranges::none_of(headers, &CallHeader::failed)) return;
  std::string message;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    message = replay::plain_message(caught);
  }
  const auto messages = ranks.all_gather(ranks::blob_of(message), "failure");
  if (error) std::rethrow_exception(error);
  const auto failed = static_cast<std::size_t>(std::ranges::find_if(headers, &CallHeader::failed) - headers.begin());
  throw InvalidArgument(rank_name(failed) + " cannot make this call of " + std::string(name_of(headers[failed].kind)) +
                        ": " + ranks::text_of(messages[failed]));
}

/// Every rank knows that rank `r` has other details than rank 0.
[[noreturn]] void refuse_details(ranks::Ranks& ranks, std::string_view action, std::size_t r,
                                 const std::string& details, const std::function<std::vector<CallWord>()>& words) {
  const auto what = "the ranks disagree about arguments or modes of " + std::string(action);
  const std::string remedy = "all but the batch size must agree";
  if (words) {
    const auto texts = ranks.all_gather(ranks::blob_of(to_text(words())), "difference");
    const auto said =
        first_difference(words_from_text(ranks::text_of(texts[0])), 0, words_from_text(ranks::text_of(texts[r])), r);
    if (said) throw InvalidArgument(what + ": " + *said + "; " + remedy);
  }
  const auto texts = ranks.all_gather(ranks::blob_of(details), "difference");
  const auto [a, b] = difference(ranks::text_of(texts[0]), ranks::text_of(texts[r]));
  refuse(what, 0, a, r, b, remedy);
}

}  // namespace

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed) {
  const auto* byte = static_cast<const unsigned char*>(data);
  auto hash = seed;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3ULL;
  return hash;
}

std::uint64_t hash_text(std::string_view text) { return hash_bytes(text.data(), text.size()); }

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::kForward:
      return "forward";
    case CallKind::kBackward:
      return "backward";
    case CallKind::kPrepare:
      return "prepare";
    case CallKind::kDeploy:
      return "deploy";
    case CallKind::kSync:
      return "sync_gradients";
    case CallKind::kClip:
      return "clip_grad_norm_";
    case CallKind::kGather:
      return "gather";
    case CallKind::kSave:
      return "save";
    case CallKind::kExport:
      return "export_weights";
    case CallKind::kLoad:
      return "load";
    case CallKind::kWhole:
      return "for_whole_parameters";
    case CallKind::kNorm:
      return "norm";
    case CallKind::kDot:
      return "dot";
    case CallKind::kWait:
      return "wait";
  }
  return "?";
}

namespace {

/// Rank `r` is to make the same call of the same model, in the same state, as rank 0.
void require_same_call(const CallHeader& first, std::size_t r, const CallHeader& other) {
  const std::string remedy = "every rank must make the same calls in the same order";
  if (other.model != first.model) {
    const auto text = [](const CallHeader& one) {
      return "model " + std::to_string(one.model) + " (" + one.model_name.data() + ")";
    };
    refuse("the ranks call different AutoParallel models (counted in the order in which they were made)", 0,
           text(first), r, text(other), "every rank must make its models, and call them, in the same order");
  }
  if (other.kind != first.kind) {
    refuse("the ranks call different members of an AutoParallel model", 0, std::string(name_of(first.kind)), r,
           std::string(name_of(other.kind)), remedy);
  }
  if (other.serial != first.serial) {
    refuse("the ranks have made different numbers of calls", 0, std::to_string(first.serial), r,
           std::to_string(other.serial), remedy);
  }
  if (other.loss_scale != first.loss_scale) {
    refuse("the ranks have different loss scales", 0, std::to_string(first.loss_scale), r,
           std::to_string(other.loss_scale), "call backward for the same calls on every rank");
  }
  if (other.loss_backwards != first.loss_backwards || differ(other.loss_factors, first.loss_factors)) {
    const auto text = [](const CallHeader& one) {
      return std::to_string(one.loss_backwards) + " (factors " + std::to_string(one.loss_factors) + " in all)";
    };
    refuse("since the last call the ranks called backward for the model's losses differently", 0, text(first), r,
           text(other),
           "their gradients differ now; every rank must call backward for the same losses with the same factors");
  }
  if (other.accumulates != first.accumulates) {
    const auto text = [](bool inside) { return std::string(inside ? "a no_sync guard" : "no no_sync guard"); };
    refuse("some ranks are inside no_sync and some are not", 0, text(first.accumulates), r, text(other.accumulates),
           remedy);
  }
}

}  // namespace

std::vector<CallHeader> exchange(ranks::Ranks& ranks, const CallHeader& mine, const std::string& details,
                                 const std::exception_ptr& error, const std::function<std::vector<CallWord>()>& words) {
  const auto action = name_of(mine.kind);
  auto header = mine;
  header.failed = error != nullptr;
  header.key = hash_text(details);
  const auto blobs = ranks.all_gather(std::as_bytes(std::span(&header, 1)), action);
  std::vector<CallHeader> headers(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != sizeof(CallHeader)) {
      throw TransportError("rank " + std::to_string(r) + " made another collective call than " + std::string(action) +
                               " of an AutoParallel model; every rank must make the same calls in the same order",
                           ranks.rank(), Rank::of(r), std::string(action));
    }
    std::memcpy(&headers[r], blobs[r].data(), sizeof(CallHeader));
  }
  require_none_failed(ranks, headers, error);
  const auto& first = headers.front();
  for (std::size_t r = 1; r < headers.size(); ++r) require_same_call(first, r, headers[r]);
  for (std::size_t r = 1; r < headers.size(); ++r) {
    if (headers[r].key != first.key) refuse_details(ranks, action, r, details, words);
  }
  for (std::size_t r = 1; r < headers.size(); ++r) {
    if (headers[r].shared == first.shared) continue;
    refuse("a shared argument (the same for all samples) differs between ranks (hash of its contents)", 0,
           std::to_string(first.shared), r, std::to_string(headers[r].shared),
           "pass the same tensor on every rank, or give it a batch dim in Options::batch_dims");
  }
  return headers;
}

namespace {

/// Every rank knows that these optimizers have different hyper-parameters.
[[noreturn]] void refuse_hyper_parameters(ranks::Ranks& ranks, const std::string& which, std::size_t a, std::size_t b,
                                          const std::string& mine) {
  const auto texts = ranks.all_gather(ranks::blob_of(mine), "hyper-parameters");
  const auto [of_a, of_b] = difference(ranks::text_of(texts[a]), ranks::text_of(texts[b]));
  refuse("the ranks' attached " + which + " has different hyper-parameters", a, of_a, b, of_b,
         "parameters drift apart; set them alike on every rank");
}

/// In words: "stepped twice".
std::string text_of_steps(std::int64_t count) {
  if (count == OptimizerWatch::kSome) return "stepped";
  if (count <= 0) return "not stepped";
  if (count == 1) return "stepped once";
  return "stepped " + std::to_string(count) + " times";
}

/// The first two ranks that stepped an optimizer differently, as far as both know.
/// @param steps_of  of a rank
std::optional<std::pair<std::size_t, std::size_t>> first_difference(
    std::size_t ranks, const std::function<const OptimizerWatch::Steps&(std::size_t)>& steps_of) {
  const auto stepped = [](std::int64_t count) { return count > 0 || count == OptimizerWatch::kSome; };
  std::map<std::int64_t, std::size_t> counted;                              // by look
  std::map<std::pair<std::int64_t, std::uint64_t>, std::size_t> with_same;  // by look and parameters
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto& steps = steps_of(r);
    if (steps.look == 0 || steps.count == OptimizerWatch::kUnknown) continue;
    if (steps.count >= 0) {
      const auto other = counted.try_emplace(steps.look, r).first->second;
      if (steps_of(other).count != steps.count) return std::pair(other, r);
    }
    const auto alike = with_same.try_emplace({steps.look, steps.parameters}, r).first->second;
    if (stepped(steps_of(alike).count) != stepped(steps.count)) return std::pair(alike, r);
  }
  return std::nullopt;
}

}  // namespace

void require_same_optimizers(ranks::Ranks& ranks, const std::vector<CallHeader>& headers,
                             const std::function<std::string(std::size_t)>& describe) {
  for (std::size_t k = 0; k < OptimizerWatch::kCompared; ++k) {
    const auto which = k == 0 ? std::string("optimizer") : "optimizer " + std::to_string(k + 1);
    const auto seen = [&](std::size_t r) -> const OptimizerWatch::Seen& { return headers[r].optimizers[k]; };
    std::optional<std::size_t> first;
    for (std::size_t r = 0; r < headers.size(); ++r) {
      if (seen(r).parameters == 0) continue;
      if (!first) first = r;
      if (seen(r).hyper_parameters == seen(*first).hyper_parameters) continue;
      const auto mine = seen(ranks.rank().index()).parameters != 0 ? describe(k) : std::string();
      refuse_hyper_parameters(ranks, which, *first, r, mine);
    }
    const auto steps_of = [&](std::size_t r) -> const OptimizerWatch::Steps& { return seen(r).steps; };
    const auto different = first_difference(headers.size(), steps_of);
    if (!different) continue;
    const auto [a, b] = *different;
    refuse("since the last call with gradients the ranks stepped the attached " + which + " differently", a,
           text_of_steps(steps_of(a).count), b, text_of_steps(steps_of(b).count),
           "the training is not one process's any more: every rank must step as often, after the same calls; set "
           "requires_grad_(false) on parameters that a step is to leave out");
  }
}

}  // namespace autopar::calls
