#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/update_source.hpp"
#include "unit/kernels/formats_of_8_bits.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_update_test {

using namespace cuda_on_cpu;
using autopar::kernels::AdamNumbers, autopar::kernels::SgdNumbers, autopar::kernels::UpdateTable;
using kernels_test::Numbers;

/// Elements by which a tensor's numbers begin behind a pack.
struct Shifts {
  std::size_t parameter = 0, gradient = 0, copy = 0;
  std::array<std::size_t, UpdateTable::kStates> state{};
};
constexpr Shifts all_by(std::size_t elements) { return {elements, elements, elements, {elements, elements}}; }

struct Tensor {
  std::size_t size;
  Shifts shifts{};
  bool has_copy = true;
};

struct Held {
  Numbers parameter, gradient, copy;
  std::array<Numbers, UpdateTable::kStates> state;
};

Numbers behind(std::size_t shift, Numbers numbers) {
  numbers.insert(numbers.begin(), shift, 0.5);
  return numbers;
}

// ---------------------------------------------------------------- rules

std::string name_of(const AdamNumbers&) { return "adam_"; }
std::string name_of(const SgdNumbers& by) { return by.momentum == 0 ? "sgd_" : "momentum_"; }

std::size_t states_of(const AdamNumbers&) { return 2; }
std::size_t states_of(const SgdNumbers& by) { return by.momentum == 0 ? 0 : 1; }

bool has_values(const AdamNumbers&) { return true; }
bool has_values(const SgdNumbers& by) { return by.is_first == 0; }

double tolerance_of(const AdamNumbers&) { return 4 * kEpsilon<float>; }
double tolerance_of(const SgdNumbers&) { return 0; }

/// In double precision (Kingma, Ba 2015; Loshchilov, Hutter 2019).
void step(Held& held, std::size_t i, const AdamNumbers& by) {
  auto &p = held.parameter[i], &m = held.state[0][i], &v = held.state[1][i];
  double g = held.gradient[i];
  if (by.is_decay_decoupled != 0)
    p -= static_cast<double>(by.lr) * by.weight_decay * p;
  else
    g += by.weight_decay * p;
  m = by.beta1 * m + (1.0 - by.beta1) * g;
  v = by.beta2 * v + (1.0 - by.beta2) * g * g;
  p -= by.lr * (m / by.correction1) / (std::sqrt(v) / by.root_of_correction2 + by.eps);
}

/// As at::_fused_sgd_: in double precision, what it keeps in variables of single precision rounded.
void step(Held& held, std::size_t i, const SgdNumbers& by) {
  auto& p = held.parameter[i];
  double g = held.gradient[i];
  if (by.weight_decay != 0) g = rounded<float>(g + by.weight_decay * p);
  if (by.momentum != 0) {
    auto& m = held.state[0][i];
    const double made = by.is_first != 0 ? g : by.momentum * m + by.undamped * g;
    m = rounded<float>(made);
    g = rounded<float>(by.is_nesterov != 0 ? g + by.momentum * made : made);
  }
  p = rounded<float>(p - by.lr * g);
}

// ---------------------------------------------------------------- steps

template <class Rule>
Held held_by(const Tensor& tensor, unsigned seed, const Rule& by) {
  using kernels_test::drawn;
  Held made{drawn(tensor.size, seed), drawn(tensor.size, seed + 1), Numbers(tensor.size, 0), {}};
  for (std::size_t s = 0; s < states_of(by); ++s)
    made.state[s] = has_values(by) ? drawn(tensor.size, seed + 2) : Numbers(tensor.size, NAN);
  for (auto& square : made.state[1]) square *= square;
  return made;
}

/// Where a tensor's numbers lie, those before them included.
template <class Copy>
struct Memory {
  float* parameter;
  Copy* copy;
  std::array<float*, UpdateTable::kStates> state{};
};

/// Puts a tensor to the next place of the table.
template <class Copy>
Memory<Copy> put(CudaOnCpu& gpu, UpdateTable& table, const Tensor& tensor, const Held& held) {
  const auto place = static_cast<std::size_t>(table.count);
  const auto& shifts = tensor.shifts;
  const auto named = [&](const char* what) { return what + std::to_string(place); };
  Memory<Copy> made{gpu.holds<float>(named("parameter "), behind(shifts.parameter, held.parameter)),
                    gpu.holds<Copy>(named("copy "), behind(shifts.copy, held.copy))};
  table.parameter[place] = made.parameter + shifts.parameter;
  table.gradient[place] =
      gpu.reads<float>(named("gradient "), behind(shifts.gradient, held.gradient)) + shifts.gradient;
  for (std::size_t s = 0; s < UpdateTable::kStates; ++s) {
    if (held.state[s].empty()) continue;
    made.state[s] = gpu.holds<float>(named("state "), behind(shifts.state[s], held.state[s]));
    table.state[s][place] = made.state[s] + shifts.state[s];
  }
  table.copy[place] = tensor.has_copy ? made.copy + shifts.copy : nullptr;
  table.size[place] = static_cast<long long>(tensor.size);
  ++table.count;
  return made;
}

template <class Copy, class Rule>
std::vector<Held> stepped(CudaOnCpu& gpu, const std::vector<Tensor>& tensors, const Rule& by) {
  UpdateTable table{};
  std::vector<Memory<Copy>> all;
  unsigned blocks = 0;
  for (const auto& tensor : tensors) {
    table.first_block[table.count] = static_cast<int>(blocks);
    blocks += kernels_test::blocks_for(tensor.size, UpdateTable::kElementsOfBlock);
    all.push_back(put<Copy>(gpu, table, tensor, held_by(tensor, static_cast<unsigned>(table.count), by)));
  }
  gpu.launch(name_of(by) + kName<Copy>, {blocks, 1, UpdateTable::kThreads, 1}, table, by);
  std::vector<Held> made;
  for (const auto& at : all) {
    made.push_back({gpu.numbers(at.parameter), {}, gpu.numbers(at.copy), {}});
    for (std::size_t s = 0; s < states_of(by); ++s) made.back().state[s] = gpu.numbers(at.state[s]);
  }
  return made;
}

template <class Copy, class Rule>
void check(const std::vector<Tensor>& tensors, const Rule& by) {
  const auto made = in_every_order(update, [&](CudaOnCpu& gpu) { return stepped<Copy>(gpu, tensors, by); });
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto& [size, shifts, has_copy] = tensors[t];
    auto exact = held_by(tensors[t], static_cast<unsigned>(t), by);
    for (std::size_t i = 0; i < size; ++i) {
      step(exact, i, by);
      if (has_copy) exact.copy[i] = number_of(rounded<Copy>(made[t].parameter[shifts.parameter + i]));
    }
    INFO(name_of(by) << kName<Copy> << ", tensor " << t << " of " << size << " elements");
    const double tolerance = tolerance_of(by);
    CHECK(kernels_test::worst_error(made[t].parameter, behind(shifts.parameter, exact.parameter)) <= tolerance);
    for (std::size_t s = 0; s < states_of(by); ++s)
      CHECK(kernels_test::worst_error(made[t].state[s], behind(shifts.state[s], exact.state[s])) <= tolerance);
    CHECK(made[t].copy == behind(shifts.copy, exact.copy));
  }
}

// ---------------------------------------------------------------- tests

/// Whole blocks and tails, without a copy, and each of what a tensor has begun behind a pack, alone and with all
/// others.
std::vector<Tensor> all_kinds() {
  constexpr auto kBlock = static_cast<std::size_t>(UpdateTable::kElementsOfBlock);
  return {{1},
          {7},
          {kBlock},
          {2 * kBlock + 5},
          {33, {}, false},
          {kBlock, {}, false},
          {40, all_by(1)},
          {kBlock, all_by(4)},
          {kBlock + 3, all_by(3)},
          {kBlock, {.parameter = 1}},
          {kBlock, {.gradient = 2}},
          {kBlock, {.copy = 2}},
          {kBlock, {.state = {1, 0}}},
          {kBlock, {.state = {0, 2}}}};
}

TEST_CASE("update: Adam matches fp64, low-precision copies are rounded") {
  check<Bf16>(all_kinds(), AdamNumbers{1e-2f, 0.9f, 0.999f, 0, 1e-8f, 0.271f, 0.0547f, 0});
  check<F16>(all_kinds(), AdamNumbers{1e-2f, 0.9f, 0.999f, 0.1f, 1e-6f, 0.271f, 0.0547f, 0});
  check<Bf16>(all_kinds(), AdamNumbers{1e-2f, 0.8f, 0.99f, 0.1f, 1e-8f, 1, 1, 1});  // AdamW
}

TEST_CASE("update: SGD equals at::_fused_sgd_ bitwise") {
  check<Bf16>(all_kinds(), SgdNumbers{0.1, 0, 0, 1, 0, 0});
  check<F16>(all_kinds(), SgdNumbers{0.1, 0.01, 0, 1, 0, 0});
}

TEST_CASE("update: SGD with momentum equals at::_fused_sgd_ bitwise") {
  check<Bf16>(all_kinds(), SgdNumbers{0.1, 0, 0.9, 1, 0, 0});
  check<F16>(all_kinds(), SgdNumbers{0.1, 0.01, 0.9, 0.7, 0, 0});
  check<F16>(all_kinds(), SgdNumbers{0.1, 0.01, 0.9, 1, 1, 0});
  check<Bf16>(all_kinds(), SgdNumbers{0.1, 0.01, 0.9, 0.7, 0, 1});  // no values yet, no dampening
  check<Bf16>(all_kinds(), SgdNumbers{0.1, 0, 0.9, 1, 1, 1});
}

// ---------------------------------------------------------------- copies in 8 bits

struct In8Bits {
  std::vector<std::vector<unsigned>> copies;
  std::vector<Numbers> parameters;
  std::vector<float> most;
  friend bool operator==(const In8Bits&, const In8Bits&) = default;
};

/// Steps tensors whose copies are in E4M3, each with a factor of its own.
template <class Rule>
In8Bits stepped_in_8_bits(CudaOnCpu& gpu, const std::vector<Tensor>& tensors, const Rule& by) {
  UpdateTable table{};
  std::vector<std::pair<float*, std::uint8_t*>> memory;
  std::vector<float*> most;
  unsigned blocks = 0;
  for (const auto& tensor : tensors) {
    const auto place = static_cast<std::size_t>(table.count);
    const auto name = std::to_string(place);
    table.first_block[place] = static_cast<int>(blocks);
    blocks += kernels_test::blocks_for(tensor.size, UpdateTable::kElementsOfBlock);
    const auto at = put<Bf16>(gpu, table, tensor, held_by(tensor, static_cast<unsigned>(place), by));
    auto* const copy = gpu.room<std::uint8_t>("copy in 8 bits " + name, tensor.shifts.copy + tensor.size);
    table.copy[place] = copy + tensor.shifts.copy;
    table.factor[place] = gpu.reads<float>("factor " + name, {std::ldexp(1.0, static_cast<int>(place % 5) + 3)});
    most.push_back(gpu.holds<float>("most " + name, {place % 2 == 0 ? 0.0 : 100.0}));
    table.most[place] = most.back();
    memory.emplace_back(at.parameter, copy);
  }
  gpu.launch(name_of(by) + "e4m3", {blocks, 1, UpdateTable::kThreads, 1}, table, by);
  In8Bits made;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto& [size, shifts, has_copy] = tensors[t];
    const auto* const copy = memory[t].second + shifts.copy;
    made.copies.emplace_back(copy, copy + size);
    made.parameters.push_back(gpu.numbers(memory[t].first));
    made.most.push_back(*most[t]);
  }
  return made;
}

/// Copies are casts of what a 16-bit copy would be, and `most` grows to its largest number.
template <class Rule>
void check_in_8_bits(const Rule& by) {
  const auto tensors = all_kinds();
  const auto made = in_every_order(update, [&](CudaOnCpu& gpu) { return stepped_in_8_bits(gpu, tensors, by); });
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    INFO(name_of(by) << ", tensor " << t << " of " << tensors[t].size << " elements");
    const double factor = std::ldexp(1.0, static_cast<int>(t % 5) + 3);
    double most = t % 2 == 0 ? 0 : 100;
    std::vector<unsigned> expected;
    for (std::size_t i = 0; i < tensors[t].size; ++i) {
      const auto in_16_bits = number_of(rounded<Bf16>(made.parameters[t][tensors[t].shifts.parameter + i]));
      expected.push_back(kernels_test::nearest_code(kernels_test::kE4M3, in_16_bits * factor));
      most = std::max(most, std::abs(in_16_bits));
    }
    CHECK(made.copies[t] == expected);
    CHECK(made.most[t] == most);
  }
}

TEST_CASE("update: copies in 8 bits are casts of 16-bit copies, magnitudes are told") {
  check_in_8_bits(AdamNumbers{1e-2f, 0.9f, 0.999f, 0.1f, 1e-8f, 0.271f, 0.0547f, 1});
  check_in_8_bits(SgdNumbers{0.1, 0.01, 0, 1, 0, 0});
  check_in_8_bits(SgdNumbers{0.1, 0.01, 0.9, 0.7, 0, 0});
}

TEST_CASE("update: a full table of tensors is updated") {
  const std::vector<Tensor> full(UpdateTable::kMost, {9});
  check<F16>(full, AdamNumbers{1e-2f, 0.9f, 0.999f, 0.1f, 1e-8f, 1, 1, 1});
  check<Bf16>(full, SgdNumbers{0.1, 0.01, 0.9, 1, 0, 0});
}

TEST_CASE("update: every kernel is covered by a test") {
  check<F16>({{9}}, AdamNumbers{1e-2f, 0.9f, 0.999f, 0, 1e-8f, 1, 1, 1});
  check<Bf16>({{9}}, AdamNumbers{1e-2f, 0.9f, 0.999f, 0, 1e-8f, 1, 1, 1});
  for (const double momentum : {0.0, 0.9}) {
    check<F16>({{9}}, SgdNumbers{0.1, 0, momentum, 1, 0, 0});
    check<Bf16>({{9}}, SgdNumbers{0.1, 0, momentum, 1, 0, 0});
    check_in_8_bits(SgdNumbers{0.1, 0, momentum, 1, 0, 0});
  }
  check_in_8_bits(AdamNumbers{1e-2f, 0.9f, 0.999f, 0, 1e-8f, 1, 1, 1});
  CHECK(update.never_launched().empty());
}

}  // namespace kernels_update_test
