#include "torch/graphs/recorded_work.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/ir/tensor_form.hpp"

namespace autopar::graphs {

RecordedWork::RecordedWork(std::unique_ptr<devices::DeviceRecording> work, std::vector<at::Tensor> inputs,
                           std::vector<at::Tensor> made, std::size_t results, RecordedExchanges exchanges)
    : exchanges_(std::move(exchanges)),
      work_(std::move(work)),
      inputs_(std::move(inputs)),
      made_(std::move(made)),
      results_(results) {
  std::map<const void*, std::size_t> places;
  for (const auto& tensor : made_) {
    if (!tensor.defined()) continue;
    const auto& storage = tensor.storage();
    const auto [place, is_new] = places.try_emplace(storage.unsafeGetStorageImpl(), written_.size());
    if (is_new) written_.push_back({storage, 1});
    ++written_[place->second].held;
  }
}

bool RecordedWork::is_copied(std::size_t made) const {
  constexpr std::size_t kSmall = 1 << 16;
  return made < results_ && made_[made].nbytes() <= kSmall;
}

bool RecordedWork::is_free() const {
  return std::ranges::all_of(written_, [](const Memory& memory) { return memory.storage.use_count() == memory.held; });
}

std::vector<at::Tensor> RecordedWork::run(const std::vector<at::Tensor>& inputs) {
  // A backward that is recorded next finds them at the version that its forward saved.
  const at::AutoDispatchBelowADInplaceOrView no_version;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].defined()) inputs_[i].copy_(inputs[i]);
  }
  if (exchanges_.operations != nullptr)
    exchanges_.wire.replay(exchanges_.operations, [this] { work_->run(); });
  else
    work_->run();
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < made_.size(); ++i) {
    const auto& tensor = made_[i];
    made.push_back(!tensor.defined() ? tensor : is_copied(i) ? tensor.clone() : ir::with_own_version(tensor));
  }
  return made;
}

}  // namespace autopar::graphs
