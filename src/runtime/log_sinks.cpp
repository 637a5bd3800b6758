#include "log_sinks.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/daily_file_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/host_name.hpp>

namespace autopar::detail {

namespace {

namespace sinks = spdlog::sinks;

std::string replaced(std::string text, std::string_view placeholder, const std::string& value) {
  for (auto at = text.find(placeholder); at != std::string::npos; at = text.find(placeholder, at + value.size()))
    text.replace(at, placeholder.size(), value);
  return text;
}

std::string filled_in(std::string text, const LogOrigin& origin) {
  text = replaced(std::move(text), "{rank}", std::to_string(origin.rank.value()));
  text = replaced(std::move(text), "{size}", std::to_string(origin.size));
  return replaced(std::move(text), "{host}", origin.host);
}

/// Each module's own pattern, on sinks that modules share.
class ModuleFormatter final : public spdlog::formatter {
 public:
  explicit ModuleFormatter(std::array<std::string, kLogModules> patterns) : patterns_(std::move(patterns)) {
    for (std::size_t i = 0; i < patterns_.size(); ++i)
      formatters_[i] = std::make_unique<spdlog::pattern_formatter>(patterns_[i]);
  }

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const auto module = log_module_named({message.logger_name.data(), message.logger_name.size()});
    formatters_[static_cast<std::size_t>(module.value_or(LogModule::kWorld))]->format(message, line);
  }
  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<ModuleFormatter>(patterns_);
  }

 private:
  std::array<std::string, kLogModules> patterns_;
  std::array<std::unique_ptr<spdlog::formatter>, kLogModules> formatters_;
};

/// A console, unless the program takes the lines.
class ConsoleSink final : public sinks::base_sink<std::mutex> {
 public:
  ConsoleSink(SpdlogSink console, std::shared_ptr<LineReceiver> receiver)
      : console_(std::move(console)), receiver_(std::move(receiver)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (receiver_->is_set()) {
      spdlog::memory_buf_t line;
      formatter_->format(message, line);
      std::string_view text(line.data(), line.size());
      while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
      if (receiver_->receive(text)) return;
    }
    console_->log(message);
  }
  void flush_() override { console_->flush(); }
  void set_pattern_(const std::string& pattern) override {
    set_formatter_(std::make_unique<spdlog::pattern_formatter>(pattern));
  }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    console_->set_formatter(formatter->clone());
    base_sink::set_formatter_(std::move(formatter));
  }

  SpdlogSink console_;
  std::shared_ptr<LineReceiver> receiver_;
};

SpdlogSink console(const ConsoleLog& to, const std::shared_ptr<LineReceiver>& receiver) {
  SpdlogSink sink;
  if (to.in_colour && to.is_error)
    sink = std::make_shared<sinks::ansicolor_stderr_sink_mt>();
  else if (to.in_colour)
    sink = std::make_shared<sinks::ansicolor_stdout_sink_mt>();
  else if (to.is_error)
    sink = std::make_shared<sinks::stderr_sink_mt>();
  else
    sink = std::make_shared<sinks::stdout_sink_mt>();
  return std::make_shared<ConsoleSink>(std::move(sink), receiver);
}

bool is_character_device(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISCHR(status.st_mode);
}

const char* key_of(const LogSinkConfig& sink) {
  return std::holds_alternative<FileLog>(sink.to) ? "filename" : "base_filename";
}

/// Opens the sinks of one file.
class SinkOpener {
 public:
  SinkOpener(const LogConfig& config, const LogOrigin& origin, std::shared_ptr<LineReceiver> receiver)
      : config_(config), origin_(origin), receiver_(std::move(receiver)) {}

  /// Null where the sink is other ranks'.
  SpdlogSink open(const LogSinkConfig& sink) {
    if (const auto* file = sink.file()) require_own_file(sink, *file);
    if (sink.ranks && !std::binary_search(sink.ranks->begin(), sink.ranks->end(), origin_.rank.value())) return nullptr;
    try {
      auto opened = std::visit([&](const auto& to) { return open(sink, to); }, sink.to);
      opened->set_level(spdlog_level(sink.level));
      return opened;
    } catch (const spdlog::spdlog_ex& error) {
      fail(sink, printable_line(error.what()) + "; name a file that may be written");
    }
  }

 private:
  /// The reason, with the sink and what was given.
  [[noreturn]] void fail(const LogSinkConfig& sink, const std::string& reason) const {
    const char* const key = sink.file() != nullptr ? key_of(sink) : "type";
    throw ConfigError("sink '" + printable_line(sink.name) + "': " + key + ": " + reason, config_.file, sink.line, key);
  }

  /// The same on all ranks, so that all find it, also those that do not write.
  void require_own_file(const LogSinkConfig& sink, const LogFileName& file) const {
    const auto writers = sink.ranks ? std::count_if(sink.ranks->begin(), sink.ranks->end(),
                                                    [&](int rank) { return rank < origin_.size; })
                                    : origin_.size;
    if (writers <= 1 || file.name.find("{rank}") != std::string::npos || is_character_device(file.name)) return;
    fail(sink, std::to_string(writers) + " ranks would write to '" + file.name +
                   "'; put {rank} into the name, or let one rank write with ranks = \"first\"");
  }

  /// @param written  the name of the file that will be opened
  void require_writable(const LogSinkConfig& sink, const LogFileName& file, const std::string& written) {
    const std::filesystem::path path(written);
    std::error_code error;
    const auto folder = path.parent_path();
    if (!folder.empty() && file.creates_folder) {
      std::filesystem::create_directories(folder, error);
      if (error) fail(sink, "the folder '" + folder.string() + "' cannot be created: " + error.message());
    } else if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      fail(sink, "there is no folder '" + folder.string() + "'; create it, or set create_parent_dir = true");
    }
    // spdlog would wait for the reader of a pipe.
    const auto status = std::filesystem::status(path, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !is_character_device(written))
      fail(sink, "'" + written + "' is there and is no file; give another name");
    auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error).string();
    if (is_character_device(written)) return;
    const auto [other, is_new] = files_.emplace(whole.empty() ? written : whole, sink.name);
    if (!is_new)
      fail(sink,
           "sink '" + printable_line(other->second) + "' writes to '" + written + "', too; one of them is enough");
  }

  SpdlogSink open(const LogSinkConfig&, const ConsoleLog& to) { return console(to, receiver_); }
  SpdlogSink open(const LogSinkConfig& sink, const FileLog& to) {
    const auto name = filled_in(to.file.name, origin_);
    require_writable(sink, to.file, name);
    return std::make_shared<sinks::basic_file_sink_mt>(name, to.truncates);
  }
  SpdlogSink open(const LogSinkConfig& sink, const RotatingFileLog& to) {
    const auto name = filled_in(to.file.name, origin_);
    require_writable(sink, to.file, name);
    return std::make_shared<sinks::rotating_file_sink_mt>(name, static_cast<std::size_t>(to.most.value()),
                                                          static_cast<std::size_t>(to.old_files));
  }
  SpdlogSink open(const LogSinkConfig& sink, const DailyFileLog& to) {
    const auto name = filled_in(to.file.name, origin_);
    require_writable(sink, to.file,
                     sinks::daily_filename_calculator::calc_filename(name, spdlog::details::os::localtime()));
    return std::make_shared<sinks::daily_file_sink_mt>(name, to.hour, to.minute);
  }
  SpdlogSink open(const LogSinkConfig&, const SystemLog& to) {
    return std::make_shared<sinks::syslog_sink_mt>(to.identity, to.options, to.facility, true);
  }
  SpdlogSink open(const LogSinkConfig&, const NullLog&) { return std::make_shared<sinks::null_sink_mt>(); }

  const LogConfig& config_;
  const LogOrigin& origin_;
  const std::shared_ptr<LineReceiver> receiver_;
  std::map<std::string, std::string> files_;
};

}  // namespace

void LineReceiver::set(Log::Writer writer) {
  const std::lock_guard lock(mutex_);
  writer_ = std::move(writer);
  is_set_ = static_cast<bool>(writer_);
}

bool LineReceiver::receive(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (!writer_) return false;
  writer_(std::string(line));
  return true;
}

ModuleSinks open_sinks(const LogConfig& config, const LogOrigin& origin,
                       const std::shared_ptr<LineReceiver>& receiver) {
  SinkOpener opener(config, origin, receiver);
  std::array<std::string, kLogModules> patterns;
  LogOrigin in_pattern = origin;
  in_pattern.host = replaced(origin.host, "%", "%%");
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = filled_in(config.modules[i].pattern, in_pattern);
  const auto formatted = [&](SpdlogSink sink) {
    sink->set_formatter(std::make_unique<ModuleFormatter>(patterns));
    return sink;
  };
  std::vector<SpdlogSink> opened;
  for (const auto& sink : config.sinks) {
    auto own = opener.open(sink);
    opened.push_back(own ? formatted(std::move(own)) : nullptr);
  }
  const auto standard_error = formatted(console({.is_error = true}, receiver));
  ModuleSinks sinks;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    if (!config.modules[i].sinks) {
      sinks[i] = {standard_error};
      continue;
    }
    for (const auto index : *config.modules[i].sinks) {
      if (opened.at(index)) sinks[i].push_back(opened[index]);
    }
  }
  return sinks;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  constexpr std::array kLevels{spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                               spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<std::size_t>(level)];
}

std::string host_in_file_name() {
  auto text = printable_line(host_name());
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

}  // namespace autopar::detail
