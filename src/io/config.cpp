#include <autopar/io/config.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>
#include <variant>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/config_search.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/schedule/traits.hpp>

#include "toml_section.hpp"

extern char** environ;  // NOLINT: POSIX names it so

namespace autopar {

namespace {

using Member = std::variant<int Options::*, double Options::*, bool Options::*, std::string Options::*,
                            std::vector<int> Options::*, Bytes Options::*, Seconds Options::*, Switch Options::*,
                            ClassHead Options::*, CudaGraphs Options::*, std::optional<Offload> Options::*,
                            std::optional<ScheduleKind> Options::*, RecomputeOption Options::*, Precision Options::*,
                            std::optional<ReduceDtype> Options::*, BatchNorm Options::*, DeviceChoice Options::*,
                            CostChoice Options::*>;

/// One option: its name, where it lives and which numbers it may have.
struct Field {
  const char* name;
  Member member;
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  std::string_view least_word = {};  ///< stands for `least`
};

const std::vector<Field>& fields() {
  static const std::vector<Field> table = {
      {"stages", &Options::stages, 0, 1e6},
      {"microbatches", &Options::microbatches, 0, 1e6},
      {"min_microbatches", &Options::min_microbatches, 1, 1e6},
      {"max_microbatches", &Options::max_microbatches, 1, 1e6},
      {"tensor_parallel", &Options::tensor_parallel, 0, 1e6, "auto"},
      {"sequence_parallel", &Options::sequence_parallel},
      {"class_head", &Options::class_head},
      {"fusion", &Options::fusion},
      {"cuda_graphs", &Options::cuda_graphs},
      {"zero", &Options::zero, -1, 3},
      {"offload", &Options::offload},
      {"replicas", &Options::replicas, 1, 1e6},
      {"batch_dims", &Options::batch_dims, -1, 63},
      {"local_indices", &Options::local_indices, 0, 63},
      {"schedule", &Options::schedule},
      {"recompute", &Options::recompute},
      {"precision", &Options::precision},
      {"reduce_dtype", &Options::reduce_dtype},
      {"batch_norm", &Options::batch_norm},
      {"device_memory", &Options::device_memory, 0, 9e18},
      {"memory_margin", &Options::memory_margin, 0, 0.999},
      {"gradient_accumulation", &Options::gradient_accumulation},
      {"optimizer_state_factor", &Options::optimizer_state_factor, 0, 1e3},
      {"plan_file", &Options::plan_file},
      {"load_plan", &Options::load_plan},
      {"save_plan", &Options::save_plan},
      {"profile_file", &Options::profile_file},
      {"graph_file", &Options::graph_file},
      {"graph_after", &Options::graph_after},
      {"trace_file", &Options::trace_file},
      {"trace_every", &Options::trace_every, 0, 1e9},
      {"report_file", &Options::report_file},
      {"overwrite", &Options::overwrite},
      {"device", &Options::device},
      {"keep_memory", &Options::keep_memory},
      {"cluster_file", &Options::cluster_file},
      {"costs", &Options::costs},
      {"cost_file", &Options::cost_file},
      {"log_level", &Options::log_level},
      {"snapshot_every", &Options::snapshot_every, 0, 1e9},
      {"plan_only", &Options::plan_only},
      {"inference", &Options::inference},
      {"verify_capture", &Options::verify_capture},
      {"verify_replicas", &Options::verify_replicas, 0, 1e9},
      {"stall_warning", &Options::stall_warning, 0.001, 1e9},
      {"stall_timeout", &Options::stall_timeout, 0.001, 1e9},
  };
  return table;
}

const Field* find_field(std::string_view name) {
  for (const auto& field : fields()) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;

/// A value as a file or the environment gives it, and where it stands.
struct Setting {
  std::string key;
  std::variant<std::string, std::int64_t, double, bool, std::vector<std::int64_t>> value;
  bool is_text = false;  ///< from the environment: text stands for every type
  std::string file;
  int line = 0;

  [[noreturn]] void fail(const std::string& reason) const { throw ConfigError(key + ": " + reason, file, line, key); }
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// "24GiB", "40 GB", "512": a number of bytes.
std::optional<double> parse_bytes(std::string_view text) {
  const auto unit_at = text.find_first_not_of("0123456789.");
  const auto number = parse_number<double>(text.substr(0, unit_at));
  if (!number || unit_at == std::string_view::npos) return number;
  auto unit = text.substr(unit_at);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{{"b", 1},
                                                                        {"kb", 1e3},
                                                                        {"mb", 1e6},
                                                                        {"gb", 1e9},
                                                                        {"tb", 1e12},
                                                                        {"kib", 0x1p10},
                                                                        {"mib", 0x1p20},
                                                                        {"gib", 0x1p30},
                                                                        {"tib", 0x1p40},
                                                                        {"g", 0x1p30}}};
  for (const auto& [name, factor] : kUnits) {
    if (lower(unit) == name) return *number * factor;
  }
  return std::nullopt;
}

double number_of(const Setting& setting, const char* what) {
  if (const auto* i = std::get_if<std::int64_t>(&setting.value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&setting.value)) return *d;
  if (const auto* text = std::get_if<std::string>(&setting.value); text != nullptr && setting.is_text) {
    if (const auto number = parse_number<double>(*text)) return *number;
  }
  setting.fail(std::string("expected ") + what);
}

double whole_number_of(const Setting& setting) {
  const double number = number_of(setting, "a whole number");
  if (number != static_cast<double>(static_cast<std::int64_t>(number))) setting.fail("expected a whole number");
  return number;
}

void check_range(const Setting& setting, const Field& field, double number) {
  if (number >= field.least && number <= field.most) return;
  std::ostringstream text;
  text << number << " is out of range; allowed are " << field.least << " to " << field.most;
  setting.fail(text.str());
}

bool bool_of(const Setting& setting) {
  if (const auto* flag = std::get_if<bool>(&setting.value)) return *flag;
  if (const auto* text = std::get_if<std::string>(&setting.value); text != nullptr && setting.is_text) {
    const auto word = lower(*text);
    if (word == "true" || word == "1" || word == "on" || word == "yes") return true;
    if (word == "false" || word == "0" || word == "off" || word == "no" || word.empty()) return false;
  }
  setting.fail("expected true or false");
}

const std::string& text_of(const Setting& setting) {
  const auto* text = std::get_if<std::string>(&setting.value);
  if (text == nullptr) setting.fail("expected text in quotes");
  return *text;
}

template <WordOption T>
T word_of(const Setting& setting) {
  const std::string& text = text_of(setting);
  if (const auto value = option_named<T>(text)) return *value;
  throw ConfigError(setting.key + ": " + not_an_option<T>(text), setting.file, setting.line, setting.key,
                    nearest_word(text, option_words<T>()));
}

RecomputeOption recompute_of(const Setting& setting) {
  if (auto option = RecomputeOption::named(text_of(setting))) return *std::move(option);
  setting.fail("is empty; use 'auto', 'none', 'full' or names of modules, with commas between them");
}

std::vector<int> list_of(const Setting& setting, const Field& field) {
  std::vector<int> out;
  const auto add = [&](double number) {
    check_range(setting, field, number);
    out.push_back(static_cast<int>(number));
  };
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&setting.value)) {
    for (const auto item : *list) add(static_cast<double>(item));
    return out;
  }
  if (const auto* text = std::get_if<std::string>(&setting.value); text != nullptr && setting.is_text) {
    std::istringstream items(*text);
    for (std::string item; std::getline(items, item, ',');) {
      const auto number = parse_number<int>(item);
      if (!number) setting.fail("expected whole numbers separated by commas, not '" + item + "'");
      add(*number);
    }
    return out;
  }
  add(whole_number_of(setting));
  return out;
}

void assign(Options& options, const Field& field, const Setting& setting) {
  const auto checked = [&](double number) {
    check_range(setting, field, number);
    return number;
  };
  const auto* word = std::get_if<std::string>(&setting.value);
  const bool is_word = word != nullptr && !field.least_word.empty() && *word == field.least_word;
  std::visit(Overload{[&](int Options::*m) {
                        options.*m = static_cast<int>(is_word ? field.least : checked(whole_number_of(setting)));
                      },
                      [&](double Options::*m) { options.*m = checked(number_of(setting, "a number")); },
                      [&](bool Options::*m) { options.*m = bool_of(setting); },
                      [&](std::string Options::*m) { options.*m = text_of(setting); },
                      [&]<WordOption T>(T Options::*m) { options.*m = word_of<T>(setting); },
                      [&](RecomputeOption Options::*m) { options.*m = recompute_of(setting); },
                      [&](std::vector<int> Options::*m) { options.*m = list_of(setting, field); },
                      [&](Bytes Options::*m) {
                        const auto* text = std::get_if<std::string>(&setting.value);
                        const auto bytes = text != nullptr ? parse_bytes(*text) : number_of(setting, "bytes");
                        if (!bytes) setting.fail("expected bytes, e.g. 17179869184 or \"16 GiB\"");
                        options.*m = Bytes(static_cast<std::int64_t>(checked(*bytes)));
                      },
                      [&](Seconds Options::*m) { options.*m = Seconds(checked(number_of(setting, "seconds"))); }},
             field.member);
}

/// Whether a field of `code` was set: it differs from its default.
bool is_set(const Options& code, const Field& field) {
  static const Options defaults;
  return std::visit([&](auto member) { return code.*member != defaults.*member; }, field.member);
}

std::string value_text(const Options& options, const Field& field) {
  std::ostringstream out;
  out.precision(17);
  std::visit(Overload{[&](bool Options::*m) { out << (options.*m ? "true" : "false"); },
                      [&](std::vector<int> Options::*m) {
                        for (std::size_t i = 0; i < (options.*m).size(); ++i)
                          out << (i == 0 ? "" : ",") << (options.*m)[i];
                      },
                      [&](Bytes Options::*m) { out << (options.*m).value(); },
                      [&](Seconds Options::*m) { out << (options.*m).value(); },
                      [&](RecomputeOption Options::*m) { out << option_text(options.*m); },
                      [&]<WordOption T>(T Options::*m) { out << option_text(options.*m); },
                      [&](auto m) { out << options.*m; }},
             field.member);
  return out.str();
}

/// Environment names that belong to autopar's scripts and to the start of ranks, not to Options.
bool is_reserved(std::string_view name) {
  constexpr std::array<std::string_view, 8> kNames{"CONFIG", "CONF_DIR", "VENV",          "SOURCE",
                                                   "DEPS",   "HOME",     "START_TIMEOUT", "RUN"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

[[noreturn]] void fail_unknown(const Setting& setting) {
  std::vector<std::string> known;
  for (const auto& field : fields()) known.emplace_back(field.name);
  throw ConfigError("unknown option '" + setting.key + "'", setting.file, setting.line, setting.key,
                    nearest_word(lower(setting.key), known));
}

/// Two of RaNNC's keys that are one option here: a switch, and the name of the file that it switches on.
struct RanncPair {
  std::string_view on, path;
  std::string Options::*file;
  const char* usual;   ///< where no name is given
  const char* suffix;  ///< of RaNNC's name
  bool is_on_by_path;  ///< where the switch is not given
};
constexpr std::array<RanncPair, 3> kRanncPairs{{
    {"trace_events", "event_trace_file", &Options::trace_file, "autopar_trace.json", "", true},
    {"dump_graph", "dump_graph_prefix", &Options::graph_file, "autopar_graph.dot", ".dot", false},
    {"save_graph_profile", "graph_profile_file", &Options::profile_file, "autopar_profile.json", "", true},
}};

/// Options while sources are merged.
struct Merging : ResolvedOptions {
  struct Pair {
    std::optional<bool> on;
    std::string path;
  };
  std::array<Pair, kRanncPairs.size()> pairs;
};

/// The two keys mean the same in either order, and in one source or two.
bool assign_pair(Merging& out, const Setting& setting) {
  for (std::size_t i = 0; i < kRanncPairs.size(); ++i) {
    const auto& keys = kRanncPairs[i];
    auto& pair = out.pairs[i];
    auto& file = out.options.*keys.file;
    if (setting.key == keys.on) {
      pair.on = bool_of(setting);
      if (!*pair.on)
        file.clear();
      else if (file.empty())
        file = pair.path.empty() ? keys.usual : pair.path;
      return true;
    }
    if (setting.key == keys.path) {
      pair.path = text_of(setting) + keys.suffix;
      if (pair.on.value_or(keys.is_on_by_path)) file = pair.path;
      return true;
    }
  }
  return false;
}

/// A key without a counterpart has its type in RaNNC's manual all the same.
void check_without_effect(const Setting& setting) {
  constexpr std::array<std::string_view, 3> kNumbers{"profiling_iter", "min_partition_num", "max_partition_num"};
  if (std::find(kNumbers.begin(), kNumbers.end(), setting.key) != kNumbers.end())
    static_cast<void>(whole_number_of(setting));
  else
    static_cast<void>(bool_of(setting));
}

/// RaNNC's spelling: renamed options are assigned, the rest leaves a note.
void assign_alias(Merging& out, const RanncAlias& alias, const Setting& setting) {
  auto& options = out.options;
  if (alias.rannc == "checkpointing") {
    options.recompute = bool_of(setting) ? Recompute::kAlways : Recompute::kNever;
  } else if (alias.rannc == "profiling" || alias.rannc == "display_comm_value") {
    if (bool_of(setting)) {
      options.log_level = alias.rannc == "profiling" ? "info" : "warn,Executor=trace";
      out.sets_log_level = true;
    }
  } else if (alias.rannc == "offload_params") {
    if (bool_of(setting)) options.offload = Offload::kOptimizer;
  } else if (assign_pair(out, setting)) {
  } else if (alias.autopar.empty()) {
    check_without_effect(setting);
  } else if (alias.rannc == "replica_num" && number_of(setting, "a whole number") == 0) {
    options.replicas.clear();  // RaNNC writes 0 for "not forced", which is no replica count here
  } else {
    assign(options, *find_field(alias.autopar), setting);
  }
  out.notes.push_back("option '" + setting.key + "' is RaNNC's name: " + std::string(alias.meaning));
}

void apply(Merging& out, const Setting& setting) {
  const auto key = lower(setting.key);
  if (key == "log_level") out.sets_log_level = true;
  if (key == "plan_only" && std::holds_alternative<std::string>(setting.value)) {
    const auto& text = std::get<std::string>(setting.value);
    if (text.ends_with(".toml")) {
      out.options.plan_only = true;
      out.options.cluster_file = text;
      // A run that only plans leaves something behind, and is not answered by what an earlier one left.
      if (out.options.profile_file.empty()) out.options.profile_file = "autopar_profile.json";
      if (out.options.plan_file.empty()) {
        out.options.plan_file = "autopar_plan.json";
        out.options.load_plan = false;
      }
      return;
    }
  }
  if (key == "start_timeout") setting.fail("only the environment can set it, as AUTOPAR_START_TIMEOUT");
  if (const auto* field = find_field(key)) return assign(out.options, *field, setting);
  for (const auto& alias : rannc_aliases()) {
    if (key != alias.rannc) continue;
    auto named = setting;
    named.key = key;
    return assign_alias(out, alias, named);
  }
  fail_unknown(setting);
}

Setting setting_of(const std::string& file, std::string_view key, const toml::node& node) {
  Setting setting{std::string(key), {}, false, file, static_cast<int>(node.source().begin.line)};
  if (const auto text = node.value_exact<std::string>())
    setting.value = *text;
  else if (const auto whole = node.value_exact<std::int64_t>())
    setting.value = *whole;
  else if (const auto number = node.value_exact<double>())
    setting.value = *number;
  else if (const auto flag = node.value_exact<bool>())
    setting.value = *flag;
  else if (const auto* array = node.as_array()) {
    std::vector<std::int64_t> list;
    for (const auto& item : *array) {
      const auto entry = item.value_exact<std::int64_t>();
      if (!entry) setting.fail("expected a list of whole numbers");
      list.push_back(*entry);
    }
    setting.value = std::move(list);
  } else {
    setting.fail("expected a number, text, true, false or a list of whole numbers");
  }
  return setting;
}

void apply_file(Merging& out, const ConfigSources& sources) {
  if (sources.text.empty()) return;
  const auto settings = parse_toml(sources.text, sources.file);
  std::vector<std::pair<int, Setting>> in_order;
  for (const auto& [key, node] : settings) {
    auto setting = setting_of(sources.file, key.str(), node);
    in_order.emplace_back(setting.line, std::move(setting));
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [line, setting] : in_order) apply(out, setting);
}

void apply_environment(Merging& out, const std::vector<std::string>& environment, std::string_view prefix) {
  auto sorted = environment;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& entry : sorted) {
    const auto equals = entry.find('=');
    if (!entry.starts_with(prefix) || equals == std::string::npos) continue;
    const auto name = entry.substr(prefix.size(), equals - prefix.size());
    if (is_reserved(name)) continue;
    apply(out,
          Setting{lower(name), entry.substr(equals + 1), true, "environment variable " + entry.substr(0, equals), 0});
  }
}

void apply_arguments(Merging& out, const std::vector<std::string>& arguments) {
  for (const auto& entry : arguments) {
    const auto equals = entry.find('=');
    auto key = lower(entry.substr(0, equals));
    std::replace(key.begin(), key.end(), '-', '_');
    if (equals == std::string::npos) throw ConfigError("expected KEY=VALUE, not '" + entry + "'", "", 0, key);
    auto option = "--" + key;
    std::replace(option.begin(), option.end(), '_', '-');
    apply(out, Setting{key, entry.substr(equals + 1), true, option, 0});
  }
}

void check_code(const Options& code) {
  for (const auto& field : fields()) {
    const Setting setting{field.name, std::string(), false, "", 0};
    try {
      std::visit(
          Overload{[&](int Options::*m) { check_range(setting, field, code.*m); },
                   [&](double Options::*m) { check_range(setting, field, code.*m); },
                   [&]<WordOption T>(T Options::*m) { static_cast<void>(option_text(code.*m)); },
                   [&](std::vector<int> Options::*m) {
                     for (const int item : code.*m) check_range(setting, field, item);
                   },
                   [&](Bytes Options::*m) { check_range(setting, field, static_cast<double>((code.*m).value())); },
                   [&](Seconds Options::*m) { check_range(setting, field, (code.*m).value()); }, [](auto) {}},
          field.member);
    } catch (const ConfigError& error) {
      throw InvalidArgument(std::string("Options::") + error.what());
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(std::string("Options::") + field.name + ": " + error.what());
    }
  }
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = word.size() / 2 + 2;
  for (const auto& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j < row.size(); ++j) {
        const auto change = diagonal + (word[i - 1] == candidate[j - 1] ? 0u : 1u);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

namespace {

/// Empty for a variable that is not set.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The XDG base directory specification: relative paths are to be passed over.
std::string user_folder_of(const char* xdg_variable, const std::string& usual) {
  const auto xdg = variable(xdg_variable), home = variable("HOME");
  if (xdg.starts_with('/')) return xdg + "/autopar";
  return home.starts_with('/') ? home + usual + "/autopar" : std::string();
}

std::string seconds_text(Seconds time) {
  std::ostringstream text;
  text << time.value() << " s";
  return text.str();
}

}  // namespace

std::vector<std::string> process_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("AUTOPAR_") || text.starts_with("RANNC_")) environment.emplace_back(text);
  }
  return environment;
}

Seconds start_timeout(const std::vector<std::string>& environment) {
  constexpr std::string_view kName = "AUTOPAR_START_TIMEOUT";
  const Field limits{"start_timeout", &Options::stall_timeout, 0.001, 1e9};
  double seconds = 120;
  for (const auto& entry : environment) {
    const auto equals = entry.find('=');
    if (entry.substr(0, equals) != kName || equals == std::string::npos) continue;
    const Setting setting{limits.name, entry.substr(equals + 1), true, "environment variable " + std::string(kName), 0};
    seconds = number_of(setting, "seconds");
    check_range(setting, limits, seconds);
  }
  return Seconds(seconds);
}

ConfigPlaces process_config_places() {
  const auto home = variable("HOME"), rannc = variable("RANNC_CONF_DIR");
  return {.file = variable("AUTOPAR_CONFIG"),
          .folder = variable("AUTOPAR_CONF_DIR"),
          .user_folder = user_folder_of("XDG_CONFIG_HOME", "/.config"),
          .rannc_folder = rannc.empty() && home.starts_with('/') ? home + "/.pyrannc" : rannc,
          .is_rannc_folder_named = !rannc.empty()};
}

ConfigSources process_config_sources() {
  ConfigSources sources;
  sources.environment = process_environment();
  if (auto found = find_options_file(process_config_places()); !found.path.empty()) {
    sources.file = std::move(found.path);
    sources.text = std::move(found.text);
    sources.has_file = true;
    sources.is_rannc = found.is_rannc;
  }
  sources.cache_folder = user_folder_of("XDG_CACHE_HOME", "/.cache");
  return sources;
}

ResolvedOptions resolve_options(const Options& code, const ConfigSources& sources) {
  check_code(code);
  Merging out;
  if (sources.is_rannc) {
    out.notes.push_back("options are read from RaNNC's file " + printable_line(sources.file) +
                        ", since there is no autopar.toml");
  }
  apply_file(out, sources);
  for (const auto& field : fields()) {
    if (!is_set(code, field)) continue;
    if (field.name == std::string_view("log_level")) out.sets_log_level = true;
    std::visit([&](auto member) { out.options.*member = code.*member; }, field.member);
  }
  apply_environment(out, sources.environment, "RANNC_");
  apply_environment(out, sources.environment, "AUTOPAR_");
  apply_arguments(out, sources.arguments);
  if (out.options.min_microbatches > out.options.max_microbatches) {
    throw InvalidArgument("min_microbatches = " + std::to_string(out.options.min_microbatches) +
                          " exceeds max_microbatches = " + std::to_string(out.options.max_microbatches));
  }
  // Who sets a short timeout alone need not know of the warning.
  if (out.options.stall_warning != Options{}.stall_warning && out.options.stall_warning > out.options.stall_timeout) {
    throw InvalidArgument("stall_warning = " + seconds_text(out.options.stall_warning) +
                          " exceeds stall_timeout = " + seconds_text(out.options.stall_timeout) +
                          ", so nothing would be said before the end; lower it");
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> describe_options(const Options& options) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& field : fields()) out.emplace_back(field.name, value_text(options, field));
  return out;
}

}  // namespace autopar
