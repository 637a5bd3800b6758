#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/format.hpp"
#include "torch/checkpoint/metadata.hpp"
#include "torch/checkpoint/rows.hpp"
#include "torch/gradients/gradient_buckets.hpp"

namespace autopar {

namespace {

constexpr const char* kAction = "load of a checkpoint";

bool is_state(const std::string& entry) { return entry.starts_with("optimizer."); }

/// Of "optimizer.layer.weight.exp_avg": "optimizer.layer.weight".
std::string without_state_name(const std::string& entry) { return entry.substr(0, entry.rfind('.')); }

/// Texts as one, and back.
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

/// A load in steps that all ranks take; after each all know whether it went well on all. Only the last changes
/// anything.
class Loading {
 public:
  Loading(World& world, const CheckpointFormat& format, std::filesystem::path folder,
          const std::vector<PlacedTensor>& tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
          const LoadOptions& options)
      : world_(world),
        format_(format),
        folder_(std::move(folder)),
        subject_("cannot load " + format.file(folder_).string()),
        tensors_(tensors),
        optimizers_(optimizers),
        options_(options) {}

  void read_header();
  void match();
  void allocate();
  void transfer();
  [[nodiscard]] std::optional<CheckpointInfo> take_over();

 private:
  void match_optimizers();
  void find_entries();
  [[nodiscard]] bool named_as_in_the_model() const;
  void require_known_entries() const;
  [[nodiscard]] std::span<torch::optim::Optimizer* const> loaded() const {
    return std::span(optimizers_).first(new_options_.size());
  }

  World& world_;
  const CheckpointFormat& format_;
  std::filesystem::path folder_;
  std::string subject_;
  const std::vector<PlacedTensor>& tensors_;
  const std::vector<torch::optim::Optimizer*>& optimizers_;
  LoadOptions options_;
  std::unique_ptr<CheckpointReader> reader_;
  std::optional<SavedInfo> saved_;  ///< nothing: the file is of another writer
  /// By optimizer, of those that are in the file.
  std::vector<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>> new_options_;
  std::vector<Row> rows_;
  std::vector<std::string> names_;   ///< rank 0: by row, in the file; empty: it is not there
  std::string there_;                ///< by row: whether it is in the file, '1' or '0'
  std::vector<at::Tensor> arrived_;  ///< by row: what this rank holds of it
};

void Loading::read_header() {
  std::map<std::string, std::string> metadata;
  all_or_none(world_, kAction, subject_, [&] {
    reader_ = format_.reader(world_, folder_);
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
    rows_ = in_file_order(model_rows(tensors_), state_rows(tensors_, loaded(), [&](GroupMember member) {
                            return state_slots(*optimizers_[member.optimizer],
                                               *new_options_[member.optimizer][member.group]);
                          }));
    if (world_.rank() == 0) find_entries();
  });
  require_same_rows(world_, rows_, subject_);
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

/// Other writers name a tensor as the model does, or as autopar.
bool Loading::named_as_in_the_model() const {
  if (saved_) return false;
  const auto hits = [&](const std::string& prefix) {
    return std::count_if(tensors_.begin(), tensors_.end(),
                         [&](const auto& tensor) { return reader_->find(prefix + tensor.name) != nullptr; });
  };
  return hits("") >= hits("model.");
}

void Loading::find_entries() {
  std::set<std::string> stepped;  // only parameters that have been stepped have state
  for (const auto& entry : reader_->entries()) {
    if (is_state(entry.name)) stepped.insert(without_state_name(entry.name));
  }
  const bool bare = named_as_in_the_model();
  for (const auto& row : rows_) {
    const auto& name = bare && row.optimizer == nullptr ? row.tensor->name : row.entry.name;
    const auto* entry = reader_->find(name);
    names_.push_back(entry == nullptr ? "" : name);
    if (entry == nullptr) {
      const bool may_lack = row.is_optional || !stepped.contains(without_state_name(name));
      if (row.optimizer != nullptr && may_lack) continue;
      throw CheckpointError("it lacks '" + name + "'");
    }
    if (entry->dtype == row.entry.dtype && entry->shape == row.entry.shape) continue;
    std::ostringstream out;
    out << '\'' << name << "' is " << name_of(entry->dtype) << " with sizes " << at::IntArrayRef(entry->shape)
        << ", the model has " << name_of(row.entry.dtype) << ' ' << at::IntArrayRef(row.entry.shape);
    throw CheckpointError(out.str());
  }
  require_known_entries();
}

// State without its optimizer's options is of no use, and that of optimizers that nobody asked for is passed over.
void Loading::require_known_entries() const {
  const std::set<std::string> known(names_.begin(), names_.end());
  const std::string* unknown = nullptr;  // of a tensor that has state as well, the tensor
  for (const auto& [name, type, shape] : reader_->entries()) {
    if (known.contains(name) || (is_state(name) && new_options_.empty())) continue;
    if (unknown == nullptr || (is_state(*unknown) && !is_state(name))) unknown = &name;
  }
  if (unknown != nullptr) throw CheckpointError("the model has no '" + *unknown + "'");
}

// All memory at once, so that no rank runs out of it while others wait for what it is to take.
void Loading::allocate() {
  all_or_none(world_, kAction, subject_, [&] {
    std::size_t most = 0;
    arrived_.resize(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto& row = rows_[i];
      if (there_.at(i) != '1') continue;
      most = std::max(most, static_cast<std::size_t>(row.entry.bytes().value()));
      const auto holder = std::find(row.holders().begin(), row.holders().end(), world_.rank_id());
      if (holder == row.holders().end()) continue;
      const auto position = static_cast<std::size_t>(holder - row.holders().begin());
      const auto type = at::dtype(scalar_type_of(row.entry.dtype));
      arrived_[i] = row.shards().empty() ? empty_for(row.entry) : at::empty({row.shards()[position].size()}, type);
      if (row.optimizer == nullptr && row.tensor->handle.numel() != arrived_[i].numel()) {
        throw CheckpointError("'" + row.entry.name + "' has " + std::to_string(row.tensor->handle.numel()) +
                              " elements here, of the file's come " + std::to_string(arrived_[i].numel()));
      }
    }
    reader_->reserve(most);
  });
}

void Loading::transfer() {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (there_[i] == '1') reader_->read(rows_[i], world_.rank() == 0 ? names_[i] : std::string(), arrived_[i]);
  }
  all_or_none(world_, kAction, subject_, [&] {
    reader_->finish();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto& row = rows_[i];
      if (!arrived_[i].defined() || row.optimizer == nullptr) continue;
      if (!row.is_number()) {
        arrived_[i] = arrived_[i].to(row.tensor->handle.device());
      } else if (const auto number = arrived_[i].item<double>(); row.kind == StateKind::kCounter && number < 0) {
        throw CheckpointError("'" + row.entry.name + "' counts " + std::to_string(arrived_[i].item<std::int64_t>()) +
                              " steps");
      }
    }
  });
}

std::optional<CheckpointInfo> Loading::take_over() {
  const at::NoGradGuard no_grad;
  std::map<const void*, std::vector<StateEntry>> states;  // by handle
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!arrived_[i].defined()) continue;
    const auto& handle = rows_[i].tensor->handle;
    if (rows_[i].optimizer == nullptr)
      handle.detach().copy_(arrived_[i].view(handle.sizes()));
    else
      states[handle.unsafeGetTensorImpl()].emplace_back(
          rows_[i].state, rows_[i].kind == StateKind::kLikeParameter ? arrived_[i].view(handle.sizes()) : arrived_[i]);
  }
  const auto members = members_of(loaded());
  for (const auto& tensor : tensors_) {
    const auto member = members.find(tensor.handle.unsafeGetTensorImpl());
    if (member == members.end()) continue;
    auto& optimizer = *optimizers_[member->second.optimizer];
    const auto state = states.find(tensor.handle.unsafeGetTensorImpl());
    if (state != states.end())
      set_state(optimizer, tensor.handle, state->second);
    else
      optimizer.state().erase(tensor.handle.unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < new_options_.size(); ++i) set_options(*optimizers_[i], new_options_[i]);
  return saved_ ? std::optional(saved_->info) : std::nullopt;
}

}  // namespace

std::optional<CheckpointInfo> load_checkpoint(World& world, const CheckpointFormat& format,
                                              const std::filesystem::path& folder,
                                              const std::vector<PlacedTensor>& tensors,
                                              const std::vector<torch::optim::Optimizer*>& optimizers,
                                              const LoadOptions& options) {
  for (const auto* optimizer : optimizers) static_cast<void>(descriptor_of(*optimizer));
  Loading loading(world, format, folder, tensors, optimizers, options);
  loading.read_header();
  loading.match();
  loading.allocate();
  loading.transfer();
  return loading.take_over();
}

}  // namespace autopar
