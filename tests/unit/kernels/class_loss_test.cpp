#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/class_loss_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_class_loss_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;

struct Case {
  std::size_t classes, width;
  bool weighs = false, in_place = false;
  bool is_given_alike = false;  ///< one gradient for all losses
  std::size_t padding = 0;      ///< columns behind each row that get zeros; the last row has them, too
};

struct Rows {
  Numbers logits;  ///< [rows, width], to the end of the last row's classes and padding
  Numbers targets, weight, given;
};

struct Outcome {
  Numbers log_sums, losses, gradients;
};

constexpr long long kIgnored = -100;

Rows rows_of(const Case& one) {
  Rows rows;
  const auto last = static_cast<double>(one.classes) - 1;
  rows.targets = {0, last, static_cast<double>(kIgnored), last + 1, -1, std::floor(last / 2)};
  rows.logits = kernels_test::drawn((rows.targets.size() - 1) * one.width + one.classes + one.padding, 1);
  for (std::size_t i = 0; i < rows.logits.size(); ++i) rows.logits[i] *= i % 97 == 0 ? 8 : 2;
  if (one.classes > 1) rows.logits[one.width + one.classes - 2] = -INFINITY;  // a class that is impossible
  rows.weight = one.weighs ? kernels_test::drawn(one.classes, 2) : Numbers(one.classes, 1);
  rows.given = one.is_given_alike ? Numbers(rows.targets.size(), 0.25) : kernels_test::drawn(rows.targets.size(), 3);
  return rows;
}

/// In double precision. Between rows the gradient's memory keeps what it had: the logits if it lies in their place.
Outcome exact_outcome(const Case& one, const Rows& rows) {
  Outcome made;
  made.gradients = one.in_place ? rows.logits : Numbers(rows.logits.size(), NAN);
  for (std::size_t row = 0; row < rows.targets.size(); ++row) {
    const auto* const x = rows.logits.data() + row * one.width;
    double sum = 0;
    for (std::size_t at = 0; at < one.classes; ++at) sum += std::exp(x[at]);
    made.log_sums.push_back(std::log(sum));
    const double target = rows.targets[row];
    const bool counts = target >= 0 && target < static_cast<double>(one.classes);
    const auto own = counts ? static_cast<std::size_t>(target) : 0;
    made.losses.push_back(counts ? rows.weight[own] * (std::log(sum) - x[own]) : target == kIgnored ? 0 : NAN);
    for (std::size_t at = 0; at < one.classes; ++at) {
      const double share = std::exp(x[at]) / sum - (at == own ? 1 : 0);
      made.gradients[row * one.width + at] = counts ? rows.given[row] * rows.weight[own] * share : 0;
    }
    std::fill_n(made.gradients.begin() + static_cast<std::ptrdiff_t>(row * one.width + one.classes), one.padding, 0.0);
  }
  return made;
}

template <class T>
Outcome outcome_of_kernels(CudaOnCpu& gpu, const Case& one, const Rows& rows) {
  const auto count = rows.targets.size();
  const autopar::kernels::LaunchShape shape{static_cast<unsigned>(count), 1, autopar::kernels::kClassLossThreads, 1};
  const std::string type = kName<T>;
  const int classes = static_cast<int>(one.classes), step = one.is_given_alike ? 0 : 1;
  const auto width = static_cast<long long>(one.width);
  T* const logits = gpu.holds<T>("logits", rows.logits);
  const auto* targets = gpu.reads<long long>("targets", rows.targets);
  const auto* weight = one.weighs ? gpu.reads<float>("weight", rows.weight) : nullptr;
  const auto* given = gpu.reads<float>("given", step == 0 ? Numbers{rows.given[0]} : rows.given);
  auto* const log_sums = gpu.room<float>("log_sums", count);
  auto* const losses = gpu.room<float>("losses", count);
  gpu.launch("cross_entropy_losses_" + type, shape, logits, targets, weight, kIgnored, log_sums, losses, classes,
             width);
  T* const made = one.in_place ? logits : gpu.room<T>("gradients", rows.logits.size());
  gpu.launch("cross_entropy_gradients_" + type, shape, logits, targets, weight, kIgnored, log_sums, given, step, made,
             classes, width, width, static_cast<int>(one.padding), 0LL, static_cast<long long>(classes));
  return {gpu.numbers(log_sums), gpu.numbers(losses), gpu.numbers(made)};
}

TEST_CASE("class_loss: losses and gradients match fp64") {
  const std::vector<Case> cases{{1, 1},
                                {10, 10, true},
                                {517, 517},
                                {64, 72, false, true},
                                {4211, 4216, true, true, true},
                                {1, 8, false, false, false, 7},
                                {517, 520, true, false, false, 3},
                                {4211, 4216, false, true, false, 5},
                                {60, 72, true, false, true, 4}};  // 8 columns behind them keep what they have
  for (const auto& one : cases) {
    const auto rows = rows_of(one);
    const auto exact = exact_outcome(one, rows);
    kernels_test::for_each_type([&]<class T>() {
      INFO(one.classes << " classes, rows of " << one.width << ", padding " << one.padding << ", " << kName<T>);
      const auto made =
          in_every_order(class_loss, [&](CudaOnCpu& gpu) { return outcome_of_kernels<T>(gpu, one, rows); });
      constexpr double kSingle = 8 * kEpsilon<float>;  // of a dozen additions
      CHECK(kernels_test::worst_error(made.log_sums, exact.log_sums) <= kSingle);
      CHECK(kernels_test::worst_error(made.losses, exact.losses) <= 4 * kSingle);
      CHECK(kernels_test::worst_error(made.gradients, exact.gradients) <= kEpsilon<T> + 4 * kSingle);
    });
  }
}

/// Some of the classes, in rows with so many columns behind them.
Numbers columns(const Numbers& rows, std::size_t width, std::size_t first, std::size_t classes, std::size_t behind,
                std::size_t count) {
  Numbers part(count * (classes + behind), 0);
  for (std::size_t row = 0; row < count; ++row)
    std::copy_n(rows.data() + row * width + first, classes, part.data() + row * (classes + behind));
  return part;
}

/// A rank's classes of a case.
struct Block {
  std::size_t first, classes, behind;  ///< the last: columns behind each row of logits

  [[nodiscard]] std::size_t width() const { return classes + behind; }
};

/// [3, rows], in double precision.
Numbers exact_statistics(const Block& block, const Rows& rows, const Numbers& logits) {
  const auto count = rows.targets.size();
  Numbers made(3 * count, 0);
  for (std::size_t row = 0; row < count; ++row) {
    const auto* const x = logits.data() + row * block.width();
    double sum = 0;
    for (std::size_t at = 0; at < block.classes; ++at) sum += std::exp(x[at]);
    made[row] = std::log(sum);
    made[count + row] = sum > 0 ? 1 : 0;
    const double own = rows.targets[row] - static_cast<double>(block.first);
    if (own >= 0 && own < static_cast<double>(block.classes)) made[2 * count + row] = x[static_cast<std::size_t>(own)];
  }
  return made;
}

struct OfBlock {
  Numbers statistics, gradients;
};

template <class T>
OfBlock block_by_kernels(CudaOnCpu& gpu, const Case& one, const Block& block, const Rows& rows, const Numbers& part,
                         const Numbers& all_log_sums) {
  const auto count = rows.targets.size();
  const autopar::kernels::LaunchShape shape{static_cast<unsigned>(count), 1, autopar::kernels::kClassLossThreads, 1};
  const std::string type = kName<T>;
  const auto first = static_cast<long long>(block.first), all = static_cast<long long>(one.classes),
             width = static_cast<long long>(block.width());
  const int classes = static_cast<int>(block.classes), step = one.is_given_alike ? 0 : 1;
  T* const logits = gpu.holds<T>("logits", part);
  const auto* targets = gpu.reads<long long>("targets", rows.targets);
  const auto* weight = one.weighs ? gpu.reads<float>("weight", rows.weight) : nullptr;
  const auto* log_sums = gpu.reads<float>("log_sums", all_log_sums);
  const auto* given = gpu.reads<float>("given", step == 0 ? Numbers{rows.given[0]} : rows.given);
  auto* const statistics = gpu.room<float>("statistics", 3 * count);
  gpu.launch("cross_entropy_statistics_" + type, shape, logits, targets, first, statistics, classes, width);
  T* const gradients = one.in_place ? logits : gpu.room<T>("gradients", count * block.classes);
  gpu.launch("cross_entropy_gradients_" + type, shape, logits, targets, weight, kIgnored, log_sums, given, step,
             gradients, classes, width, static_cast<long long>(block.classes), 0, first, all);
  return {gpu.numbers(statistics), gpu.numbers(gradients)};
}

TEST_CASE("class_loss: statistics and gradients of blocks of the classes") {
  for (const auto& one : std::vector<Case>{{10, 10, true}, {517, 517}, {4208, 4208, true, true, true}, {2, 2}}) {
    const auto rows = rows_of(one);
    const auto exact = exact_outcome(one, rows);
    const std::size_t cut = one.classes / 2, behind = one.in_place ? 0 : 5;
    for (const Block& block : {Block{0, cut, behind}, Block{cut, one.classes - cut, behind}}) {
      const auto part = columns(rows.logits, one.width, block.first, block.classes, behind, rows.targets.size());
      const auto gradients = columns(exact.gradients, one.width, block.first, block.classes, 0, rows.targets.size());
      kernels_test::for_each_type([&]<class T>() {
        INFO(block.classes << " of " << one.classes << " classes from " << block.first << " on, " << kName<T>);
        const auto made = in_every_order(class_loss, [&](CudaOnCpu& gpu) {
          return block_by_kernels<T>(gpu, one, block, rows, part, exact.log_sums);
        });
        constexpr double kSingle = 8 * kEpsilon<float>;
        CHECK(kernels_test::worst_error(made.statistics, exact_statistics(block, rows, part)) <= kSingle);
        CHECK(kernels_test::worst_error(made.gradients, gradients) <= kEpsilon<T> + 4 * kSingle);
      });
    }
  }
  CHECK(class_loss.never_launched().empty());
}

TEST_CASE("class_loss: a NaN logit makes its row's loss alone NaN") {
  const Case one{40, 40};
  auto rows = rows_of(one);
  rows.logits[one.width + 33] = NAN;
  const auto made =
      in_every_order(class_loss, [&](CudaOnCpu& gpu) { return outcome_of_kernels<Bf16>(gpu, one, rows); });
  CHECK(std::isnan(made.losses[1]));
  CHECK(std::isfinite(made.losses[0]));
  CHECK(made.losses[2] == 0);
}

}  // namespace kernels_class_loss_test
