#include "torch/deployment/deployment.hpp"

#include <algorithm>
#include <utility>

#include "torch/device/device_context.hpp"

namespace autopar::deployment {

AnyTransport Deployment::new_transport() const {
  TransportOptions options;
  if (device_.is_cuda()) {
    options.kind = TransportKind::kNccl;
    options.device = device_.index();
    options.compute_stream = [&context = devices::context_of(device_.type()), index = device_.index()] {
      return context.current_stream(index);
    };
  }
  return make_transport_(options);
}

Bytes Deployment::planned_memory() const {
  Bytes planned;
  for (const auto& stage : plan().stages) {
    if (stage.mesh.contains(ranks_.rank())) planned += stage.peak_memory;
  }
  return planned;
}

void Deployment::start() {
  wire_ = new_transport();
  sums_ = sums_over(everyone());
}

GroupId Deployment::group_of(const std::vector<Rank>& ranks) {
  if (ranks.size() < 2) return {};
  auto [known, is_new] = groups_.try_emplace(ranks);
  if (is_new) known->second = wire_.make_group(ranks);
  return known->second;
}

GroupId Deployment::gather_group_of(const std::vector<Rank>& ranks) {
  auto [known, is_new] = gather_groups_.try_emplace(ranks);
  if (is_new) known->second = wire_.make_group(ranks);
  return known->second;
}

GroupId Deployment::tensor_group_of(const std::vector<Rank>& ranks) {
  auto [known, is_new] = tensor_groups_.try_emplace(ranks);
  if (is_new) known->second = wire_.make_group(ranks);
  return known->second;
}

void Deployment::connect(const Pipeline& pipeline) {
  std::vector<DirectedPair> pairs;
  for (const auto& channel : pipeline.channels) {
    const auto ranks_of = [&](StageId stage) {
      return stage.valid() ? pipeline.stages[stage.index()].ranks() : everyone();
    };
    for (const auto from : ranks_of(channel.from)) {
      for (const auto to : ranks_of(channel.to)) {
        if (from == to) continue;
        pairs.push_back({from, to});
        if (channel.differentiable) pairs.push_back({to, from});
      }
    }
  }
  const auto ends = [](const DirectedPair& pair) { return std::pair(pair.from, pair.to); };
  std::ranges::sort(pairs, {}, ends);
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  sends_messages_ = sends_messages_ || !pairs.empty();
  wire_.connect(pairs);
}

WorldSums Deployment::sums_over(const std::vector<Rank>& ranks) {
  return {wire_, group_of(ranks), static_cast<int>(ranks.size()), device_};
}

std::vector<Rank> Deployment::everyone() const {
  std::vector<Rank> ranks;
  for (int r = 0; r < ranks_.size(); ++r) ranks.push_back(Rank(r));
  return ranks;
}

}  // namespace autopar::deployment
