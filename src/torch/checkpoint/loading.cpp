#include "torch/checkpoint/loading.hpp"

#include <algorithm>
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

constexpr const char* kAction = "load of a checkpoint";

bool is_state(const std::string& entry) { return entry.starts_with("optimizer."); }

/// "optimizer.layer.weight.exp_avg" becomes "optimizer.layer.weight".
std::string without_state_name(const std::string& entry) { return entry.substr(0, entry.rfind('.')); }

/// Packs texts into one; the next function unpacks them.
std::string packed(const std::map<std::string, std::string>& texts) {
  std::ostringstream out;
  for (const auto& [key, value] : texts) out << key.size() << ' ' << value.size() << ' ' << key << value;
  return out.str();
}

std::map<std::string, std::string> unpacked(const std::string& text) {
  std::map<std::string, std::string> texts;
  std::istringstream in(text);
  for (std::size_t key_size = 0, value_size = 0; in >> key_size >> value_size;) {
    std::string key(key_size, '\0'), value(value_size, '\0');
    in.get();
    in.read(key.data(), static_cast<std::streamsize>(key_size));
    in.read(value.data(), static_cast<std::streamsize>(value_size));
    texts.emplace(std::move(key), std::move(value));
  }
  return texts;
}

std::size_t position_of(Rank rank, const std::vector<Rank>& holders) {
  return static_cast<std::size_t>(std::find(holders.begin(), holders.end(), rank) - holders.begin());
}

}  // namespace

Loading::Loading(World& world, const CheckpointFormat& format, std::filesystem::path folder,
                 std::vector<ShardedTensorMetadata> tensors, std::vector<torch::optim::Optimizer*> optimizers,
                 const LoadOptions& options)
    : world_(world),
      format_(format),
      folder_(std::move(folder)),
      subject_("cannot load " + format.get().file(folder_).string()),
      tensors_(std::move(tensors)),
      optimizers_(std::move(optimizers)),
      options_(options) {}

// ---------------------------------------------------------------- before anything is changed

void Loading::read_header() {
  std::map<std::string, std::string> metadata;
  all_or_none(world_, kAction, subject_, [&] {
    reader_ = format_.get().reader(world_, folder_);
    if (world_.rank() != 0) return;
    metadata = reader_->metadata();
    if (from_metadata(metadata) && !reader_->has_checksums()) {
      throw CheckpointError("autopar wrote it with checksums, and they are gone: it is damaged");
    }
  });
  saved_ = from_metadata(unpacked(told_by_rank_0(world_, packed(metadata), kAction)));
}

void Loading::match() {
  all_or_none(world_, kAction, subject_, [&] {
    match_optimizers();
    items_ = in_file_order(model_items(tensors_), state_items(tensors_, loaded(), [&](GroupMember member) {
                             return parameters::state_slots(*optimizers_[member.optimizer],
                                                            *new_options_[member.optimizer][member.group]);
                           }));
    if (world_.rank() == 0) find_entries();
  });
  require_same_items(world_, items_, subject_);
  for (const auto& name : names_) there_ += name.empty() ? '0' : '1';
  there_ = told_by_rank_0(world_, there_, kAction);
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
    new_options_.push_back(saved_options(saved_->optimizers[i], *optimizers_[i]));
  }
}

/// Other programs name a tensor as the model does, or as autopar does.
bool Loading::named_as_in_the_model() const {
  if (saved_) return false;
  const auto hits = [&](const std::string& prefix) {
    return std::count_if(tensors_.begin(), tensors_.end(),
                         [&](const auto& tensor) { return reader_->find(prefix + tensor.name) != nullptr; });
  };
  return hits("") >= hits("model.");
}

void Loading::find_entries() {
  std::set<std::string> stepped;  // only parameters that were stepped have state
  for (const auto& entry : reader_->entries()) {
    if (is_state(entry.name)) stepped.insert(without_state_name(entry.name));
  }
  const bool bare = named_as_in_the_model();
  for (const auto& item : items_) {
    const auto& name = bare && item.optimizer == nullptr ? item.tensor->name : item.entry.name;
    const auto* entry = reader_->find(name);
    names_.push_back(entry == nullptr ? "" : name);
    if (entry == nullptr) {
      const bool may_lack = item.is_optional || !stepped.contains(without_state_name(name));
      if (item.optimizer != nullptr && may_lack) continue;
      throw CheckpointError("it lacks '" + name + "'");
    }
    if (entry->dtype == item.entry.dtype && entry->shape == item.entry.shape) continue;
    std::ostringstream out;
    out << '\'' << name << "' is " << name_of(entry->dtype) << " with sizes " << at::IntArrayRef(entry->shape)
        << ", the model has " << name_of(item.entry.dtype) << ' ' << at::IntArrayRef(item.entry.shape);
    throw CheckpointError(out.str());
  }
  require_known_entries();
}

// If no optimizer's options are loaded, the file's optimizer state is ignored: it is useless without options.
void Loading::require_known_entries() const {
  const std::set<std::string> known(names_.begin(), names_.end());
  const std::string* unknown = nullptr;  // for a tensor with state, the tensor
  for (const auto& [name, type, shape] : reader_->entries()) {
    if (known.contains(name) || (is_state(name) && new_options_.empty())) continue;
    if (unknown == nullptr || (is_state(*unknown) && !is_state(name))) unknown = &name;
  }
  if (unknown != nullptr) throw CheckpointError("the model has no '" + *unknown + "'");
}

// Rank 0 reports progress to the others, so that they do not count it as stalled while it reads a large file.
void Loading::verify() {
  constexpr std::int64_t kPortion = std::int64_t{1} << 32;  // bytes
  std::size_t next = 0;
  for (bool more = true; more;) {
    all_or_none(world_, kAction, subject_, [&] {
      for (std::int64_t bytes = 0; next < names_.size() && bytes < kPortion; ++next) {  // empty on other ranks
        if (names_[next].empty()) continue;
        reader_->verify(items_[next], names_[next]);
        bytes += items_[next].entry.bytes().value();
      }
    });
    more = told_by_rank_0(world_, next < names_.size() ? "1" : "", kAction) == "1";
  }
  reader_->reserve(0);
}

void Loading::require_same_groups(const torch::optim::Optimizer& optimizer) const {
  for (std::size_t i = 0; i < loaded().size(); ++i) {
    if (optimizers_[i] != &optimizer) continue;
    try {
      static_cast<void>(saved_options(saved_->optimizers[i], optimizer));
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
  all_or_none(world_, kAction, subject_, [&] {
    std::size_t most = 0;
    for (std::size_t k = 0; k < items.size(); ++k) {
      const auto& item = items[k];
      most = std::max(most, static_cast<std::size_t>(item.entry.bytes().value()));
      const auto position = position_of(world_.rank_id(), item.holders());
      if (position == item.holders().size()) continue;
      const auto type = at::dtype(parameters::scalar_type_of(item.entry.dtype));
      arrived[k] = item.shards().empty() ? empty_for(item.entry) : at::empty({item.shards()[position].size()}, type);
    }
    reader_->reserve(most);
  });
  for (std::size_t k = 0; k < items.size(); ++k) {
    reader_->read(items[k], world_.rank() == 0 ? names_[numbers[k]] : std::string(), arrived[k]);
  }
  all_or_none(world_, kAction, subject_, [&] {
    reader_->finish();
    reader_->reserve(0);
    for (std::size_t k = 0; k < items.size(); ++k) {
      if (!arrived[k].defined() || items[k].kind != parameters::StateKind::kCounter) continue;
      const auto count = arrived[k].item<std::int64_t>();
      if (count < 0) throw CheckpointError("'" + items[k].entry.name + "' counts " + std::to_string(count) + " steps");
    }
  });
  return arrived;
}

void Loading::fit_state(const std::vector<std::size_t>& numbers, std::vector<at::Tensor>& arrived) {
  all_or_none(world_, kAction, subject_, [&] {
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

std::optional<CheckpointInfo> load_checkpoint(World& world, const CheckpointFormat& format,
                                              const std::filesystem::path& folder,
                                              const std::vector<ShardedTensorMetadata>& tensors,
                                              const std::vector<torch::optim::Optimizer*>& optimizers,
                                              const LoadOptions& options) {
  for (const auto* optimizer : optimizers) static_cast<void>(parameters::descriptor_of(*optimizer));
  Loading loading(world, format, folder, tensors, optimizers, options);
  loading.read_header();
  loading.match();
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < loading.items().size(); ++i) {
    if (loading.is_there(i)) items.push_back(i);
  }
  auto arrived = loading.transfer(items);
  loading.fit_state(items, arrived);
  loading.take_values(items, arrived);
  loading.take_state(items, arrived);
  loading.take_options();
  return loading.info();
}

}  // namespace autopar::checkpoint
