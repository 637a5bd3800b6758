#include "capture/init/parallel_fill.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iterator>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

namespace autopar::init {

std::vector<at::Tensor> fill_whole(std::span<const ElementFill> fills, const StateBefore& state_before) {
  constexpr std::int64_t kLeast = 1 << 18;    // elements for which another thread pays off
  constexpr std::int64_t kPiecesAThread = 4;  // so that threads end together
  std::int64_t all = 0;
  for (const auto& fill : fills) all += fill.size();
  const auto threads = std::min<std::int64_t>(at::get_num_threads(), all / kLeast + 1);
  const auto most = threads == 1 ? all : std::max(kLeast, all / (kPiecesAThread * threads));
  std::vector<at::Tensor> made;
  std::vector<ElementFill::Piece> pieces;
  for (const auto& fill : fills) {
    made.push_back(at::empty({fill.size()}, at::dtype(fill.type())));
    std::ranges::move(fill.pieces(made.back(), most), std::back_inserter(pieces));
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (auto i = next++; i < pieces.size(); i = next++) pieces[i].make(state_before);
  };
  std::vector<std::future<void>> others;
  for (std::int64_t thread = 1; thread < threads; ++thread) others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();
  return made;
}

}  // namespace autopar::init
