#include "torch/checkpoint/loading.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::checkpoint {

namespace {

constexpr const char* kModel = "model.";
constexpr const char* kState = "optimizer.";

/// Packs texts into one; the next function unpacks them.
template <class Texts>
std::string packed(const Texts& texts) {
  std::ostringstream out;
  for (const auto& [key, value] : texts) out << key.size() << ' ' << value.size() << ' ' << key << value;
  return out.str();
}

std::vector<std::pair<std::string, std::string>> unpacked(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> texts;
  std::istringstream in(text);
  for (std::size_t key_size = 0, value_size = 0; in >> key_size >> value_size;) {
    std::string key(key_size, '\0'), value(value_size, '\0');
    in.get();
    in.read(key.data(), static_cast<std::streamsize>(key_size));
    in.read(value.data(), static_cast<std::streamsize>(value_size));
    texts.emplace_back(std::move(key), std::move(value));
  }
  return texts;
}

/// The lists of a report, each under a name of its own.
template <class Report>
auto lists_of(Report& report) {
  return std::array{
      std::pair(std::string("loaded"), &report.loaded), std::pair(std::string("missing"), &report.missing),
      std::pair(std::string("unexpected"), &report.unexpected), std::pair(std::string("skipped"), &report.skipped)};
}

/// Rank 0's report, on every rank. Collective.
LoadReport report_of_rank_0(World& world, const LoadReport& report) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [list, names] : lists_of(report)) {
    for (const auto& name : *names) texts.emplace_back(list, name);
  }
  LoadReport told;
  for (auto& [text_list, name] : unpacked(told_by_rank_0(world, packed(texts), kLoadAction))) {
    for (const auto& [list, names] : lists_of(told)) {
      if (list == text_list) names->push_back(name);
    }
  }
  return told;
}

std::size_t position_of(Rank rank, const std::vector<Rank>& holders) {
  return static_cast<std::size_t>(std::find(holders.begin(), holders.end(), rank) - holders.begin());
}

}  // namespace

Loading::Loading(World& world, std::filesystem::path folder, std::vector<ShardedTensorMetadata> tensors,
                 std::vector<torch::optim::Optimizer*> optimizers, const LoadOptions& options)
    : world_(world),
      folder_(std::move(folder)),
      subject_("cannot load " + folder_.string()),
      tensors_(std::move(tensors)),
      optimizers_(std::move(optimizers)),
      options_(options) {}

// ---------------------------------------------------------------- before anything is changed

void Loading::read_header() {
  std::map<std::string, std::string> metadata;
  all_or_none(world_, kLoadAction, subject_, [&] {
    reader_.emplace(world_, folder_);
    if (world_.rank() != 0) return;
    metadata = reader_->stored().metadata();
    if (from_metadata(metadata) && !reader_->stored().has_checksums()) {
      throw CheckpointError("autopar wrote it with checksums, and they are gone: it is damaged");
    }
  });
  reader_->share();
  const auto told = unpacked(told_by_rank_0(world_, packed(metadata), kLoadAction));
  saved_ = from_metadata(std::map<std::string, std::string>(told.begin(), told.end()));
}

void Loading::match() {
  all_or_none(world_, kLoadAction, subject_, [&] {
    match_optimizers();
    items_ = in_file_order(model_items(tensors_), state_items(tensors_, loaded(), [&](GroupMember member) {
                             return parameters::state_slots(*optimizers_[member.optimizer],
                                                            *new_options_[member.optimizer][member.group]);
                           }));
    if (world_.rank() != 0) return;
    const bool bare = named_as_in_the_model();
    auto matches = match_names(names_in_model(bare), names_in_file(bare), options_);
    names_ = std::move(matches.names);
    report_ = std::move(matches.report);
  });
  require_same_items(world_, items_, subject_);
  std::string names;
  for (const auto& name : names_) names += name + '\0';
  std::istringstream told(told_by_rank_0(world_, names, kLoadAction));
  names_.clear();
  for (std::string name; std::getline(told, name, '\0');) names_.push_back(std::move(name));
  report_ = report_of_rank_0(world_, report_);
}

/// Loads that may leave out parameters match the others by their names.
GroupSizes Loading::group_sizes() const {
  const bool is_strict = options_.missing == Missing::kRefused && options_.unexpected == Missing::kRefused;
  return is_strict && options_.skip.empty() ? GroupSizes::kEqual : GroupSizes::kMayDiffer;
}

void Loading::match_optimizers() {
  const std::size_t in_file = saved_ ? saved_->optimizers.size() : 0;
  if (!optimizers_.empty() && in_file > optimizers_.size()) {
    throw CheckpointError("it has " + std::to_string(in_file) + " optimizers, load was given " +
                          std::to_string(optimizers_.size()));
  }
  if (in_file < optimizers_.size() && options_.optimizer == Missing::kRefused) {
    throw CheckpointError("it has no state of optimizer " + std::to_string(in_file) +
                          "; to load the rest and leave the optimizer as it is, pass {.optimizer = Missing::kAllowed}");
  }
  for (std::size_t i = 0; i < std::min(in_file, optimizers_.size()); ++i) {
    new_options_.push_back(saved_options(saved_->optimizers[i], *optimizers_[i], group_sizes()));
  }
}

// Other programs name a tensor as the model does, or as autopar does.
bool Loading::named_as_in_the_model() const {
  if (saved_) return false;
  const auto matches = [&](bool bare) { return count_matches(names_in_model(bare), names_in_file(bare), options_); };
  return matches(true) >= matches(false);
}

/// @param bare  names in the file are those of the module
ModelNames Loading::names_in_model(bool bare) const {
  ModelNames names;
  std::map<const ShardedTensorMetadata*, std::size_t> numbers;
  for (const auto& tensor : tensors_) {
    numbers.emplace(&tensor, names.tensors.size());
    names.tensors.push_back({tensor.name});
    names.tensors.back().insert(names.tensors.back().end(), tensor.aliases.begin(), tensor.aliases.end());
  }
  for (const auto& item : items_) {
    names.items.push_back({numbers.at(item.tensor), item.state, item.entry, item.is_optional});
    if (bare && item.optimizer == nullptr) names.items.back().entry.name = item.tensor->name;
  }
  return names;
}

/// If no optimizer's options are loaded, the file's optimizer state is left out: it is useless without options.
FileNames Loading::names_in_file(bool bare) const {
  FileNames names;
  const auto without = [](const char* prefix, const std::string& name) { return name.substr(std::strlen(prefix)); };
  for (const auto& entry : reader_->stored().entries()) {
    if (bare)
      names.model.push_back({entry.name, entry});
    else if (entry.name.starts_with(kModel))
      names.model.push_back({without(kModel, entry.name), entry});
    else if (!entry.name.starts_with(kState))
      names.model.push_back({entry.name, entry});
    else if (!new_options_.empty())
      names.state.push_back({without(kState, entry.name), entry});
  }
  return names;
}

// Ranks meet now and then, so that none counts as stalled while others read a large checkpoint.
void Loading::verify() {
  constexpr std::int64_t kPortion = std::int64_t{1} << 32;  // bytes
  for (std::size_t next = 0; next < names_.size();) {
    all_or_none(world_, kLoadAction, subject_, [&] {
      for (std::int64_t bytes = 0; next < names_.size() && bytes < kPortion; ++next) {
        if (names_[next].empty()) continue;
        bytes += items_[next].entry.bytes().value();
        reader_->verify(next, items_[next], names_[next]);
      }
    });
  }
  reader_->reserve({});
}

void Loading::require_same_groups(const torch::optim::Optimizer& optimizer) const {
  for (std::size_t i = 0; i < loaded().size(); ++i) {
    if (optimizers_[i] != &optimizer) continue;
    try {
      static_cast<void>(saved_options(saved_->optimizers[i], optimizer, group_sizes()));
    } catch (const CheckpointError& error) {
      throw CheckpointError(subject_ + ": " + error.what());
    }
  }
}

// ---------------------------------------------------------------- data

void Loading::place(const std::vector<ShardedTensorMetadata>& tensors) {
  AUTOPAR_ASSERT(tensors.size() == tensors_.size(), "a model has the tensors that it had when it was loaded");
  std::copy(tensors.begin(), tensors.end(), tensors_.begin());
}

std::vector<at::Tensor> Loading::transfer(const std::vector<std::size_t>& numbers) {
  std::vector<CheckpointItem> items;
  for (const auto i : numbers) items.push_back(items_[i]);
  return receive(items, numbers);
}

std::vector<at::Tensor> Loading::transfer_whole(const std::vector<std::size_t>& numbers,
                                                const std::vector<std::vector<Rank>>& holders) {
  std::vector<ShardedTensorMetadata> whole;
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    const auto& tensor = *items_[numbers[k]].tensor;
    whole.push_back({tensor.name, tensor.handle, holders[k]});
  }
  std::vector<CheckpointItem> items;
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    items.push_back(items_[numbers[k]]);
    items.back().tensor = &whole[k];
  }
  return receive(items, numbers);
}

// Allocates all memory at once, so that no rank runs out of memory while others wait for it.
std::vector<at::Tensor> Loading::receive(const std::vector<CheckpointItem>& items,
                                         const std::vector<std::size_t>& numbers) {
  std::vector<at::Tensor> arrived(items.size());
  all_or_none(world_, kLoadAction, subject_, [&] {
    for (std::size_t k = 0; k < items.size(); ++k) {
      const auto& item = items[k];
      const auto position = position_of(world_.rank_id(), item.holders());
      if (position == item.holders().size()) continue;
      const auto type = at::dtype(parameters::scalar_type_of(item.entry.dtype));
      arrived[k] = item.shards().empty() ? empty_for(item.entry) : at::empty({item.shards()[position].size()}, type);
    }
    reader_->reserve(items);
  });
  for (std::size_t k = 0; k < items.size(); ++k) {
    reader_->read(items[k], names_[numbers[k]], arrived[k]);
  }
  all_or_none(world_, kLoadAction, subject_, [&] {
    reader_->finish();
    reader_->reserve({});
    for (std::size_t k = 0; k < items.size(); ++k) {
      if (!arrived[k].defined() || items[k].kind != parameters::StateKind::kCounter) continue;
      const auto count = arrived[k].item<std::int64_t>();
      if (count < 0) throw CheckpointError("'" + items[k].entry.name + "' counts " + std::to_string(count) + " steps");
    }
  });
  return arrived;
}

void Loading::fit_state(const std::vector<std::size_t>& numbers, std::vector<at::Tensor>& arrived) {
  all_or_none(world_, kLoadAction, subject_, [&] {
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const auto& item = items_[numbers[k]];
      if (!arrived[k].defined()) continue;
      const bool is_like_parameter = item.optimizer == nullptr || item.kind == parameters::StateKind::kLikeParameter;
      if (is_like_parameter && item.tensor->handle.numel() != arrived[k].numel()) {
        throw CheckpointError("'" + item.entry.name + "' has " + std::to_string(item.tensor->handle.numel()) +
                              " elements here, of the file's come " + std::to_string(arrived[k].numel()));
      }
      if (item.optimizer != nullptr && !item.is_number()) arrived[k] = arrived[k].to(item.tensor->handle.device());
    }
  });
}

// ---------------------------------------------------------------- changes

void Loading::take_values(const std::vector<std::size_t>& numbers, const std::vector<at::Tensor>& arrived) const {
  const at::NoGradGuard no_grad;
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    const auto& item = items_[numbers[k]];
    if (item.optimizer != nullptr || !arrived[k].defined()) continue;
    const auto& handle = item.tensor->handle;
    handle.detach().copy_(arrived[k].view(handle.sizes()));
  }
}

void Loading::take_state(const std::vector<std::size_t>& numbers, const std::vector<at::Tensor>& arrived,
                         const std::set<const void*>& kept) const {
  std::map<const void*, std::vector<parameters::StateEntry>> states;  // by handle
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    const auto& item = items_[numbers[k]];
    if (item.optimizer == nullptr || !arrived[k].defined()) continue;
    const auto& handle = item.tensor->handle;
    states[handle.unsafeGetTensorImpl()].emplace_back(
        item.state, item.kind == parameters::StateKind::kLikeParameter ? arrived[k].view(handle.sizes()) : arrived[k]);
  }
  const auto members = members_of(loaded());
  for (const auto& tensor : tensors_) {
    auto* const key = tensor.handle.unsafeGetTensorImpl();
    const auto member = members.find(key);
    if (member == members.end() || kept.contains(key)) continue;
    auto& optimizer = *optimizers_[member->second.optimizer];
    const auto state = states.find(key);
    if (state != states.end())
      parameters::set_state(optimizer, tensor.handle, state->second);
    else
      optimizer.state().erase(key);
  }
}

void Loading::take_options() const {
  for (std::size_t i = 0; i < new_options_.size(); ++i) parameters::set_options(*optimizers_[i], new_options_[i]);
}

// ---------------------------------------------------------------- loads of a deployed model

LoadedCheckpoint load_checkpoint(World& world, const std::filesystem::path& folder,
                                 const std::vector<ShardedTensorMetadata>& tensors,
                                 const std::vector<torch::optim::Optimizer*>& optimizers, const LoadOptions& options,
                                 const KeptValues& kept) {
  for (const auto* optimizer : optimizers) static_cast<void>(parameters::descriptor_of(*optimizer));
  Loading loading(world, folder, tensors, optimizers, options);
  loading.read_header();
  loading.match();
  KeptLoad kept_load(world, kept, loading.kept(), options.missing, loading.subject());
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < loading.items().size(); ++i) {
    if (loading.is_there(i)) items.push_back(i);
  }
  auto arrived = loading.transfer(items);
  loading.fit_state(items, arrived);
  kept_load.take();  // before the rest, since only this may fail
  loading.take_values(items, arrived);
  loading.take_state(items, arrived);
  loading.take_options();
  return {loading.info(), loading.report()};
}

}  // namespace autopar::checkpoint
