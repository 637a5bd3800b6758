#include <autopar/shard/state.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/gradients.hpp>

#include "shard/group_state.hpp"

namespace autopar {

namespace {

using at::Tensor;

/// A tensor of the model and, if it is one, what it is a slice of.
struct Entry {
  std::string name;
  Tensor tensor;
  std::optional<ShardedParameter> shard;

  [[nodiscard]] std::vector<std::int64_t> whole_sizes() const {
    auto sizes = tensor.sizes().vec();
    if (shard.has_value()) sizes[static_cast<std::size_t>(shard->dim)] = shard->split.total();
    return sizes;
  }
  [[nodiscard]] Tensor slice_of(const Tensor& whole, int place) const {
    if (!shard.has_value()) return whole.contiguous();
    return whole.narrow(shard->dim, shard->split.begin(place), shard->split.length(place)).contiguous();
  }
  /// Room on the host for the slice of a place.
  [[nodiscard]] Tensor room_for(int place) const {
    auto sizes = tensor.sizes().vec();
    if (shard.has_value()) sizes[static_cast<std::size_t>(shard->dim)] = shard->split.length(place);
    return at::empty(sizes, tensor.scalar_type());
  }
};

std::vector<Entry> entries_of(const torch::nn::Module& model, const Group& group) {
  std::map<std::string, ShardedParameter> shards;
  for (auto& shard : sharded_parameters(model)) {
    if (!(shard.group == group)) {
      throw InvalidArgument("'" + shard.name +
                            "' is sharded over another group of ranks; pass that of the model's layers");
    }
    shards.emplace(shard.name, shard);
  }
  std::vector<Entry> entries;
  for (const auto& item : model.named_parameters()) {
    const auto shard = shards.find(item.key());
    entries.push_back({item.key(), item.value(), {}});
    if (shard != shards.end()) entries.back().shard = shard->second;
  }
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined()) entries.push_back({item.key(), item.value(), {}});
  }
  return entries;
}

/// Why the state is not the model's; empty if it is.
std::string fault_of(const StateDict& state, const std::vector<Entry>& entries) {
  std::ostringstream text;
  for (const auto& entry : entries) {
    const auto* given = state.find(entry.name);
    if (given == nullptr) {
      text << "the state has no '" << entry.name << "'";
      return text.str();
    }
    if (!given->defined() || given->sizes() != at::IntArrayRef(entry.whole_sizes())) {
      text << "'" << entry.name << "' is " << (given->defined() ? given->sizes() : at::IntArrayRef())
           << " in the state, but " << at::IntArrayRef(entry.whole_sizes()) << " in the model";
      return text.str();
    }
  }
  for (const auto& item : state) {
    if (std::ranges::find(entries, item.key(), &Entry::name) != entries.end()) continue;
    text << "the model has no '" << item.key() << "', which the state has";
    return text.str();
  }
  return {};
}

void require_good_everywhere(std::string fault, const Group& group) {
  if (!group.is_alone()) {
    auto length = at::zeros({1}, at::kLong);
    if (group.place() == 0) length[0] = static_cast<std::int64_t>(fault.size());
    group.state()->all_reduce(length);
    auto text = at::zeros({group.size(), length[0].item<std::int64_t>()}, at::kByte);
    if (group.place() == 0) std::memcpy(text.data_ptr(), fault.data(), fault.size());
    group.state()->all_gather(text);
    fault.assign(static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.size(1)));
  }
  if (!fault.empty()) throw InvalidArgument("relocate_state: " + fault + "; pass the state of the same dense model");
}

}  // namespace

StateDict collect_state(const torch::nn::Module& model, const Group& group) {
  const at::NoGradGuard no_grad;
  StateDict state;
  for (const auto& entry : entries_of(model, group)) {
    const auto own = entry.tensor.detach().cpu().contiguous();
    if (!entry.shard.has_value()) {
      if (group.place() == 0) state.insert(entry.name, own.clone());
    } else if (group.place() != 0) {
      if (own.numel() > 0) group.state()->send(own, 0);
    } else {
      std::vector<Tensor> slices{own};
      for (int place = 1; place < group.size(); ++place) {
        slices.push_back(entry.room_for(place));
        if (slices.back().numel() > 0) group.state()->receive(slices.back(), place);
      }
      state.insert(entry.name, at::cat(slices, entry.shard->dim));
    }
  }
  return state;
}

void relocate_state(torch::nn::Module& model, const StateDict& state, const Group& group) {
  const at::NoGradGuard no_grad;
  const auto entries = entries_of(model, group);
  require_good_everywhere(group.place() == 0 ? fault_of(state, entries) : "", group);
  for (const auto& entry : entries) {
    auto target = entry.tensor.detach();
    if (group.place() != 0) {
      const auto slice = entry.room_for(group.place());
      if (slice.numel() > 0) group.state()->receive(slice, 0);
      target.copy_(slice);
      continue;
    }
    const auto whole = state[entry.name].detach().to(at::kCPU, target.scalar_type());
    for (int place = 1; place < group.size(); ++place) {
      const auto slice = entry.slice_of(whole, place);
      if (slice.numel() > 0) group.state()->send(slice, place);
    }
    target.copy_(entry.slice_of(whole, 0));
  }
}

}  // namespace autopar
