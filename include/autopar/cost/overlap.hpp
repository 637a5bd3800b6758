#pragma once

namespace autopar {

/// Whether devices compute while they exchange: CPUs do both with the same processors. Of cost models that do not know
/// the cluster, devices do.
template <class M>
[[nodiscard]] bool computes_while_exchanging(const M& model) {
  if constexpr (requires { model.cluster().host.has_value(); }) return model.cluster().host.has_value();
  return true;
}

}  // namespace autopar
