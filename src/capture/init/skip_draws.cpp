#include "capture/init/skip_draws.hpp"

#include <cstring>
#include <mutex>
#include <string>

#include <ATen/CPUGeneratorImpl.h>

namespace autopar::init {
namespace {

// Below this, kernels take other paths, and running the operator costs nothing.
constexpr std::int64_t kSmall = 4096;
constexpr std::uint64_t kNormalBlock = 16;

// Four words at a time, whatever the optimisation level: a large model skips ten billion draws.
using Words = std::uint32_t __attribute__((vector_size(16)));

Words load(const std::uint32_t* words) {
  Words result;
  std::memcpy(&result, words, sizeof result);
  return result;
}

/// Works on a word and on four.
template <class T>
T mix(T upper, T lower) {
  const T y = (upper & 0x80000000U) | (lower & 0x7fffffffU);
  return (y >> 1) ^ (-(lower & 1U) & 0x9908b0dfU);
}

/// state[i] for i in [first, last) from state[i], state[i + 1] and state[i + offset].
void twist_range(std::uint32_t* state, int first, int last, int offset) {
  int i = first;
  for (; i + 4 <= last; i += 4) {
    const Words words = load(state + i + offset) ^ mix(load(state + i), load(state + i + 1));
    std::memcpy(state + i, &words, sizeof words);
  }
  for (; i < last; ++i) state[i] = state[i + offset] ^ mix(state[i], state[i + 1]);
}

/// One step of the Mersenne twister (Matsumoto and Nishimura 1998): all 624 words of state anew.
void twist(std::uint32_t* state) {
  constexpr int kWords = at::MERSENNE_STATE_N, kShift = at::MERSENNE_STATE_M;
  twist_range(state, 0, kWords - kShift, kShift);
  twist_range(state, kWords - kShift, kWords - 1, kShift - kWords);
  state[kWords - 1] = state[kShift - 1] ^ mix(state[kWords - 1], state[0]);
}

}  // namespace

bool is_contiguous(const ValueInfo& info) {
  std::int64_t expected = 1;
  for (std::size_t d = info.sizes.size(); d-- > 0;) {
    if (info.strides[d].fixed != expected) return false;
    expected *= info.sizes[d].fixed;
  }
  return true;
}

std::optional<std::uint64_t> plain_draws(const OpGraph& graph, const OpNode& node) {
  const auto& name = node.op.schema().name();
  const bool uniform = name == "aten::uniform_" || name == "aten::rand";
  const bool normal = name == "aten::normal_" || name == "aten::randn";
  if (!uniform && !normal) return std::nullopt;
  const auto& info = graph.value(node.outputs.at(0).values.at(0));
  const auto elements = info.elements(0);
  const bool is_double = info.dtype == c10::kDouble;
  if (elements < kSmall || !is_contiguous(info) || (!is_double && info.dtype != c10::kFloat)) return std::nullopt;
  auto numbers = static_cast<std::uint64_t>(elements);
  if (normal && numbers % kNormalBlock != 0) numbers += kNormalBlock;  // the last block is drawn again
  return numbers * (is_double ? 2 : 1);
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void skip_draws(at::Generator& generator, std::uint64_t count) {
  const std::lock_guard lock(generator.mutex());
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  auto engine = cpu->engine();
  auto data = engine.data();
  while (count > 0) {
    const auto left = static_cast<std::uint64_t>(data.left_ - 1);  // a draw twists when `left_` would reach zero
    if (count <= left) {
      data.left_ -= static_cast<int>(count);
      data.next_ += static_cast<std::uint32_t>(count);
      break;
    }
    count -= left + 1;
    twist(data.state_.data());
    data.left_ = at::MERSENNE_STATE_N;
    data.next_ = 1;
  }
  engine.set_data(data);
  cpu->set_engine(engine);
}

}  // namespace autopar::init
