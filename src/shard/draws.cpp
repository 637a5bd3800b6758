#include "shard/draws.hpp"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "shard/group_state.hpp"

namespace autopar::detail {

namespace {

/// libtorch draws normal numbers in sixteens, and the last sixteen of a tensor again where it is no multiple.
constexpr std::int64_t kDrawnAtOnce = 16;
constexpr std::int64_t kBlockElements = 1 << 18;

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

SharedDraws::SharedDraws(const Group& group) : generator_(at::detail::createCPUGenerator()) {
  const auto own = state_of(at::detail::getDefaultCPUGenerator());
  auto states = at::empty({group.size(), own.numel()}, own.options());
  states[group.place()].copy_(own);
  if (!group.is_alone()) group.state()->all_gather(states);
  follows_ = at::equal(states[0], own);
  generator_.set_state(states[0].clone());
}

SharedDraws::~SharedDraws() {
  if (!follows_) return;
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(generator_.get_state());
}

at::Tensor slice_of_draw(std::int64_t rows, std::int64_t columns, int dim, std::int64_t begin, std::int64_t length,
                         const SharedDraws& draws, const FillBlock& fill) {
  const at::NoGradGuard no_grad;
  auto slice = dim == 0 ? at::empty({length, columns}) : at::empty({rows, length});
  const auto fitting = kBlockElements / std::max<std::int64_t>(columns, 1) / kDrawnAtOnce * kDrawnAtOnce;
  const auto block_rows = std::max(fitting, kDrawnAtOnce);
  for (std::int64_t first = 0; first < rows;) {
    const auto left = rows - first;
    const bool is_last = left * columns < block_rows * columns + kDrawnAtOnce;
    const auto here = is_last ? left : block_rows;
    auto block = at::empty({here, columns});
    fill(block, draws.generator());
    if (dim == 1) {
      slice.narrow(0, first, here).copy_(block.narrow(1, begin, length));
    } else if (const auto from = std::max(first, begin), to = std::min(first + here, begin + length); from < to) {
      slice.narrow(0, from - begin, to - from).copy_(block.narrow(0, from - first, to - from));
    }
    first += here;
  }
  return slice;
}

}  // namespace autopar::detail
