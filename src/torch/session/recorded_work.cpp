#include "torch/session/recorded_work.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "torch/ir/tensor_form.hpp"

namespace autopar {

RecordedWork::RecordedWork(std::unique_ptr<DeviceRecording> work, std::vector<at::Tensor> inputs,
                           std::vector<at::Tensor> made, std::size_t results)
    : work_(std::move(work)), inputs_(std::move(inputs)), made_(std::move(made)), results_(results) {
  for (const auto& tensor : made_) {
    if (tensor.defined()) ++own_[tensor.storage().unsafeGetStorageImpl()];
  }
}

bool RecordedWork::is_copied(std::size_t made) const {
  constexpr std::size_t kSmall = 1 << 16;
  return made < results_ && made_[made].nbytes() <= kSmall;
}

bool RecordedWork::is_free() const {
  return std::ranges::all_of(made_, [&](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.storage().use_count() == own_.at(tensor.storage().unsafeGetStorageImpl());
  });
}

std::vector<at::Tensor> RecordedWork::run(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  // A backward that is recorded next finds them at the version that its forward saved.
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].defined()) with_own_version(inputs_[i]).copy_(inputs[i]);
  }
  work_->run();
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < made_.size(); ++i) {
    const auto& tensor = made_[i];
    made.push_back(!tensor.defined() ? tensor : is_copied(i) ? tensor.clone() : with_own_version(tensor));
  }
  return made;
}

}  // namespace autopar
