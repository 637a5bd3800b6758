#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <autopar/core/ids.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// Base of everything that autopar throws. A message is one line that says what was wrong, with which value, and what
/// to do. Names may come from files, so control characters in them are escaped.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(printable_line(message)) {}
};

/// An argument, option or order of calls that violates the contract.
class InvalidArgument : public Error {
  using Error::Error;
};

/// Base of errors about one operator of the model.
class AboutOperator : public Error {
 public:
  /// @param op      operator as the dispatcher names it, e.g. "aten::item"
  /// @param path    nearest module or parameter path, e.g. "encoder.layers.3.weight"; may be empty
  /// @param reason  what is wrong with it
  AboutOperator(std::string op, std::string path, std::string reason)
      : Error(op + (path.empty() ? "" : " (near " + path + ")") + ": " + reason),
        op_(std::move(op)),
        path_(std::move(path)),
        reason_(std::move(reason)) {}

  [[nodiscard]] const std::string& op() const { return op_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string op_, path_, reason_;
};

/// The model cannot be captured, or cannot be run exactly on several micro-batches or replicas. The reason says why,
/// and what to change.
class CaptureError : public AboutOperator {
 public:
  using AboutOperator::AboutOperator;
};

/// An operator of the model failed while it ran: an index out of range, a target of a wrong element type. The reason is
/// libtorch's message without its stack trace. libtorch's exception is nested (std::rethrow_if_nested).
class OperatorError : public AboutOperator {
 public:
  using AboutOperator::AboutOperator;
};

/// Why no plan meets the constraints: a planner's answer, as a value. If memory is the reason, it names the stage that
/// lacks most, and the smallest changes that make a plan feasible.
struct Infeasible {
  std::string reason;
  StageId stage{};
  Bytes needed{};        ///< by a rank of that stage; 0 if unknown
  Bytes available{};     ///< to a rank
  std::string remedy{};  ///< smallest changes that fit; empty: memory is not the reason
};

/// An Infeasible answer to a caller who asked for a plan.
class InfeasiblePlan : public Error {
 public:
  explicit InfeasiblePlan(Infeasible why)
      : Error(why.remedy.empty() ? why.reason : why.reason + "; " + why.remedy), why_(std::move(why)) {}

  [[nodiscard]] const Infeasible& why() const { return why_; }
  [[nodiscard]] StageId stage() const { return why_.stage; }
  [[nodiscard]] Bytes needed() const { return why_.needed; }
  [[nodiscard]] Bytes available() const { return why_.available; }
  [[nodiscard]] const std::string& remedy() const { return why_.remedy; }

 private:
  Infeasible why_;
};

/// Not a failure: the first call of a model with `Options::plan_only` has planned it and written its files. Nothing was
/// run; rank 0 has reported it. A main with such an option catches it and returns 0.
class PlanOnly : public Error {
 public:
  PlanOnly(const std::string& message, Rank rank) : Error(message), rank_(rank) {}
  [[nodiscard]] Rank rank() const { return rank_; }  ///< the rank that throws

 private:
  Rank rank_;
};

/// Another rank failed, left or stalled, or a communication library returned an error.
class TransportError : public Error {
 public:
  TransportError(const std::string& message, Rank rank, Rank peer, std::string action = {}, int code = 0)
      : Error(message), rank_(rank), peer_(peer), action_(std::move(action)), code_(code) {}

  [[nodiscard]] Rank rank() const { return rank_; }  ///< the rank that reports
  [[nodiscard]] Rank peer() const { return peer_; }  ///< the rank that failed or is awaited
  [[nodiscard]] const std::string& action() const { return action_; }
  [[nodiscard]] int code() const { return code_; }  ///< the error code of MPI or NCCL, 0 if there is none

 private:
  Rank rank_, peer_;
  std::string action_;
  int code_;
};

/// A checkpoint cannot be written or read, or belongs to another model.
class CheckpointError : public Error {
  using Error::Error;
};

/// A mistake in a configuration or data file: with its place and, for a misspelt key, the most similar known key.
class ConfigError : public Error {
 public:
  ConfigError(const std::string& reason, std::string file, int line = 0, std::string key = {}, std::string nearest = {})
      : Error(place(file, line) + reason + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?")),
        file_(std::move(file)),
        line_(line),
        key_(std::move(key)),
        nearest_(std::move(nearest)) {}

  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] int line() const { return line_; }
  [[nodiscard]] const std::string& key() const { return key_; }
  [[nodiscard]] const std::string& nearest() const { return nearest_; }

 private:
  static std::string place(const std::string& file, int line) {
    if (file.empty()) return {};
    return file + (line > 0 ? ":" + std::to_string(line) : "") + ": ";
  }

  std::string file_;
  int line_;
  std::string key_, nearest_;
};

/// Throws InvalidArgument with `message` unless `condition` holds. For checks of arguments in public functions.
inline void expect(bool condition, const char* message) {
  if (!condition) throw InvalidArgument(message);
}

}  // namespace autopar
