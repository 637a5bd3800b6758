#include "torch/parameters/flat_memory.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

namespace autopar::parameters {

bool has_memory(const at::Tensor& flat) { return flat.storage().nbytes() > 0; }

void give_memory(const at::Tensor& flat, std::size_t bytes) {
  auto* storage = flat.storage().unsafeGetStorageImpl();
  const c10::DeviceGuard on_its_device(flat.device());  // device allocators use the current device
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void drop_memory(const at::Tensor& flat) {
  auto* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
}

}  // namespace autopar::parameters
