#pragma once

namespace autopar {

/// Whether devices compute while they communicate. CPUs do not: the same processors do both. True for cost models that
/// do not know the cluster.
template <class M>
[[nodiscard]] bool computes_while_exchanging(const M& model) {
  if constexpr (requires { model.cluster().host.has_value(); }) return model.cluster().host.has_value();
  return true;
}

}  // namespace autopar
