#include "torch/calls/parameter_hooks.hpp"

#include <autopar/core/error.hpp>

#include "capture/trace/own_hook.hpp"

namespace autopar::calls {

void require_no_hooks(const parameters::ParameterStore& parameters) {
  for (const auto& tensor : parameters.tensors()) {
    if (!tensor.is_parameter || !trace::has_hooks_of_user(tensor.handle)) continue;
    throw InvalidArgument("a hook was set on parameter '" + tensor.name() +
                          "' (register_hook), which would not run: gradients come to .grad beside autograd; remove the "
                          "hook, and change .grad after backward instead");
  }
}

}  // namespace autopar::calls
