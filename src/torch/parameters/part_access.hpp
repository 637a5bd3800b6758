#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace autopar::parameters {

/// The dispatch key of parts of parameters and copies of parameters, whose operators are checked
/// (`parameters/part_guard.hpp`). It lies above autograd.
inline constexpr c10::DispatchKey kPartKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// While it lives, operators of this thread treat parts of parameters as ordinary tensors. For autopar's own code,
/// which knows what the elements are. A backward that begins within it also skips checks on other threads.
class PartAccess {
 public:
  PartAccess() : below_(kPartKey) {}
  ~PartAccess() = default;
  PartAccess(const PartAccess&) = delete;
  PartAccess& operator=(const PartAccess&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard below_;
};

}  // namespace autopar::parameters
