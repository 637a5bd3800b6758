#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <autopar/runtime/world.hpp>

#include "torch/ranks/ranks.hpp"

namespace autopar::ranks {

/// Runs `work` on every rank. If it throws on one, it throws on all: the rank's own exception where it threw, and
/// elsewhere the same error if it concerns what was asked, else a TransportError that names the first such rank.
/// Collective.
void collective_try(Ranks& ranks, std::string_view action, const std::function<void()>& work);
void collective_try(World& world, std::string_view action, const std::function<void()>& work);

/// Text on its way between ranks.
[[nodiscard]] Blob blob_of(std::string_view text);
[[nodiscard]] std::string text_of(const Blob& blob);

}  // namespace autopar::ranks
