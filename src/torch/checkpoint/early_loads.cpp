#include "torch/checkpoint/early_loads.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/parameters/optimizer_state.hpp"

namespace autopar::checkpoint {

namespace {

using Numbers = std::vector<std::size_t>;
using StateAddress = const torch::optim::OptimizerParamState*;

/// The answers of every rank about the same things, by rank.
std::vector<std::vector<char>> told_by_all(World& world, const std::vector<char>& mine, const std::string& subject) {
  std::vector<std::vector<char>> all;
  for (const auto& blob : world.all_gather(std::as_bytes(std::span(mine)), "load of a checkpoint")) {
    const auto* first = reinterpret_cast<const char*>(blob.data());
    all.emplace_back(first, first + blob.size());
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].size() == all[0].size()) continue;
    throw CheckpointError(subject + ": rank " + std::to_string(rank) +
                          " has another number of parameters and buffers than rank 0; construct the same model on " +
                          "every rank");
  }
  return all;
}

std::map<const void*, StateAddress> states_of(torch::optim::Optimizer& optimizer) {
  std::map<const void*, StateAddress> states;
  for (const auto& [key, state] : optimizer.state()) states[key] = state.get();
  return states;
}

}  // namespace

struct EarlyLoads::Load {
  /// An optimizer whose state will be read at deployment.
  struct Awaited {
    torch::optim::Optimizer* optimizer = nullptr;
    std::map<const void*, StateAddress> states{};  ///< the states that it had before
    bool is_marked = false;                        ///< has an entry that clearing the state removes
  };

  Load(World& world, const std::filesystem::path& folder, std::vector<ShardedTensorMetadata> tensors,
       const std::vector<torch::optim::Optimizer*>& optimizers, const LoadOptions& options)
      : loading(world, folder, std::move(tensors), optimizers, options) {}

  Loading loading;
  std::map<std::size_t, std::size_t> expected{};  ///< by item of a recorded tensor: its number in the recording
  std::vector<Awaited> awaited{};
  // ---- read by `bring`
  Numbers items{};
  std::vector<at::Tensor> arrived{};
  std::set<const void*> kept{};  ///< parameters whose state the program wrote
};

// ---------------------------------------------------------------- before the first call

LoadReport EarlyLoads::add(World& world, const std::filesystem::path& folder,
                           std::vector<ShardedTensorMetadata> tensors,
                           const std::vector<torch::optim::Optimizer*>& optimizers, const LoadOptions& options,
                           InitRecord* init, const KeptValues& kept) {
  auto load = std::make_shared<Load>(world, folder, std::move(tensors), optimizers, options);
  auto& loading = load->loading;
  loading.read_header();
  loading.match();
  KeptLoad kept_load(world, kept, loading.kept(), options.missing, loading.subject());
  loading.verify();
  kept_load.take();  // before the rest, since an object of the user may refuse its value
  std::vector<char> has_memory;
  for (const auto& item : loading.items()) {
    has_memory.push_back(item.optimizer == nullptr && !trace::is_fake(item.tensor->handle) ? 1 : 0);
  }
  take_at_once(world, *load, has_memory);
  loading.take_options();
  for (std::size_t i = 0; init != nullptr && i < loading.items().size(); ++i) {
    const auto& item = loading.items()[i];
    const bool is_recorded = item.optimizer == nullptr && has_memory[i] == 0 && loading.is_there(i);
    if (is_recorded) load->expected[i] = init->expect_data(item.tensor->handle);
  }
  for (auto* optimizer : loading.loaded()) {
    auto states = states_of(*optimizer);
    parameters::refuse_to_save(
        *optimizer,
        "torch::save: the state of this optimizer, which was loaded, comes with the model's first call; call "
        "model->prepare(arguments...) first");
    load->awaited.push_back({optimizer, std::move(states), parameters::refuses_to_save(*optimizer)});
  }
  loads_.push_back(std::move(load));
  return loading.report();
}

/// Reads one item at a time, or several small ones: a rank that holds the whole model may not have memory for it twice.
void EarlyLoads::take_at_once(World& world, Load& load, const std::vector<char>& has_memory) {
  constexpr std::int64_t kPortion = std::int64_t{256} << 20;  // bytes
  auto& loading = load.loading;
  const auto all = told_by_all(world, has_memory, loading.subject());
  Numbers portion;
  std::vector<std::vector<Rank>> holders;
  std::int64_t bytes = 0;
  const auto take = [&] {
    if (portion.empty()) return;
    loading.take_values(portion, loading.transfer_whole(portion, holders));
    portion.clear();
    holders.clear();
    bytes = 0;
  };
  for (std::size_t i = 0; i < has_memory.size(); ++i) {
    std::vector<Rank> with_memory;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][i] != 0) with_memory.push_back(Rank::of(rank));
    }
    if (with_memory.empty() || !loading.is_there(i)) continue;
    portion.push_back(i);
    holders.push_back(std::move(with_memory));
    bytes += loading.items()[i].entry.bytes().value();
    if (bytes >= kPortion) take();
  }
  take();
}

void EarlyLoads::require_same_groups(const torch::optim::Optimizer& optimizer) const {
  for (const auto& load : loads_) load->loading.require_same_groups(optimizer);
}

// ---------------------------------------------------------------- at deployment

void EarlyLoads::bring(World& world, const std::vector<ShardedTensorMetadata>& placed, InitRecord* init) {
  for (const auto& load : loads_) load->loading.place(placed);
  try {
    if (init != nullptr) bring_recorded(world, *init);
    bring_state();
  } catch (const CheckpointError&) {
    failure_ = std::current_exception();
    forget_data(init);
  }
  for (const auto& load : loads_) {
    for (const auto& awaited : load->awaited) parameters::allow_to_save(*awaited.optimizer);
  }
}

/// Drops the data that the recording was given.
void EarlyLoads::forget_data(InitRecord* init) const {
  for (const auto& load : loads_) {
    for (const auto& [item, number] : load->expected) init->give(number, {});
  }
}

// A tensor that the recording leaves as it was loaded is read into its slices and shards. A tensor that the recording
// changes later, and the tensors that it depends on, are needed whole where the recording is run.
void EarlyLoads::bring_recorded(World& world, InitRecord& init) {
  const auto holds = [&](const CheckpointItem& item) {
    return std::binary_search(item.holders().begin(), item.holders().end(), world.rank_id());
  };
  std::vector<at::Tensor> changed;           // on this rank, since the last load that has them
  std::vector<std::vector<char>> unchanged;  // by load, by item
  std::set<const void*> seen;                // handles of later loads
  for (auto load = loads_.rbegin(); load != loads_.rend(); ++load) {
    const auto& items = (*load)->loading.items();
    unchanged.emplace(unchanged.begin(), items.size(), 0);
    for (const auto& [i, number] : (*load)->expected) {
      const auto& handle = items[i].tensor->handle;
      if (!seen.insert(handle.unsafeGetTensorImpl()).second) continue;
      if (!holds(items[i]) || !trace::is_fake(handle)) continue;  // tensors with memory also have values
      unchanged.front()[i] = init.changed_since(number, handle) ? 0 : 1;
      if (unchanged.front()[i] == 0) changed.push_back(handle);
    }
  }
  const auto numbers = init.expected_behind(changed);
  const std::set<std::size_t> needed(numbers.begin(), numbers.end());
  for (const auto& load : loads_) {
    auto& loading = load->loading;
    std::vector<char> needs(loading.items().size(), 0);
    for (const auto& [i, number] : load->expected) needs[i] = needed.contains(number) ? 1 : 0;
    const auto all = told_by_all(world, needs, loading.subject());
    Numbers items;
    std::vector<std::vector<Rank>> holders;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      std::vector<Rank> needing;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank][i] != 0) needing.push_back(Rank::of(rank));
      }
      if (needing.empty()) continue;
      items.push_back(i);
      holders.push_back(std::move(needing));
    }
    const auto arrived = loading.transfer_whole(items, holders);
    for (std::size_t k = 0; k < items.size(); ++k) {
      if (arrived[k].defined()) init.give(load->expected.at(items[k]), arrived[k]);
    }
  }
  for (std::size_t i = 0; i < loads_.size(); ++i) bring_unchanged(world, *loads_[i], unchanged[i]);
}

/// @param unchanged  by item, whether this rank holds it and takes it as it is in the file
void EarlyLoads::bring_unchanged(World& world, Load& load, const std::vector<char>& unchanged) {
  const auto all = told_by_all(world, unchanged, load.loading.subject());
  for (std::size_t i = 0; i < unchanged.size(); ++i) {
    if (std::ranges::any_of(all, [i](const auto& rank) { return rank[i] != 0; })) load.items.push_back(i);
  }
  load.arrived = load.loading.transfer(load.items);
  for (std::size_t k = 0; k < load.items.size(); ++k) {
    if (unchanged[load.items[k]] == 0) load.arrived[k].reset();
  }
}

// An optimizer that the program cleared after the load has lost its mark, and is left alone.
void EarlyLoads::bring_state() {
  for (const auto& load : loads_) {
    auto& loading = load->loading;
    Numbers items;
    for (std::size_t i = 0; i < loading.items().size(); ++i) {
      if (loading.items()[i].optimizer != nullptr && loading.is_there(i)) items.push_back(i);
    }
    const auto arrived = loading.transfer(items);
    load->items.insert(load->items.end(), items.begin(), items.end());
    load->arrived.insert(load->arrived.end(), arrived.begin(), arrived.end());
    for (const auto& [optimizer, before, is_marked] : load->awaited) {
      const bool is_cleared = is_marked && !parameters::refuses_to_save(*optimizer);
      for (const auto& group : optimizer->param_groups()) {
        for (const auto& parameter : group.params()) {
          const void* key = parameter.unsafeGetTensorImpl();
          const auto now = optimizer->state().find(parameter.unsafeGetTensorImpl());
          const auto then = before.find(key);
          const bool is_written =
              now != optimizer->state().end() && (then == before.end() || then->second != now->second.get());
          if (is_cleared || is_written) load->kept.insert(key);
        }
      }
    }
  }
}

std::optional<CheckpointInfo> EarlyLoads::take_over(InitRecord* init) {
  forget_data(init);
  const auto loads = std::exchange(loads_, {});
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  std::optional<CheckpointInfo> info;
  for (const auto& load : loads) load->loading.fit_state(load->items, load->arrived);
  for (const auto& load : loads) {
    load->loading.take_values(load->items, load->arrived);
    load->loading.take_state(load->items, load->arrived, load->kept);
    if (const auto own = load->loading.info()) info = own;
  }
  return info;
}

}  // namespace autopar::checkpoint
