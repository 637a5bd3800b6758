#include <autopar/shard/gradients.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"

namespace autopar {

namespace {

using at::Tensor;

constexpr std::int64_t kBucketBytes = 32 << 20;

/// Tensors of one type and device that travel in one message.
using Bucket = std::vector<Tensor>;

std::vector<Bucket> buckets_of(const std::vector<Tensor>& tensors) {
  std::map<std::pair<std::string, c10::ScalarType>, Bucket> open;
  std::map<std::pair<std::string, c10::ScalarType>, std::int64_t> bytes;
  std::vector<Bucket> buckets;
  for (const auto& tensor : tensors) {
    const std::pair key(tensor.device().str(), tensor.scalar_type());
    auto& bucket = open[key];
    if (!bucket.empty() && bytes[key] + static_cast<std::int64_t>(tensor.nbytes()) > kBucketBytes) {
      buckets.push_back(std::exchange(bucket, {}));
      bytes[key] = 0;
    }
    bucket.push_back(tensor);
    bytes[key] += static_cast<std::int64_t>(tensor.nbytes());
  }
  for (auto& [key, bucket] : open) buckets.push_back(std::move(bucket));
  return buckets;
}

void sum_in_place(const std::vector<Tensor>& tensors, const Group& group) {
  for (const auto& bucket : buckets_of(tensors)) {
    std::vector<Tensor> parts;
    for (const auto& tensor : bucket) parts.push_back(tensor.reshape({-1}));
    const auto flat = at::cat(parts);
    group.state()->all_reduce(flat);
    std::int64_t begin = 0;
    for (auto tensor : bucket) {
      tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

/// The first rank's value plus zeros, which is it.
void broadcast_in_place(const std::vector<Tensor>& tensors, const Group& group) {
  if (group.is_alone()) return;
  std::vector<Tensor> sums;
  for (const auto& tensor : tensors) {
    const auto type = tensor.is_floating_point() || tensor.is_complex() ? tensor.scalar_type() : at::kLong;
    sums.push_back(group.place() == 0 ? tensor.detach().to(type, false, true)
                                      : at::zeros(tensor.sizes(), tensor.options().dtype(type).requires_grad(false)));
  }
  sum_in_place(sums, group);
  for (std::size_t i = 0; i < tensors.size(); ++i) Tensor(tensors[i]).detach().copy_(sums[i]);
}

/// Of a model, those in modules that share them over a group, and those that are not.
struct Parts {
  std::vector<Tensor> in_groups, elsewhere;
};

Parts parts_of(const torch::nn::Module& model, bool with_buffers) {
  Parts parts;
  std::set<const void*> seen;
  const auto visit = [&](const torch::nn::Module& module) {
    const auto* sharded = dynamic_cast<const HasShards*>(&module);
    auto& part = sharded != nullptr && !sharded->shards().empty() ? parts.in_groups : parts.elsewhere;
    const auto add = [&](const Tensor& tensor) {
      if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) part.push_back(tensor);
    };
    for (const auto& parameter : module.parameters(false)) add(parameter);
    if (!with_buffers) return;
    for (const auto& buffer : module.buffers(false)) add(buffer);
  };
  visit(model);
  for (const auto& module : model.modules(false)) visit(*module);
  return parts;
}

}  // namespace

std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model) {
  std::vector<ShardedParameter> found;
  const auto visit = [&](const std::string& path, const torch::nn::Module& module) {
    const auto* sharded = dynamic_cast<const HasShards*>(&module);
    if (sharded == nullptr) return;
    for (auto shard : sharded->shards()) {
      if (!path.empty()) shard.name = path + "." + shard.name;
      found.push_back(std::move(shard));
    }
  };
  visit("", model);
  for (const auto& item : model.named_modules("", false)) visit(item.key(), *item.value());
  return found;
}

void sum_gradients(const std::vector<Tensor>& parameters, const Group& group) {
  if (group.is_alone() || parameters.empty()) return;
  const at::NoGradGuard no_grad;
  auto holders = at::zeros({static_cast<std::int64_t>(parameters.size())}, at::kLong);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    holders[static_cast<std::int64_t>(i)] = parameters[i].grad().defined() ? 1 : 0;
  }
  group.state()->all_reduce(holders);
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (holders[static_cast<std::int64_t>(i)].item<std::int64_t>() == 0) continue;
    if (!parameters[i].grad().defined()) parameters[i].mutable_grad() = at::zeros_like(parameters[i]);
    gradients.push_back(parameters[i].grad());
  }
  sum_in_place(gradients, group);
}

void sum_gradients(const torch::nn::Module& model, const Groups& groups) {
  const auto parts = parts_of(model, false);
  sum_gradients(parts.elsewhere, groups.world);
  sum_gradients(parts.in_groups, groups.replicas);
}

void broadcast_state(torch::nn::Module& model, const Groups& groups) {
  const at::NoGradGuard no_grad;
  const auto parts = parts_of(model, true);
  broadcast_in_place(parts.elsewhere, groups.world);
  broadcast_in_place(parts.in_groups, groups.replicas);
}

double clip_grad_norm_(const torch::nn::Module& model, double max_norm, double p) {
  const at::NoGradGuard no_grad;
  expect(p > 0, "clip_grad_norm_: the norm's p must be above 0");
  std::map<std::string, Group> group_of;
  for (const auto& shard : sharded_parameters(model)) group_of[shard.name] = shard.group;
  const bool is_max = std::isinf(p);
  const auto join = [&](double a, double b) { return is_max && !std::isnan(b) ? std::max(a, b) : a + b; };

  double of_all = 0;  // of p-th powers, or the largest
  std::vector<std::pair<Group, double>> of_shards;
  std::vector<Tensor> gradients;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    double power = 0;
    if (const auto& gradient = item.value().grad(); gradient.defined()) {
      gradients.push_back(gradient);
      if (gradient.numel() > 0) {
        const double norm = at::linalg_vector_norm(gradient, p, {}, false, at::kDouble).item<double>();
        power = is_max ? norm : std::pow(norm, p);
      }
    }
    const auto group = group_of.find(item.key());
    if (group == group_of.end()) {
      of_all = join(of_all, power);
      continue;
    }
    const auto known = std::ranges::find(of_shards, group->second, &std::pair<Group, double>::first);
    if (known == of_shards.end()) {
      of_shards.emplace_back(group->second, power);
    } else {
      known->second = join(known->second, power);
    }
  }
  for (const auto& [group, power] : of_shards) {
    auto powers = at::zeros({group.size()}, at::kDouble);
    powers[group.place()] = power;
    group.state()->all_gather(powers);
    for (int place = 0; place < group.size(); ++place) of_all = join(of_all, powers[place].item<double>());
  }
  const double norm = is_max ? of_all : std::pow(of_all, 1 / p);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) {
    for (auto& gradient : gradients) gradient.mul_(factor);
  }
  return norm;
}

}  // namespace autopar
