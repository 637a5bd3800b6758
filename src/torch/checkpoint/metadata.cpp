#include "torch/checkpoint/metadata.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>

namespace autopar::checkpoint {

namespace {

constexpr const char* kOurs = "autopar.";
constexpr const char* kFormatKey = "autopar.format";
constexpr const char* kFormat = "2";
constexpr const char* kSeedKey = "autopar.seed";
constexpr const char* kCallsKey = "autopar.calls";
constexpr const char* kScalerKey = "autopar.loss_scaler";
constexpr const char* kFp8 = "autopar.fp8.";           ///< before the names of weights
constexpr const char* kKept = "autopar.kept.";         ///< before the names of kept values
constexpr const char* kParameterCount = "parameters";  ///< number of parameters, stored among a group's values

std::string optimizer_key(std::size_t index) { return "autopar.optimizer." + std::to_string(index); }
std::string group_key(std::size_t index, std::size_t group) {
  return optimizer_key(index) + ".group." + std::to_string(group);
}

/// The shortest text that reads back as the same number, in any locale.
std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

template <class Number>
Number number_of(std::string_view text, const std::string& key) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw CheckpointError("'" + key + "' has the value '" + std::string(text) + "', which is no number for it");
  }
  return number;
}

/// "a=1 b=2"
std::string values_text(const std::vector<std::pair<std::string, double>>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += (text.empty() ? "" : " ") + name + '=' + number_text(value);
  return text;
}

parameters::HyperParameters values_of(const std::string& text, const std::string& key) {
  parameters::HyperParameters values;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ' ');) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) throw CheckpointError("'" + key + "' has '" + item + "' instead of name=value");
    const auto value = number_of<double>(std::string_view(item).substr(equals + 1), key);
    const bool is_new = values.emplace(item.substr(0, equals), value).second;
    if (!is_new) throw CheckpointError("'" + key + "' has '" + item.substr(0, equals) + "' twice");
  }
  return values;
}

/// A whole number, up to the limit below which doubles represent every whole number.
std::int64_t count_in(parameters::HyperParameters& values, const char* name, const std::string& key) {
  constexpr double kMost = 0x1p53;
  const auto found = values.find(name);
  const double value = found == values.end() ? -1 : found->second;
  if (!(value >= 0 && value <= kMost) || value != static_cast<double>(static_cast<std::int64_t>(value))) {
    throw CheckpointError("'" + key + "' has no count '" + name + "'");
  }
  values.erase(found);
  return static_cast<std::int64_t>(value);
}

/// Takes entries one by one; at the end none may be left.
class MetadataReader {
 public:
  explicit MetadataReader(const std::map<std::string, std::string>& metadata) {
    for (const auto& [key, value] : metadata) {
      if (key.starts_with(kOurs)) left_.emplace(key, value);
    }
  }

  [[nodiscard]] bool has(const std::string& key) const { return left_.contains(key); }
  [[nodiscard]] bool empty() const { return left_.empty(); }
  [[nodiscard]] std::string take(const std::string& key) {
    auto node = left_.extract(key);
    if (node.empty()) throw CheckpointError("it lacks '" + key + "'");
    return std::move(node.mapped());
  }
  /// Of the first key with this prefix: key and value.
  [[nodiscard]] std::optional<std::pair<std::string, std::string>> take_under(const std::string& prefix) {
    const auto first = left_.lower_bound(prefix);
    if (first == left_.end() || !first->first.starts_with(prefix)) return std::nullopt;
    auto node = left_.extract(first);
    return std::pair(std::move(node.key()), std::move(node.mapped()));
  }
  void require_empty() const {
    if (!left_.empty()) throw CheckpointError("its '" + left_.begin()->first + "' is not known");
  }

 private:
  std::map<std::string, std::string> left_;
};

gradients::LossScaler::State scaler_of(const std::string& text) {
  auto values = values_of(text, kScalerKey);
  gradients::LossScaler::State state;
  state.good_steps = count_in(values, "good_steps", kScalerKey);
  state.skipped = count_in(values, "skipped", kScalerKey);
  const auto found = values.find("scale");
  state.scale = found == values.end() ? 0 : found->second;
  if (values.size() != 1 ||
      !(state.scale >= gradients::LossScaler::kSmallest && state.scale <= gradients::LossScaler::kLargest)) {
    throw CheckpointError("its loss scale is damaged: '" + text + "'");
  }
  return state;
}

/// "a b …": the magnitudes of the operands, one behind the other.
std::string history_text(const fp8::History& history) {
  std::string text;
  for (const auto* operand : {&history.x, &history.of_weight, &history.gradient}) {
    for (const float number : *operand) text += (text.empty() ? "" : " ") + number_text(number);
  }
  return text;
}

fp8::History history_of(const std::string& text, const std::string& key) {
  fp8::History history;
  std::istringstream numbers(text);
  for (auto* operand : {&history.x, &history.of_weight, &history.gradient}) {
    for (std::int64_t i = 0; i < fp8::Layers::kHistory; ++i) {
      std::string number;
      numbers >> number;
      const auto value = number_of<double>(number, key);
      if (!(value >= 0 && value <= std::numeric_limits<float>::max()))
        throw CheckpointError("'" + key + "' has '" + number + "', which is no magnitude");
      operand->push_back(static_cast<float>(value));
    }
  }
  if (!(numbers >> std::ws).eof()) throw CheckpointError("'" + key + "' has too many numbers");
  return history;
}

std::map<std::string, fp8::History> fp8_in(MetadataReader& reader) {
  std::map<std::string, fp8::History> all;
  while (const auto entry = reader.take_under(kFp8)) {
    const auto& [key, text] = *entry;
    all[key.substr(std::string_view(kFp8).size())] = history_of(text, key);
  }
  return all;
}

SavedOptimizer optimizer_at(std::size_t index, MetadataReader& reader) {
  SavedOptimizer saved{reader.take(optimizer_key(index))};
  for (std::size_t g = 0; reader.has(group_key(index, g)); ++g) {
    const auto key = group_key(index, g);
    auto values = values_of(reader.take(key), key);
    const auto parameters = count_in(values, kParameterCount, key);
    saved.groups.push_back({parameters, std::move(values)});
  }
  return saved;
}

std::map<std::string, KeptValue> kept_in(MetadataReader& reader) {
  std::map<std::string, KeptValue> kept;
  while (const auto entry = reader.take_under(kKept)) {
    const auto& [key, text] = *entry;
    const auto name = key.substr(std::string_view(kKept).size());
    if (const auto why = why_no_kept_name(name); !why.empty()) {
      throw CheckpointError("its '" + key + "' names no kept value: " + why);
    }
    try {
      kept[name] = kept_value_in(text);
    } catch (const CheckpointError& error) {
      throw CheckpointError("its '" + key + "' is damaged: " + error.what());
    }
  }
  return kept;
}

}  // namespace

SavedOptimizer describe(const torch::optim::Optimizer& optimizer) {
  SavedOptimizer saved{parameters::descriptor_of(optimizer).name};
  const auto values = parameters::hyper_parameters(optimizer);
  static_cast<void>(parameters::options_with(optimizer, values));
  for (std::size_t g = 0; g < values.size(); ++g) {
    saved.groups.push_back({static_cast<std::int64_t>(optimizer.param_groups()[g].params().size()), values[g]});
  }
  return saved;
}

std::map<std::string, std::string> to_metadata(const SavedInfo& saved) {
  std::map<std::string, std::string> out{{kFormatKey, kFormat},
                                         {kSeedKey, std::to_string(saved.info.seed)},
                                         {kCallsKey, std::to_string(saved.info.calls)}};
  if (const auto& scaler = saved.info.scaler) {
    out[kScalerKey] = values_text({{"scale", scaler->scale},
                                   {"good_steps", static_cast<double>(scaler->good_steps)},
                                   {"skipped", static_cast<double>(scaler->skipped)}});
  }
  for (const auto& [weight, history] : saved.info.fp8) out[kFp8 + weight] = history_text(history);
  for (std::size_t i = 0; i < saved.optimizers.size(); ++i) {
    const auto& optimizer = saved.optimizers[i];
    out[optimizer_key(i)] = optimizer.kind;
    for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
      const auto& group = optimizer.groups[g];
      std::vector<std::pair<std::string, double>> values{{kParameterCount, static_cast<double>(group.parameters)}};
      values.insert(values.end(), group.values.begin(), group.values.end());
      out[group_key(i, g)] = values_text(values);
    }
  }
  for (const auto& [name, value] : saved.kept) out[kKept + name] = to_text(value);
  return out;
}

std::optional<SavedInfo> from_metadata(const std::map<std::string, std::string>& metadata) {
  MetadataReader reader(metadata);
  if (reader.empty()) return std::nullopt;
  const auto format = reader.take(kFormatKey);
  if (format != kFormat) {
    throw CheckpointError("it has the format version '" + format + "', this autopar reads '" + kFormat + "'");
  }
  SavedInfo saved;
  saved.info.seed = number_of<std::uint64_t>(reader.take(kSeedKey), kSeedKey);
  saved.info.calls = number_of<std::int64_t>(reader.take(kCallsKey), kCallsKey);
  if (saved.info.calls < 0) throw CheckpointError("it counts " + std::to_string(saved.info.calls) + " calls");
  if (reader.has(kScalerKey)) saved.info.scaler = scaler_of(reader.take(kScalerKey));
  saved.info.fp8 = fp8_in(reader);
  for (std::size_t i = 0; reader.has(optimizer_key(i)); ++i) saved.optimizers.push_back(optimizer_at(i, reader));
  saved.kept = kept_in(reader);
  reader.require_empty();
  return saved;
}

std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> saved_options(const SavedOptimizer& saved,
                                                                           const torch::optim::Optimizer& optimizer,
                                                                           GroupSizes sizes) {
  const auto& mine = parameters::descriptor_of(optimizer).name;
  if (saved.kind != mine) throw CheckpointError("its optimizer is " + saved.kind + ", this one is " + mine);
  std::vector<parameters::HyperParameters> values;
  for (const auto& group : saved.groups) values.push_back(group.values);
  auto options = parameters::options_with(optimizer, values);
  for (std::size_t g = 0; sizes == GroupSizes::kEqual && g < options.size(); ++g) {
    const auto parameters = static_cast<std::int64_t>(optimizer.param_groups()[g].params().size());
    if (parameters == saved.groups[g].parameters) continue;
    throw CheckpointError("parameter group " + std::to_string(g) + " of its optimizer has " +
                          std::to_string(saved.groups[g].parameters) + " parameters, of this one " +
                          std::to_string(parameters));
  }
  return options;
}

}  // namespace autopar::checkpoint
