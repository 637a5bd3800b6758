#include "torch/ranks/error_message.hpp"

#include <vector>

#include <c10/util/Exception.h>

#include <autopar/core/error.hpp>

#include "capture/replay/plain_message.hpp"

namespace autopar::ranks {

namespace {

constexpr char kSeparator = '\x1f';  // "unit separator": no message has one

/// First character of a message: which type it has.
enum class Type : char { kOther = 'o', kArgument = 'a', kCapture = 'c', kPlan = 'p', kCheckpoint = 'k', kConfig = 'f' };

std::string joined(Type type, const std::vector<std::string>& fields) {
  std::string text(1, static_cast<char>(type));
  for (const auto& field : fields) text += kSeparator + field;
  return text;
}

std::vector<std::string> fields_of(const std::string& message) {
  std::vector<std::string> fields;
  for (std::size_t at = message.find(kSeparator); at != std::string::npos;) {
    const auto end = message.find(kSeparator, at + 1);
    fields.push_back(message.substr(at + 1, end == std::string::npos ? end : end - at - 1));
    at = end;
  }
  return fields;
}

}  // namespace

std::string to_message(const std::exception& error) {
  if (const auto* capture = dynamic_cast<const CaptureError*>(&error)) {
    return joined(Type::kCapture, {capture->op(), capture->path(), capture->reason()});
  }
  if (const auto* plan = dynamic_cast<const InfeasiblePlan*>(&error)) {
    const auto stage = plan->stage().valid() ? std::to_string(plan->stage().value()) : "";
    return joined(Type::kPlan, {plan->why().reason, stage, std::to_string(plan->needed().value()),
                                std::to_string(plan->available().value()), plan->remedy()});
  }
  const std::string text = replay::plain_message(error);
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return joined(Type::kArgument, {text});
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return joined(Type::kCheckpoint, {text});
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return joined(Type::kConfig, {text});
  return joined(Type::kOther, {text.empty() ? "an exception without a message" : text});
}

void throw_message(const std::string& message, Rank rank, Rank failed, const std::string& action) {
  const auto fields = fields_of(message);
  switch (static_cast<Type>(message.at(0))) {
    case Type::kCapture:
      throw CaptureError(fields.at(0), fields.at(1), fields.at(2));
    case Type::kPlan:
      throw InfeasiblePlan({fields.at(0), fields.at(1).empty() ? StageId{} : StageId(std::stoi(fields.at(1))),
                            Bytes(std::stoll(fields.at(2))), Bytes(std::stoll(fields.at(3))), fields.at(4)});
    case Type::kArgument:
      throw InvalidArgument(fields.at(0));
    case Type::kCheckpoint:
      throw CheckpointError(fields.at(0));
    case Type::kConfig:
      throw ConfigError(fields.at(0), {});
    case Type::kOther:
      break;
  }
  throw TransportError("rank " + std::to_string(failed.value()) + " failed in " + action + ": " + fields.at(0), rank,
                       failed, action);
}

std::exception_ptr without_frames(const Logger& log, std::string_view action) {
  try {
    throw;
  } catch (const c10::Error& error) {
    log.debug("libtorch's frames of the failure in " + std::string(action) + ": " + error.what());
    try {
      std::throw_with_nested(OperatorError(std::string(action), "", replay::plain_message(error)));
    } catch (...) {
      return std::current_exception();
    }
  } catch (const std::exception& error) {
    if (const auto frames = replay::frames_of(error); !frames.empty())
      log.debug("libtorch's frames of the failure in " + std::string(action) + ": " + frames);
    return std::current_exception();
  }
}

void fail_without_frames(Ranks& ranks, const Logger& log, std::string_view action) {
  const auto error = without_frames(log, action);
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    ranks.fail(action, caught.what());
    throw;
  }
}

}  // namespace autopar::ranks
