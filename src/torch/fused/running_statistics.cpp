#include "torch/fused/running_statistics.hpp"

#include <algorithm>
#include <set>

#include <ATen/ops/empty.h>

#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using kernels::StatisticsTable;

bool has_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}
bool is_single(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kFloat; }

int kind_of(const NormStatistics& norm) {
  return (is_single(norm.mean) ? StatisticsTable::kSingle : 0) | (norm.is_unbiased ? StatisticsTable::kUnbiased : 0) |
         (norm.by_sample ? StatisticsTable::kBySample : 0) |
         (is_single(norm.running_mean) ? StatisticsTable::kRunningSingle : 0);
}

}  // namespace

bool PooledStatistics::takes(const std::vector<NormStatistics>& norms) {
  const auto device = norms.front().running_mean.device();
  const auto fits = [&](const at::Tensor& tensor) {
    return has_type(tensor) && tensor.is_contiguous() && tensor.device() == device;
  };
  const auto are_alike = [&](const at::Tensor& mean, const at::Tensor& variance) {
    return fits(mean) && fits(variance) && mean.scalar_type() == variance.scalar_type();
  };
  const bool takes_all = std::ranges::all_of(norms, [&](const NormStatistics& norm) {
    return are_alike(norm.running_mean, norm.running_variance) &&
           (!norm.mean.defined() || are_alike(norm.mean, norm.variance));
  });
  return takes_all &&
         devices::context_of(device.type()).has_kernels(kernels::kRunningStatisticsKernels, device.index());
}

PooledStatistics::PooledStatistics(const std::vector<NormStatistics>& norms) : norms_(norms) {
  std::set<const void*> in_table;
  for (const auto& norm : norms_) {
    const bool is_full = tables_.empty() || static_cast<std::size_t>(tables_.back().norms) == StatisticsTable::kMost;
    if (is_full || in_table.contains(norm.running_mean.const_data_ptr())) {
      tables_.push_back({});
      in_table.clear();
    }
    in_table.insert(norm.running_mean.const_data_ptr());
    auto& table = tables_.back();
    const auto at = static_cast<std::size_t>(table.norms++);
    table.mean[at] = detail::data_of(norm.mean);
    table.variance[at] = detail::data_of(norm.variance);
    table.running_mean[at] = norm.running_mean.data_ptr();
    table.running_variance[at] = norm.running_variance.data_ptr();
    table.count[at] = norm.count;
    table.momentum[at] = norm.momentum;
    table.begin[at] = channels_;
    table.channels[at] = static_cast<int>(norm.running_mean.numel());
    table.kind[at] = kind_of(norm);
    channels_ += table.channels[at];
  }
}

template <class... Arguments>
void PooledStatistics::launch(const char* kernel, Arguments... arguments) const {
  using Shape = kernels::StatisticsShape;
  for (const auto& table : tables_) {
    const kernels::LaunchShape shape{Shape::kBlocks, static_cast<unsigned>(table.norms), Shape::kThreads, 1};
    detail::launch(norms_.front().running_mean, kernels::kRunningStatisticsKernels, kernel, shape, table, arguments...,
                   channels_);
  }
}

at::Tensor PooledStatistics::sums() const {
  const auto sums = at::empty({2, channels_}, norms_.front().running_mean.options().dtype(at::kDouble));
  launch("statistics_sums", detail::memory_of(sums));
  return sums;
}

at::Tensor PooledStatistics::squares(const at::Tensor& sums) const {
  const auto squares = at::empty({channels_}, sums.options());
  launch("statistics_squares", detail::data_of(sums), detail::memory_of(squares));
  return squares;
}

void PooledStatistics::blend(const at::Tensor& sums, const at::Tensor& squares) const {
  launch("statistics_blend", detail::data_of(sums), detail::data_of(squares));
  for (const auto& norm : norms_) {
    for (const auto& written : {norm.running_mean, norm.running_variance})
      if (!written.is_inference()) written.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace autopar::fused
