#pragma once

#include <string>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar {

/// An operator of the model failed while it ran: an index out of range, a target of another element type.
/// What libtorch threw is nested (std::rethrow_if_nested).
class OperatorError : public Error {
 public:
  /// @param op, path  as CaptureError has them
  /// @param reason    libtorch's own words, without its frames
  OperatorError(std::string op, std::string path, std::string reason)
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

}  // namespace autopar
