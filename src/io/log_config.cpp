#include <autopar/io/log_config.hpp>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/config.hpp>

#include "toml_section.hpp"

namespace autopar {

namespace {

constexpr int kMostRotated = 200'000;  // as spdlog

std::string in_quotes(std::string_view text) { return "'" + printable_line(text) + "'"; }

template <class Names>
std::string list_of(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

/// spdlog's words for levels, besides autopar's own. Nothing here is worse than an error.
LogLevel level_of(Section& section, LogLevel otherwise) {
  const auto word = section.text_or("level", "");
  if (word.empty() && !section.has("level")) return otherwise;
  if (const auto level = log_level_named(word)) return *level;
  if (word == "warning") return LogLevel::kWarn;
  if (word == "err" || word == "critical") return LogLevel::kError;
  const std::vector<std::string> known{"trace", "debug", "info", "warn", "error", "off"};
  section.fail("level", in_quotes(word) + " is no level; use " + list_of(known), nearest_word(word, known));
}

/// The name that others refer to.
std::string name_in(Section& section) {
  auto name = section.text("name");
  if (name.empty()) section.fail("name", "is empty");
  return name;
}

/// Placeholders are filled in when it is known which rank writes.
void require_known_placeholders(const Section& section, const char* key, std::string_view text) {
  for (auto open = text.find('{'); open != std::string_view::npos; open = text.find('{', open + 1)) {
    const auto close = text.find('}', open);
    if (close == std::string_view::npos) return;
    const auto word = text.substr(open + 1, close - open - 1);
    const bool is_word = !word.empty() && std::all_of(word.begin(), word.end(),
                                                      [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
    if (!is_word || word == "rank" || word == "size" || word == "host") continue;
    section.fail(key, "'{" + std::string(word) + "}' is not known; there are {rank}, {size} and {host}",
                 "{" + nearest_word(word, {"rank", "size", "host"}) + "}");
  }
}

LogFileName file_name_in(Section& section, const char* key) {
  LogFileName file{section.text(key), section.flag_or("create_parent_dir", false)};
  if (file.name.empty()) section.fail(key, "is empty");
  if (file.name.ends_with('/')) section.fail(key, in_quotes(file.name) + " names a folder; name a file in it");
  if (printable_line(file.name) != file.name) section.fail(key, in_quotes(file.name) + " has control characters");
  require_known_placeholders(section, key, file.name);
  return file;
}

/// 1048576, "512 KiB" or, as spdlog_setup, "1M".
Bytes size_in(Section& section, const char* key) {
  const auto* node = section.node_if(key);
  if (node == nullptr) section.fail(key, "is missing");
  std::int64_t size = 0;
  if (const auto number = node->value_exact<std::int64_t>()) size = *number;
  if (const auto text = node->value_exact<std::string>()) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), size);
    std::string_view unit(end, static_cast<std::size_t>(text->data() + text->size() - end));
    unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
    if (unit.ends_with("iB"))
      unit.remove_suffix(2);
    else if (unit.ends_with('B'))
      unit.remove_suffix(1);
    constexpr std::string_view kUnits = "KMGT";
    const auto power = unit.empty() ? 0 : kUnits.find(unit == "k" ? "K" : unit);
    const bool is_unit = unit.size() <= 1 && power != std::string_view::npos;
    const int shift = unit.empty() ? 0 : 10 * static_cast<int>(power + 1);
    const bool fits = is_unit && size <= (std::numeric_limits<std::int64_t>::max() >> shift);
    size = error == std::errc() && fits && size > 0 ? size << shift : 0;
  }
  if (size <= 0) section.fail(key, "expected bytes, e.g. 1048576 or \"1M\"");
  return Bytes(size);
}

std::optional<std::vector<int>> ranks_in(Section& section) {
  constexpr const char* kExpected = "expected \"all\", \"first\" or a list of ranks such as [0, 3]";
  const auto* node = section.node_if("ranks");
  if (node == nullptr) return std::nullopt;
  if (const auto word = node->value_exact<std::string>()) {
    if (*word == "all") return std::nullopt;
    if (*word == "first") return std::vector<int>{0};
    section.fail("ranks", std::string(kExpected) + ", not " + in_quotes(*word));
  }
  const auto* list = node->as_array();
  if (list == nullptr || list->empty()) section.fail("ranks", kExpected);
  std::vector<int> ranks;
  for (const auto& item : *list) {
    const auto rank = item.value_exact<std::int64_t>();
    if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max()) section.fail("ranks", kExpected);
    ranks.push_back(static_cast<int>(*rank));
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

using Destination = decltype(LogSinkConfig::to);

struct SinkType {
  std::string_view name;
  std::function<Destination(Section&)> read;
};

/// spdlog_setup's types without _st and _mt, of which autopar always takes the second: its threads share loggers.
const std::vector<SinkType>& sink_types() {
  static const std::vector<SinkType> table = {
      {"stdout_sink",
       [](Section&) {
         return ConsoleLog{false, false};
       }},
      {"stderr_sink",
       [](Section&) {
         return ConsoleLog{true, false};
       }},
      {"color_stdout_sink",
       [](Section&) {
         return ConsoleLog{false, true};
       }},
      {"color_stderr_sink",
       [](Section&) {
         return ConsoleLog{true, true};
       }},
      {"basic_file_sink",
       [](Section& section) {
         return FileLog{file_name_in(section, "filename"), section.flag_or("truncate", false)};
       }},
      {"rotating_file_sink",
       [](Section& section) {
         auto file = file_name_in(section, "base_filename");
         const auto most = size_in(section, "max_size");
         if (!section.has("max_files")) section.fail("max_files", "is missing");
         return RotatingFileLog{std::move(file), most, section.whole_number_or("max_files", 1, kMostRotated, 1)};
       }},
      {"daily_file_sink",
       [](Section& section) {
         return DailyFileLog{file_name_in(section, "base_filename"), section.whole_number_or("rotation_hour", 0, 23, 0),
                             section.whole_number_or("rotation_minute", 0, 59, 0)};
       }},
      {"null_sink", [](Section&) { return NullLog{}; }},
      {"syslog_sink",
       [](Section& section) {
         constexpr int kFacilities = 24 << 3;
         const SystemLog usual;
         SystemLog log{section.text_or("ident", usual.identity), section.whole_number_or("syslog_option", 0, 255, 0),
                       section.whole_number_or("syslog_facility", 0, kFacilities - 1, usual.facility)};
         if (printable_line(log.identity) != log.identity) section.fail("ident", "has control characters");
         return log;
       }},
  };
  return table;
}

Destination destination_in(Section& section) {
  const auto type = section.text("type");
  std::string_view stem = type;
  if (stem.ends_with("_st") || stem.ends_with("_mt")) stem.remove_suffix(3);
  std::vector<std::string> known;
  for (const auto& each : sink_types()) {
    if (stem == each.name) return each.read(section);
    known.push_back(std::string(each.name) + "_mt");
  }
  section.fail("type", in_quotes(type) + " is not known here; there are " + list_of(known),
               nearest_word(std::string(stem) + "_mt", known));
}

/// One file, of which the tables are read one after another.
class LogConfigReader {
 public:
  LogConfigReader(std::string_view text, const std::string& file)
      : root_(parse_toml(text, file)), file_(file), section_(root_, file, "") {
    config_.file = file;
  }

  LogConfig read() {
    for (const char* pool : {"global_thread_pool", "thread_pool"}) {
      if (section_.has(pool)) section_.fail(pool, "lines are written at once, not by other threads; remove it");
    }
    read_patterns();
    read_sinks();
    read_loggers();
    section_.finish();
    return std::move(config_);
  }

 private:
  struct LoggerTable {
    std::string name;
    std::optional<LogModule> module;  ///< none: root
    Section section;
  };

  Section section_of(const toml::node& table, const char* kind) const {
    return Section(*table.as_table(), file_, std::string(kind) + ".");
  }

  void read_patterns() {
    if (const auto pattern = section_.text_or("global_pattern", ""); section_.has("global_pattern")) {
      require_known_placeholders(section_, "global_pattern", pattern);
      for (auto& module : config_.modules) module.pattern = pattern;
    }
    if (const auto* tables = section_.tables_if("pattern")) {
      for (const auto& table : *tables) {
        auto section = section_of(table, "pattern");
        const auto name = name_in(section);
        auto value = section.text("value");
        require_known_placeholders(section, "value", value);
        section.finish();
        if (!patterns_.emplace(name, std::move(value)).second)
          section.fail("name", "there are two patterns " + in_quotes(name));
      }
    }
  }

  void read_sinks() {
    if (const auto* tables = section_.tables_if("sink")) {
      for (const auto& table : *tables) {
        auto section = section_of(table, "sink");
        LogSinkConfig sink{name_in(section), destination_in(section), level_of(section, LogLevel::kTrace),
                           ranks_in(section), section.line()};
        section.finish();
        if (!sinks_.emplace(sink.name, config_.sinks.size()).second)
          section.fail("name", "there are two sinks " + in_quotes(sink.name));
        config_.sinks.push_back(std::move(sink));
      }
    }
  }

  void read_loggers() {
    const auto* tables = section_.tables_if("logger");
    if (tables == nullptr) return;
    std::vector<LoggerTable> loggers;
    for (const auto& table : *tables) {
      auto section = section_of(table, "logger");
      auto name = name_in(section);
      if (std::any_of(loggers.begin(), loggers.end(), [&](const auto& other) { return other.name == name; }))
        section.fail("name", "there are two loggers " + in_quotes(name));
      const auto module = module_of(section, name);
      loggers.push_back({std::move(name), module, std::move(section)});
    }
    for (auto& logger : loggers) {
      if (logger.module) continue;
      const auto root = settings_in(logger.section, config_.modules.front());
      config_.modules.fill(root);
    }
    const auto root = config_.modules.front();
    apply_rannc(loggers, root);
    for (auto& logger : loggers) {
      if (logger.module && is_ours(logger)) module_settings(logger) = settings_in(logger.section, root);
    }
  }

  static bool is_ours(const LoggerTable& logger) { return log_module_named(logger.name).has_value(); }
  ModuleLogConfig& module_settings(const LoggerTable& logger) {
    return config_.modules[static_cast<std::size_t>(*logger.module)];
  }

  /// Several of RaNNC's loggers are one module here: all their sinks, and the most talkative of their levels.
  void apply_rannc(std::vector<LoggerTable>& loggers, const ModuleLogConfig& root) {
    std::vector<std::string> renamed;
    std::vector<bool> is_set(kLogModules);
    for (auto& logger : loggers) {
      if (!logger.module || is_ours(logger)) continue;
      renamed.push_back(logger.name + " (" + std::string(name_of(*logger.module)) + ")");
      auto settings = settings_in(logger.section, root);
      auto& joined = module_settings(logger);
      if (is_set[static_cast<std::size_t>(*logger.module)]) {
        settings.level = std::min(settings.level, joined.level);
        if (!settings.sinks || !joined.sinks) {
          settings.sinks.reset();
        } else {
          for (const auto sink : *joined.sinks) {
            if (std::find(settings.sinks->begin(), settings.sinks->end(), sink) == settings.sinks->end())
              settings.sinks->push_back(sink);
          }
        }
      }
      joined = std::move(settings);
      is_set[static_cast<std::size_t>(*logger.module)] = true;
    }
    if (!renamed.empty()) {
      config_.notes.push_back("loggers of RaNNC's names are autopar's modules in parentheses: " + list_of(renamed));
    }
  }

  std::optional<LogModule> module_of(Section& section, const std::string& name) const {
    if (name == "root") return std::nullopt;
    if (const auto module = log_module_named(name)) return module;
    for (const auto& [rannc, module] : rannc_loggers()) {
      if (name == rannc) return module;
    }
    auto known = log_module_names();
    const auto ours = list_of(known);
    known.emplace_back("root");
    for (const auto& each : rannc_loggers()) known.emplace_back(each.rannc);
    section.fail("name", "there is no logger " + in_quotes(name) + "; there are root, " + ours,
                 nearest_word(name, known));
  }

  /// What a [[logger]] says, and for the rest what `otherwise` has.
  ModuleLogConfig settings_in(Section& section, const ModuleLogConfig& otherwise) {
    ModuleLogConfig settings = otherwise;
    if (const auto type = section.text_or("type", "sync"); type != "sync") {
      section.fail("type", in_quotes(type) + ": lines are written at once, not by other threads; remove it");
    }
    settings.level = level_of(section, otherwise.level);
    if (const auto* node = section.node_if("sinks")) settings.sinks = sinks_in(section, *node);
    if (section.has("pattern")) {
      const auto name = section.text("pattern");
      const auto pattern = patterns_.find(name);
      if (pattern == patterns_.end())
        section.fail("pattern", "there is no [[pattern]] " + in_quotes(name), nearest_word(name, names_of(patterns_)));
      settings.pattern = pattern->second;
    }
    section.finish();
    return settings;
  }

  std::vector<std::size_t> sinks_in(const Section& section, const toml::node& node) const {
    const auto* list = node.as_array();
    if (list == nullptr) section.fail("sinks", "expected a list of names of sinks");
    std::vector<std::size_t> sinks;
    for (const auto& item : *list) {
      const auto name = item.value_exact<std::string>();
      if (!name) section.fail("sinks", "expected a list of names of sinks");
      const auto sink = sinks_.find(*name);
      if (sink == sinks_.end())
        section.fail("sinks", "there is no [[sink]] " + in_quotes(*name), nearest_word(*name, names_of(sinks_)));
      if (std::find(sinks.begin(), sinks.end(), sink->second) != sinks.end())
        section.fail("sinks", in_quotes(*name) + " is there twice, and would have each line twice");
      sinks.push_back(sink->second);
    }
    return sinks;
  }

  template <class Value>
  static std::vector<std::string> names_of(const std::map<std::string, Value>& named) {
    std::vector<std::string> names;
    for (const auto& [name, value] : named) names.push_back(name);
    return names;
  }

  const toml::table root_;
  const std::string file_;
  Section section_;
  LogConfig config_;
  std::map<std::string, std::string> patterns_;
  std::map<std::string, std::size_t> sinks_;
};

}  // namespace

const LogFileName* LogSinkConfig::file() const {
  return std::visit(
      [](const auto& destination) -> const LogFileName* {
        if constexpr (requires { destination.file; })
          return &destination.file;
        else
          return nullptr;
      },
      to);
}

LogConfig parse_log_config(std::string_view text, const std::string& file) {
  return LogConfigReader(text, file).read();
}

bool is_log_config(std::string_view text, const std::string& file) {
  const auto table = parse_toml(text, file);
  if (table.empty()) return true;
  for (const char* key : {"sink", "logger", "pattern", "global_pattern"}) {
    if (table.contains(key)) return true;
  }
  return false;
}

}  // namespace autopar
