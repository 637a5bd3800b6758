#include "torch/device/cuda/recorded_generator.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace autopar::devices {

namespace {

using StatePointer = c10::intrusive_ptr<at::CUDAGeneratorState>;

StatePointer& state_of(at::CUDAGeneratorImpl& generator);

// Only libtorch's own graphs, in a library that is loaded at run time and cannot be linked, may access the state. But a
// template argument may name a private member.
template <StatePointer at::CUDAGeneratorImpl::*kState>
struct StateAccess {
  friend StatePointer& state_of(at::CUDAGeneratorImpl& generator) { return generator.*kState; }
};
template struct StateAccess<&at::CUDAGeneratorImpl::state_>;

}  // namespace

// Does what CUDAGraph::capture_begin does to the states that are registered with a libtorch graph.
at::Generator generator_by_memory(const at::Tensor& seed) {
  auto generator = at::globalContext().defaultGenerator(seed.device()).graphsafe_get_state();
  auto& own = state_of(static_cast<at::CUDAGeneratorImpl&>(*generator.unsafeGetGeneratorImpl()));
  own = c10::make_intrusive<at::CUDAGeneratorState>();
  auto& state = *own;
  state.capturing_ = true;
  state.offset_intragraph_ = 0;
  state.seed_extragraph_ = seed.narrow(0, 0, 1);
  state.offset_extragraph_ = seed.narrow(0, 1, 1);
  return generator;
}

}  // namespace autopar::devices
