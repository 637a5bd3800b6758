#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/gradient_norm_source.hpp"
#include "kernels/tensor_table.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_gradient_norm_test {

using namespace cuda_on_cpu;
using namespace autopar::kernels;
using kernels_test::Numbers;

constexpr LaunchShape kOneBlock{1, 1, TensorTable::kThreads, 1};
constexpr auto kBlock = static_cast<std::size_t>(TensorTable::kElementsOfBlock);
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Tensor {
  Numbers numbers;
  std::size_t shift = 0;  ///< elements by which it begins behind a pack

  [[nodiscard]] Numbers behind() const {
    Numbers all(shift, 0.5);
    all.insert(all.end(), numbers.begin(), numbers.end());
    return all;
  }
};
using Tensors = std::vector<Tensor>;

/// Empty, small, whole blocks and tails; in packs and not.
Tensors drawn_tensors(std::mt19937& random, std::size_t most) {
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  Tensors tensors(1 + below(most));
  for (auto& tensor : tensors) {
    const std::size_t blocks = below(3), tail = below(4) == 0 ? 0 : below(below(2) == 0 ? 40 : 3000);
    tensor = {kernels_test::drawn(blocks * kBlock + tail, static_cast<unsigned>(random())), below(2) * below(9)};
  }
  return tensors;
}

std::string named(const char* what, std::size_t place) { return what + std::to_string(place); }

// ---------------------------------------------------------------- norms

struct Clipped {
  Numbers by_rank, norm_and_factor, given;
};

struct Clipping {
  int order, ranks, rank;
  double most;
};

template <class T>
Clipped clipped_on(CudaOnCpu& gpu, const Tensors& tensors, const Clipping& by) {
  std::vector<TensorMemory> memory;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const T* const data = gpu.reads<T>(named("tensor ", i), tensors[i].behind()) + tensors[i].shift;
    memory.push_back({const_cast<T*>(data), static_cast<long long>(tensors[i].numbers.size())});
  }
  const auto tables = tables_of(memory);
  int pieces = 0;
  for (const auto& table : tables) pieces += table.blocks;
  auto* const norms = gpu.room<double>("norms", static_cast<std::size_t>(pieces));
  auto* to = norms;
  for (const auto& table : tables) {
    gpu.launch(std::string("norms_") + kName<T>, table.shape(), table, to, by.order);
    to += table.blocks;
  }
  auto* const by_rank = gpu.room<double>("by rank", static_cast<std::size_t>(by.ranks));
  gpu.launch("norm_by_rank", kOneBlock, norms, pieces, by.order, by_rank, by.ranks, by.rank);
  auto* const norm_and_factor = gpu.room<double>("norm and factor", 2);
  auto* const given = gpu.room<T>("given", 1);
  gpu.launch(std::string("clip_") + kName<T>, kOneBlock, by_rank, by.ranks, by.order, by.most, norm_and_factor, given);
  return {gpu.numbers(by_rank), gpu.numbers(norm_and_factor), gpu.numbers(given)};
}

template <class T>
Clipped clipped(const Tensors& tensors, const Clipping& by) {
  return in_every_order(gradient_norm, [&](CudaOnCpu& gpu) { return clipped_on<T>(gpu, tensors, by); });
}

double exact_norm(const Tensors& tensors, int order) {
  long double sum = 0, largest = 0;
  for (const auto& tensor : tensors) {
    for (const long double number : tensor.numbers) {
      sum += order == kSumOrder ? std::fabs(number) : number * number;
      largest = std::max(largest, std::fabs(number));
    }
  }
  const auto norm = order == kLargestOrder ? largest : order == kSumOrder ? sum : std::sqrt(sum);
  return static_cast<double>(norm);
}

template <class T>
void check_clip(const Tensors& tensors, const Clipping& by) {
  INFO(kName<T> << ", order " << by.order << ", " << tensors.size() << " tensors, rank " << by.rank << " of "
                << by.ranks);
  const auto made = clipped<T>(tensors, by);
  const double norm = exact_norm(tensors, by.order);
  Numbers by_rank(static_cast<std::size_t>(by.ranks), 0);
  by_rank[static_cast<std::size_t>(by.rank)] = norm;
  constexpr double kTolerance = 1e-14;
  CHECK(kernels_test::worst_error(made.by_rank, by_rank) <= kTolerance);
  CHECK(kernels_test::worst_error(made.norm_and_factor, {norm, std::min(1.0, by.most / (norm + 1e-6))}) <= kTolerance);
  CHECK(made.given == Numbers{number_of(rounded<T>(made.norm_and_factor[0]))});
}

template <class Work>
void for_each_gradient_type(const Work& work) {
  kernels_test::for_each_type(work);
  work.template operator()<double>();
}

TEST_CASE("gradient norm: random tensors have the exact norm") {
  std::mt19937 random(20261128);
  for_each_gradient_type([&]<class T>() {
    for (const int order : {kLargestOrder, kSumOrder, kSquaresOrder}) {
      const int ranks = 1 + static_cast<int>(random() % 700);
      const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
      check_clip<T>(drawn_tensors(random, 5), {order, ranks, rank, order == kSumOrder ? 1e9 : 0.25});
    }
  });
}

TEST_CASE("gradient norm: bits follow from sizes, not from alignment") {
  Tensors tensors{{kernels_test::drawn(2 * kBlock + 77, 1)}, {kernels_test::drawn(kBlock, 2)}};
  const auto aligned = clipped<float>(tensors, {kSquaresOrder, 1, 0, 1});
  for (auto& tensor : tensors) tensor.shift = 3;
  CHECK(clipped<float>(tensors, {kSquaresOrder, 1, 0, 1}).by_rank == aligned.by_rank);
}

TEST_CASE("gradient norm: more tensors than a table holds") {
  std::mt19937 random(7);
  Tensors tensors(2 * TensorTable::kMost + 3);
  for (auto& tensor : tensors) tensor.numbers = kernels_test::drawn(random() % 20, static_cast<unsigned>(random()));
  check_clip<float>(tensors, {kSquaresOrder, 1, 0, 2});
  check_clip<float>({}, {kSquaresOrder, 2, 1, 2});
}

TEST_CASE("gradient norm: infinities and what is no number stay") {
  for (const int order : {kLargestOrder, kSumOrder, kSquaresOrder}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{5}, kBlock + 9}) {
      INFO("order " << order << ", at " << place);
      Tensors tensors{{Numbers(3, 1)}, {Numbers(kBlock + 10, -1)}};
      tensors[1].numbers[place] = -kInfinity;
      const auto infinite = clipped<float>(tensors, {order, 2, 1, 1});
      CHECK(infinite.norm_and_factor == Numbers{kInfinity, 0});
      tensors[1].numbers[place] = NAN;
      const auto none = clipped<float>(tensors, {order, 2, 1, 1});
      CHECK((std::isnan(none.norm_and_factor[0]) && std::isnan(none.norm_and_factor[1]) && std::isnan(none.given[0])));
    }
  }
}

// ---------------------------------------------------------------- factors

template <class T, class Factor>
std::vector<Numbers> multiplied_on(CudaOnCpu& gpu, const Tensors& tensors, double factor) {
  std::vector<T*> begins;
  std::vector<TensorMemory> memory;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    begins.push_back(gpu.holds<T>(named("tensor ", i), tensors[i].behind()));
    memory.push_back({begins.back() + tensors[i].shift, static_cast<long long>(tensors[i].numbers.size())});
  }
  const void* const number = gpu.reads<Factor>("factor", {factor});
  for (const auto& table : tables_of(memory))
    gpu.launch(std::string("multiply_") + kName<T>, table.shape(), table, number, sizeof(Factor) == 8 ? 1 : 0);
  std::vector<Numbers> made;
  for (const auto* begin : begins) made.push_back(gpu.numbers(begin));
  return made;
}

template <class T, class Factor>
void check_multiplied(const Tensors& tensors, double factor) {
  const auto made =
      in_every_order(gradient_norm, [&](CudaOnCpu& gpu) { return multiplied_on<T, Factor>(gpu, tensors, factor); });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO(kName<T> << " by " << factor << ", " << tensors[i].numbers.size() << " elements behind " << tensors[i].shift);
    auto exact = tensors[i].behind();
    for (std::size_t e = tensors[i].shift; e < exact.size(); ++e) {
      const double product = sizeof(T) == 8 ? exact[e] * number_of(rounded<Factor>(factor))
                                            : static_cast<float>(exact[e]) * static_cast<float>(factor);
      exact[e] = number_of(rounded<T>(product));
    }
    CHECK(made[i] == exact);
  }
}

TEST_CASE("gradient factor: random tensors are multiplied bitwise") {
  std::mt19937 random(11);
  for_each_gradient_type([&]<class T>() {
    for (const double factor : {1.0, 0.37, -3.0}) {
      const auto tensors = drawn_tensors(random, 4);
      check_multiplied<T, float>(tensors, factor);
      check_multiplied<T, double>(tensors, factor);
    }
  });
}

TEST_CASE("gradient factor: a factor of one writes nothing") {
  static_cast<void>(in_every_order(gradient_norm, [&](CudaOnCpu& gpu) {
    const float* const data = gpu.reads<float>("tensor", Numbers(10, 3));
    const double* const one = gpu.reads<double>("factor", {1});
    const auto tables = tables_of({{const_cast<float*>(data), 10}});
    gpu.launch("multiply_f32", tables[0].shape(), tables[0], one, 1);
    return 0;
  }));
}

TEST_CASE("gradient norm: every kernel is covered by a test") {
  for_each_gradient_type([&]<class T>() {
    check_clip<T>({{Numbers{3, -4}}}, {kSquaresOrder, 1, 0, 1});
    check_multiplied<T, float>({{Numbers{3, -4}}}, 2);
  });
  CHECK(gradient_norm.never_launched().empty());
}

}  // namespace kernels_gradient_norm_test
