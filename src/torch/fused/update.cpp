#include "torch/fused/update.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/_foreach_copy.h>

#include "kernels/update_source.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

kernels::AdamNumbers numbers_of(const AdamUpdate& update) {
  const auto steps = static_cast<double>(update.steps);
  const auto single = [](double number) { return static_cast<float>(number); };
  // As in libtorch: the step's corrections are powers of the rounded betas.
  const double beta1 = single(update.beta1), beta2 = single(update.beta2);
  return {single(update.lr),
          single(beta1),
          single(beta2),
          single(update.weight_decay),
          single(update.eps),
          single(1 - std::pow(beta1, steps)),
          single(std::sqrt(1 - std::pow(beta2, steps))),
          update.is_decay_decoupled ? 1 : 0};
}

kernels::SgdNumbers numbers_of(const SgdUpdate& update) {
  return {update.lr,
          update.weight_decay,
          update.momentum,
          1 - update.dampening,
          update.is_nesterov ? 1 : 0,
          update.is_first ? 1 : 0};
}

/// Lists by parameter; a list of a state may be empty.
struct UpdatedTensors {
  const std::vector<at::Tensor>&parameters, &gradients;
  const std::vector<UpdatedCopy>& copies;
  std::array<const std::vector<at::Tensor>*, kernels::UpdateTable::kStates> states{};
};

/// Launches as many kernels as the tensors need.
template <class Numbers>
class Launches {
 public:
  Launches(std::string kernel, const UpdatedTensors& tensors, const Numbers& numbers)
      : kernel_(std::move(kernel)), tensors_(tensors), numbers_(numbers) {}

  void add(std::size_t tensor) {
    const auto elements = tensors_.parameters[tensor].numel();
    if (elements == 0) return;
    const auto place = static_cast<std::size_t>(table_.count);
    table_.parameter[place] = tensors_.parameters[tensor].data_ptr();
    table_.gradient[place] = tensors_.gradients[tensor].const_data_ptr();
    for (std::size_t i = 0; i < kernels::UpdateTable::kStates; ++i) {
      const auto* states = tensors_.states[i];
      table_.state[i][place] = states != nullptr && !states->empty() ? (*states)[tensor].data_ptr() : nullptr;
    }
    const auto& [copy, scale] = tensors_.copies[tensor];
    table_.copy[place] = detail::memory_of(copy);
    table_.factor[place] = detail::data_of(scale.factor);
    table_.most[place] = detail::memory_of(scale.most);
    table_.size[place] = elements;
    table_.first_block[place] = static_cast<int>(blocks_);
    blocks_ += static_cast<unsigned>((elements + kernels::UpdateTable::kElementsOfBlock - 1) /
                                     kernels::UpdateTable::kElementsOfBlock);
    if (static_cast<std::size_t>(++table_.count) == kernels::UpdateTable::kMost) launch();
  }

  void launch() {
    if (table_.count == 0) return;
    detail::launch(tensors_.parameters.front(), kernels::kUpdateKernels, kernel_.c_str(),
                   {blocks_, 1, kernels::UpdateTable::kThreads, 1}, table_, numbers_);
    table_ = {};
    blocks_ = 0;
  }

 private:
  std::string kernel_;
  const UpdatedTensors& tensors_;
  Numbers numbers_;
  kernels::UpdateTable table_{};
  unsigned blocks_ = 0;
};

constexpr std::array kTypesOfCopies{at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn};
constexpr std::array kKernelsOfCopies{"bf16", "f16", "e4m3"};

bool has_kernels_for(const UpdatedTensors& tensors) {
  if (tensors.parameters.empty() || tensors.parameters.front().scalar_type() != at::kFloat) return false;
  const bool takes_copies = std::ranges::all_of(tensors.copies, [](const UpdatedCopy& copy) {
    return !copy.memory.defined() ||
           std::ranges::find(kTypesOfCopies, copy.memory.scalar_type()) != kTypesOfCopies.end();
  });
  const auto device = tensors.parameters.front().device();
  return takes_copies && devices::context_of(device.type()).has_kernels(kernels::kUpdateKernels, device.index());
}

/// @param rule  "adam_", "sgd_" or "momentum_"
template <class Numbers>
bool step(const char* rule, const UpdatedTensors& tensors, const Numbers& numbers) {
  if (!has_kernels_for(tensors)) return false;
  for (std::size_t type = 0; type < kTypesOfCopies.size(); ++type) {
    Launches<Numbers> launches(std::string(rule) + kKernelsOfCopies[type], tensors, numbers);
    for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
      const auto& copy = tensors.copies[i].memory;
      if ((copy.defined() ? copy.scalar_type() : kTypesOfCopies.front()) == kTypesOfCopies[type]) launches.add(i);
    }
    launches.launch();
  }
  // A backward that saved the old values must fail, as after libtorch's steps; versions of the state count steps.
  const auto note_written = [](const std::vector<at::Tensor>& written) {
    for (const auto& tensor : written) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  };
  note_written(tensors.parameters);
  for (const auto* states : tensors.states) {
    if (states != nullptr) note_written(*states);
  }
  return true;
}

}  // namespace

void write_copies(const std::vector<at::Tensor>& parameters, const std::vector<UpdatedCopy>& copies) {
  std::vector<at::Tensor> from, to;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& [memory, scale] = copies[i];
    if (!memory.defined()) continue;
    if (memory.scalar_type() == at::kFloat8_e4m3fn) {
      put_fp8_rows(parameters[i], scale, memory);
      continue;
    }
    from.push_back(parameters[i]);
    to.push_back(memory);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

bool step_in_kernels(const AdamUpdate& update) {
  const UpdatedTensors tensors{
      update.parameters, update.gradients, update.copies, {&update.exp_avgs, &update.exp_avg_sqs}};
  return step("adam_", tensors, numbers_of(update));
}

bool step_in_kernels(const SgdUpdate& update) {
  const UpdatedTensors tensors{update.parameters, update.gradients, update.copies, {&update.momentum_buffers}};
  return step(update.momentum_buffers.empty() ? "sgd_" : "momentum_", tensors, numbers_of(update));
}

}  // namespace autopar::fused
