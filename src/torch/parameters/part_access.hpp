#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace autopar::parameters {

/// Tensors with this key are parts of parameters, or copies of them, and their operators are looked at
/// (`parameters/part_guard.hpp`). It lies above autograd.
inline constexpr c10::DispatchKey kPartKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// While it lives, this thread's operators take parts of parameters as what they are: tensors of some elements. For
/// autopar's own code, which knows what the elements are of; a backward that begins within goes on so on other threads.
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
