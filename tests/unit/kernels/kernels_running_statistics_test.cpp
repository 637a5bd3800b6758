#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/running_statistics_source.hpp"
#include "unit/kernels/numbers.hpp"

// Statistics of ranks, pooled, are those of the batch (Chan, Golub, LeVeque 1979).
namespace kernels_running_statistics_test {

using namespace cuda_on_cpu;
using autopar::kernels::StatisticsShape, autopar::kernels::StatisticsTable;
using kernels_test::Numbers;

/// A norm, and by rank the elements of each channel; of an instance norm they are the means of samples, and their
/// squares the variances.
struct Norm {
  std::size_t channels = 1;
  bool by_sample = false, is_single = false, is_unbiased = false, is_running_single = false;
  double momentum = 0.1;
  std::vector<std::vector<Numbers>> elements;  ///< [rank][channel]

  [[nodiscard]] int kind() const {
    return (is_single ? StatisticsTable::kSingle : 0) | (is_unbiased ? StatisticsTable::kUnbiased : 0) |
           (by_sample ? StatisticsTable::kBySample : 0) | (is_running_single ? StatisticsTable::kRunningSingle : 0);
  }
};
using Norms = std::vector<Norm>;

double mean_of(const Numbers& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}
double variance_of(const Numbers& numbers, bool is_unbiased) {
  const double mean = mean_of(numbers);
  double sum = 0;
  for (const double number : numbers) sum += (number - mean) * (number - mean);
  return sum / (static_cast<double>(numbers.size()) - (is_unbiased ? 1 : 0));
}
double statistic_of(const Norm& norm, const Numbers& numbers, bool is_unbiased) {
  if (!norm.by_sample) return variance_of(numbers, is_unbiased);
  Numbers squares = numbers;
  for (auto& number : squares) number *= number;
  return mean_of(squares);
}

/// Counts of elements differ by rank and norm; a rank may have none, or one.
Norms drawn_norms(std::mt19937& random, std::size_t ranks, std::size_t count) {
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  Norms norms(count);
  for (auto& norm : norms) {
    norm = {1 + below(below(9) == 0 ? 2500 : 40),
            below(3) == 0,
            below(2) == 0,
            below(2) == 0,
            below(2) == 0,
            static_cast<double>(1 + below(10)) / 10,
            {}};
    const double offset = norm.is_single ? 0 : 1e4;  // by which squares would lose eight digits
    norm.elements.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto elements = r == 0 ? 2 + below(5) : below(4);
      norm.elements[r].resize(elements == 0 ? 0 : norm.channels);
      for (auto& channel : norm.elements[r]) {
        channel = kernels_test::drawn(elements, static_cast<unsigned>(random()));
        for (auto& number : channel) number += offset;
      }
    }
  }
  return norms;
}

Numbers running_of(const Norm& norm, unsigned seed) { return kernels_test::drawn(norm.channels, seed); }

struct Running {
  std::vector<Numbers> means, variances;
};

/// The launches of all ranks, with sums over them between.
class OnRanks {
 public:
  OnRanks(CudaOnCpu& gpu, const Norms& norms, std::size_t ranks) : gpu_(gpu), norms_(norms), tables_(ranks) {
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t k = 0; k < norms.size(); ++k) put(r, k);
  }

  [[nodiscard]] Running run() {
    const auto all = static_cast<std::size_t>(channels_);
    const auto* const sums = over_ranks("sums", 2 * all, [&](const StatisticsTable& table, double* to) {
      gpu_.launch("statistics_sums", shape(), table, to, channels_);
    });
    const auto* const squares = over_ranks("squares", all, [&](const StatisticsTable& table, double* to) {
      gpu_.launch("statistics_squares", shape(), table, sums, to, channels_);
    });
    gpu_.launch("statistics_blend", shape(), tables_.back(), sums, squares, channels_);
    Running made;
    for (std::size_t k = 0; k < norms_.size(); ++k) {
      made.means.push_back(running(tables_.back().running_mean[k], norms_[k]));
      made.variances.push_back(running(tables_.back().running_variance[k], norms_[k]));
    }
    return made;
  }

 private:
  [[nodiscard]] autopar::kernels::LaunchShape shape() const {
    return {StatisticsShape::kBlocks, static_cast<unsigned>(norms_.size()), StatisticsShape::kThreads, 1};
  }

  template <class Launch>
  const double* over_ranks(const std::string& name, std::size_t count, const Launch& launch) {
    Numbers total(count, 0);
    for (std::size_t r = 0; r < tables_.size(); ++r) {
      auto* const mine = gpu_.room<double>(name + std::to_string(r), count);
      launch(tables_[r], mine);
      for (std::size_t i = 0; i < count; ++i) total[i] += mine[i];
    }
    return gpu_.reads<double>(name + " of all", total);
  }

  [[nodiscard]] Numbers running(const void* begin, const Norm& norm) const {
    return norm.is_running_single ? gpu_.numbers(static_cast<const float*>(begin))
                                  : gpu_.numbers(static_cast<const double*>(begin));
  }
  [[nodiscard]] const void* reads(const std::string& name, const Numbers& numbers, bool is_single) {
    if (is_single) return gpu_.reads<float>(name, numbers);
    return gpu_.reads<double>(name, numbers);
  }
  [[nodiscard]] void* holds(const std::string& name, const Numbers& numbers, bool is_single) {
    if (is_single) return gpu_.holds<float>(name, numbers);
    return gpu_.holds<double>(name, numbers);
  }

  void put(std::size_t rank, std::size_t k) {
    const auto& norm = norms_[k];
    auto& table = tables_[rank];
    const auto name = std::to_string(rank) + ", " + std::to_string(k);
    const auto& elements = norm.elements[rank];
    if (!elements.empty()) {
      Numbers means, variances;
      for (const auto& channel : elements) {
        means.push_back(mean_of(channel));
        variances.push_back(statistic_of(norm, channel, norm.is_unbiased));
      }
      table.mean[k] = reads("mean " + name, means, norm.is_single);
      table.variance[k] = reads("variance " + name, variances, norm.is_single);
      table.count[k] = static_cast<double>(elements.front().size());
    }
    const auto seed = static_cast<unsigned>(k);
    table.running_mean[k] = holds("running mean " + name, running_of(norm, seed), norm.is_running_single);
    table.running_variance[k] = holds("running variance " + name, running_of(norm, seed + 1), norm.is_running_single);
    table.momentum[k] = norm.momentum;
    table.begin[k] = rank == 0 ? channels_ : tables_.front().begin[k];
    table.channels[k] = static_cast<int>(norm.channels);
    table.kind[k] = norm.kind();
    table.norms = static_cast<int>(norms_.size());
    if (rank == 0) channels_ += table.channels[k];
  }

  CudaOnCpu& gpu_;
  const Norms& norms_;
  std::vector<StatisticsTable> tables_;
  int channels_ = 0;
};

void check(const Norms& norms, std::size_t ranks) {
  const auto made =
      in_every_order(running_statistics, [&](CudaOnCpu& gpu) { return OnRanks(gpu, norms, ranks).run(); });
  for (std::size_t k = 0; k < norms.size(); ++k) {
    const auto& norm = norms[k];
    INFO("norm " << k << " of " << norms.size() << ", kind " << norm.kind() << ", " << norm.channels << " channels, "
                 << ranks << " ranks");
    auto mean = running_of(norm, static_cast<unsigned>(k)), variance = running_of(norm, static_cast<unsigned>(k) + 1);
    for (std::size_t c = 0; c < norm.channels; ++c) {
      Numbers batch;
      for (const auto& of_rank : norm.elements)
        if (!of_rank.empty()) batch.insert(batch.end(), of_rank[c].begin(), of_rank[c].end());
      mean[c] += norm.momentum * (mean_of(batch) - mean[c]);
      variance[c] += norm.momentum * (statistic_of(norm, batch, true) - variance[c]);
    }
    const double tolerance = norm.is_single || norm.is_running_single ? 1e-5 : 1e-12;
    CHECK(kernels_test::worst_error(made.means[k], mean) <= tolerance);
    CHECK(kernels_test::worst_error(made.variances[k], variance) <= tolerance);
  }
}

TEST_CASE("running statistics: of random ranks are those of the batch") {
  std::mt19937 random(20261129);
  for (const std::size_t ranks : {1, 2, 3, 5}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{12}}) check(drawn_norms(random, ranks, count), ranks);
  }
}

TEST_CASE("running statistics: a full table of norms is updated") {
  std::mt19937 random(3);
  check(drawn_norms(random, 2, StatisticsTable::kMost), 2);
  CHECK(running_statistics.never_launched().empty());
}

}  // namespace kernels_running_statistics_test
