#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "torch/kernels/adam_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_adam_test {

using namespace cuda_on_cpu;
using autopar::AdamNumbers, autopar::AdamTable;
using kernels_test::Numbers;

struct Moved {
  std::size_t size;
  std::size_t shift = 0;  ///< elements by which all begin behind a pack
  bool has_copy = true;
  std::size_t copy_shift = 0;  ///< by which only the copy does
};

struct State {
  Numbers parameter, gradient, exp_avg, exp_avg_sq, copy;
};

State state_of(std::size_t size, unsigned seed) {
  State made{kernels_test::drawn(size, seed),
             kernels_test::drawn(size, seed + 1),
             kernels_test::drawn(size, seed + 2),
             kernels_test::drawn(size, seed + 3),
             {}};
  for (auto& square : made.exp_avg_sq) square *= square;
  return made;
}

/// In double precision (Kingma, Ba 2015; Loshchilov, Hutter 2019).
void step(State& state, const AdamNumbers& by, std::size_t begin) {
  for (std::size_t i = begin; i < state.parameter.size(); ++i) {
    auto &p = state.parameter[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    double g = state.gradient[i];
    if (by.is_decay_decoupled != 0)
      p -= static_cast<double>(by.lr) * by.weight_decay * p;
    else
      g += by.weight_decay * p;
    m = by.beta1 * m + (1.0 - by.beta1) * g;
    v = by.beta2 * v + (1.0 - by.beta2) * g * g;
    p -= by.lr * (m / by.correction1) / (std::sqrt(v) / by.root_of_correction2 + by.eps);
  }
}

template <class Copy>
std::vector<State> stepped(CudaOnCpu& gpu, const std::vector<Moved>& tensors, const AdamNumbers& by) {
  struct Pointers {
    float *parameter, *exp_avg, *exp_avg_sq;
    Copy* copy;
  };
  std::vector<Pointers> all;
  std::vector<State> made;
  AdamTable table{};
  unsigned blocks = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [size, shift, has_copy, copy_shift] = tensors[i];
    auto state = state_of(size + shift, static_cast<unsigned>(i));
    const auto named = [&](const char* what) { return what + std::to_string(i); };
    const Pointers at{gpu.holds<float>(named("parameter "), state.parameter),
                      gpu.holds<float>(named("exp_avg "), state.exp_avg),
                      gpu.holds<float>(named("exp_avg_sq "), state.exp_avg_sq),
                      gpu.holds<Copy>(named("copy "), Numbers(size + shift + copy_shift, 0))};
    table.parameter[i] = at.parameter + shift;
    table.gradient[i] = gpu.reads<float>(named("gradient "), state.gradient) + shift;
    table.exp_avg[i] = at.exp_avg + shift;
    table.exp_avg_sq[i] = at.exp_avg_sq + shift;
    table.copy[i] = has_copy ? at.copy + shift + copy_shift : nullptr;
    table.size[i] = static_cast<long long>(size);
    table.first_block[i] = static_cast<int>(blocks);
    blocks += kernels_test::blocks_for(size, AdamTable::kElementsOfBlock);
    all.push_back(at);
  }
  table.count = static_cast<int>(tensors.size());
  gpu.launch(std::string("adam_") + kName<Copy>, {blocks, 1, AdamTable::kThreads, 1}, table, by);
  for (const auto& at : all)
    made.push_back(
        {gpu.numbers(at.parameter), {}, gpu.numbers(at.exp_avg), gpu.numbers(at.exp_avg_sq), gpu.numbers(at.copy)});
  return made;
}

template <class Copy>
void check(const std::vector<Moved>& tensors, const AdamNumbers& by) {
  const auto made = in_every_order(adam, [&](CudaOnCpu& gpu) { return stepped<Copy>(gpu, tensors, by); });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [size, shift, has_copy, copy_shift] = tensors[i];
    auto exact = state_of(size + shift, static_cast<unsigned>(i));
    step(exact, by, shift);
    Numbers copy(size + shift + copy_shift, 0);
    for (std::size_t at = shift; has_copy && at < size + shift; ++at)
      copy[at + copy_shift] = number_of(rounded<Copy>(made[i].parameter[at]));
    INFO(size << " elements, " << shift << " behind a pack, " << kName<Copy>);
    constexpr double kSingle = 4 * kEpsilon<float>;
    CHECK(kernels_test::worst_error(made[i].parameter, exact.parameter) <= kSingle);
    CHECK(kernels_test::worst_error(made[i].exp_avg, exact.exp_avg) <= kSingle);
    CHECK(kernels_test::worst_error(made[i].exp_avg_sq, exact.exp_avg_sq) <= kSingle);
    CHECK(made[i].copy == copy);
  }
}

TEST_CASE("adam: a step is that of double precision, and copies are the rounded parameters") {
  const std::vector<Moved> tensors{{1},           {7},       {2048},         {16384 + 5}, {33, 0, false},  {40, 1},
                                   {3, 0, false}, {1030, 2}, {16384 + 4, 3}, {5, 4},      {70, 0, true, 2}};
  const AdamNumbers without_decay{1e-2f, 0.9f, 0.999f, 0, 1e-8f, 0.271f, 0.0547f, 0},
      into_gradient{1e-2f, 0.9f, 0.999f, 0.1f, 1e-6f, 0.271f, 0.0547f, 0},
      decoupled{1e-2f, 0.8f, 0.99f, 0.1f, 1e-8f, 1, 1, 1};
  check<Bf16>(tensors, without_decay);
  check<F16>(tensors, into_gradient);
  check<Bf16>(tensors, decoupled);
  CHECK(adam.never_launched().empty());
}

TEST_CASE("adam: a full table of tensors") {
  check<F16>(std::vector<Moved>(AdamTable::kMost, {9}), {1e-2f, 0.9f, 0.999f, 0.1f, 1e-8f, 1, 1, 1});
}

}  // namespace kernels_adam_test
