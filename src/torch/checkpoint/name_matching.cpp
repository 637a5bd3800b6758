#include "torch/checkpoint/name_matching.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar::checkpoint {

namespace {

std::string in_quotes(const std::string& name) { return '\'' + name + '\''; }

/// "f32 with sizes [2, 3]"
std::string form_of(const TensorEntry& entry) {
  std::string sizes;
  for (const auto size : entry.shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return std::string(name_of(entry.dtype)) + " with sizes [" + sizes + ']';
}

/// LoadOptions::rename.
class Renaming {
 public:
  explicit Renaming(const std::vector<std::pair<std::string, std::string>>& rename)
      : rules_(rename), is_used_(rename.size(), false) {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (rules_[i].first != rules_[k].first) continue;
        throw CheckpointError(".rename has " + in_quotes(rules_[i].first) + " twice; name each prefix once");
      }
    }
  }

  [[nodiscard]] std::string operator()(const std::string& name) {
    std::optional<std::size_t> longest;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const auto& prefix = rules_[i].first;
      if (name.starts_with(prefix) && (!longest || prefix.size() > rules_[*longest].first.size())) longest = i;
    }
    if (!longest) return name;
    is_used_[*longest] = true;
    return rules_[*longest].second + name.substr(rules_[*longest].first.size());
  }

  void require_used() const {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (is_used_[i]) continue;
      throw CheckpointError(".rename = {{" + in_quotes(rules_[i].first) + ", " + in_quotes(rules_[i].second) +
                            "}} renames nothing: no name of the file begins so, or a longer prefix is renamed instead");
    }
  }

 private:
  const std::vector<std::pair<std::string, std::string>>& rules_;
  std::vector<bool> is_used_;
};

/// LoadOptions::skip.
class Skips {
 public:
  explicit Skips(const std::vector<std::string>& skip) : prefixes_(skip), is_used_(skip.size(), false) {
    if (std::ranges::find(skip, "") != skip.end())
      throw CheckpointError(".skip has an empty prefix, which would skip everything; leave it out");
  }

  [[nodiscard]] bool operator()(const std::string& name) {
    bool is_skipped = false;
    for (std::size_t i = 0; i < prefixes_.size(); ++i) {
      if (!name.starts_with(prefixes_[i])) continue;
      is_used_[i] = true;
      is_skipped = true;
    }
    return is_skipped;
  }

  void require_used() const {
    for (std::size_t i = 0; i < prefixes_.size(); ++i) {
      if (is_used_[i]) continue;
      throw CheckpointError(".skip = {" + in_quotes(prefixes_[i]) +
                            "} skips nothing: no name of the model, and none of the file after renaming, begins so");
    }
  }

 private:
  const std::vector<std::string>& prefixes_;
  std::vector<bool> is_used_;
};

/// What becomes of a parameter or buffer of the file.
enum class Fate : std::uint8_t { kLoaded, kSkipped, kUnexpected };

std::unordered_map<std::string, std::size_t> numbers_by_name(const ModelNames& model) {
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    for (const auto& name : model.tensors[i]) numbers.emplace(name, i);
  }
  return numbers;
}

/// "layer.weight.exp_avg" becomes "layer.weight".
std::string parameter_of(const std::string& state) { return state.substr(0, state.rfind('.')); }

/// One call of `match_names`, in steps.
class NameMatching {
 public:
  NameMatching(const ModelNames& model, const FileNames& file, const LoadOptions& options)
      : model_(model),
        file_(file),
        options_(options),
        renamed_(options.rename),
        skips_(options.skip),
        numbers_(numbers_by_name(model)),
        is_skipped_(model.tensors.size(), false),
        sources_(model.tensors.size(), nullptr) {}

  NameMatches run() {
    find_skipped();
    find_sources();
    renamed_.require_used();
    skips_.require_used();
    require_one_source();
    name_items();
    find_unexpected_state();
    require_expected();
    return {std::move(names_), report()};
  }

 private:
  void find_skipped() {
    for (std::size_t i = 0; i < model_.tensors.size(); ++i) {
      for (const auto& name : model_.tensors[i]) is_skipped_[i] = skips_(name) || is_skipped_[i];
    }
  }

  Fate fate_of(const FileNames::Tensor& tensor, const std::string& target) {
    const auto number = numbers_.find(target);
    const bool is_known = number != numbers_.end();
    const bool is_skipped = skips_(target) || (is_known && is_skipped_[number->second]);
    if (is_skipped && !is_known) skipped_in_file_.push_back(target);
    if (is_skipped) return Fate::kSkipped;
    if (!is_known) return Fate::kUnexpected;
    auto& source = sources_[number->second];
    if (source != nullptr && !twice_) twice_ = {source, &tensor, number->second};
    source = &tensor;
    return Fate::kLoaded;
  }

  void find_sources() {
    for (const auto& tensor : file_.model) {
      const auto fate = fate_of(tensor, renamed_(tensor.name));
      fates_.emplace(tensor.name, fate);
      if (fate == Fate::kUnexpected) unexpected_.push_back(&tensor);
    }
  }

  void require_one_source() const {
    if (!twice_) return;
    throw CheckpointError(in_quotes(twice_->first->entry.name) + " and " + in_quotes(twice_->second->entry.name) +
                          " would both become '" + model_.tensors[twice_->target].front() +
                          "' of the model; give one of them another name with .rename, or skip it");
  }

  void name_items() {
    std::unordered_map<std::string, const FileNames::Tensor*> states;
    std::unordered_set<std::string> stepped;  // only parameters that were stepped have state
    for (const auto& tensor : file_.state) {
      states.emplace(tensor.name, &tensor);
      stepped.insert(parameter_of(tensor.name));
    }
    for (const auto& item : model_.items) {
      const auto* const source = sources_[item.tensor];
      const auto* found = source;
      if (source != nullptr && !item.state.empty()) {
        const auto state = states.find(source->name + '.' + item.state);
        found = state == states.end() ? nullptr : state->second;
        const bool may_lack = item.is_optional || !stepped.contains(source->name);
        if (found == nullptr && !may_lack) throw CheckpointError("it lacks '" + item.entry.name + "'");
      }
      require_there(item, found);
      if (found != nullptr) require_same_form(item, found->entry);
      names_.push_back(found == nullptr ? "" : found->entry.name);
      if (!item.state.empty() && found != nullptr) used_states_.insert(found);
    }
  }

  void require_there(const ModelNames::Item& item, const FileNames::Tensor* found) const {
    if (found != nullptr || !item.state.empty() || is_skipped_[item.tensor]) return;
    if (options_.missing == Missing::kAllowed) return;
    throw CheckpointError("it lacks '" + item.entry.name +
                          "'; to leave what it lacks as it is, pass {.missing = Missing::kAllowed}");
  }

  static void require_same_form(const ModelNames::Item& item, const TensorEntry& found) {
    if (found.dtype == item.entry.dtype && found.shape == item.entry.shape) return;
    throw CheckpointError(in_quotes(found.name) + " is " + form_of(found) + ", the model has " + form_of(item.entry) +
                          (item.state.empty() ? "; to leave the model's as it is, skip it with .skip" : ""));
  }

  /// State of a tensor that is skipped or unexpected goes with it.
  void find_unexpected_state() {
    for (const auto& tensor : file_.state) {
      if (used_states_.contains(&tensor)) continue;
      const auto parameter = parameter_of(tensor.name);
      const auto fate = fates_.find(parameter);
      const bool is_skipped = fate == fates_.end() && skips_(renamed_(parameter));
      if (!is_skipped && (fate == fates_.end() || fate->second == Fate::kLoaded)) unexpected_.push_back(&tensor);
    }
  }

  void require_expected() {
    if (unexpected_.empty() || options_.unexpected == Missing::kAllowed) return;
    const auto& tensor = *unexpected_.front();
    const auto target = renamed_(tensor.name);
    throw CheckpointError("the model has no '" + tensor.entry.name + "'" +
                          (target == tensor.name ? "" : ", renamed " + in_quotes(target)) +
                          "; to load the rest, pass {.unexpected = Missing::kAllowed}");
  }

  [[nodiscard]] LoadReport report() const {
    LoadReport report;
    for (std::size_t i = 0; i < model_.tensors.size(); ++i) {
      auto& list = is_skipped_[i] ? report.skipped : sources_[i] != nullptr ? report.loaded : report.missing;
      list.push_back(model_.tensors[i].front());
    }
    report.skipped.insert(report.skipped.end(), skipped_in_file_.begin(), skipped_in_file_.end());
    for (const auto* tensor : unexpected_) report.unexpected.push_back(tensor->name);
    return report;
  }

  struct Twice {
    const FileNames::Tensor* first;
    const FileNames::Tensor* second;
    std::size_t target;
  };

  const ModelNames& model_;
  const FileNames& file_;
  const LoadOptions& options_;
  Renaming renamed_;
  Skips skips_;
  std::unordered_map<std::string, std::size_t> numbers_;  ///< by name of the model
  // ---- by tensor of the model
  std::vector<bool> is_skipped_;
  std::vector<const FileNames::Tensor*> sources_;
  // ---- of the file
  std::unordered_map<std::string, Fate> fates_;
  std::unordered_set<const FileNames::Tensor*> used_states_;
  std::vector<const FileNames::Tensor*> unexpected_;
  std::vector<std::string> skipped_in_file_;
  std::optional<Twice> twice_;  ///< the first two names for one target
  std::vector<std::string> names_;
};

}  // namespace

NameMatches match_names(const ModelNames& model, const FileNames& file, const LoadOptions& options) {
  return NameMatching(model, file, options).run();
}

std::size_t count_matches(const ModelNames& model, const FileNames& file, const LoadOptions& options) {
  const auto numbers = numbers_by_name(model);
  Renaming renamed(options.rename);
  return static_cast<std::size_t>(
      std::ranges::count_if(file.model, [&](const auto& tensor) { return numbers.contains(renamed(tensor.name)); }));
}

}  // namespace autopar::checkpoint
