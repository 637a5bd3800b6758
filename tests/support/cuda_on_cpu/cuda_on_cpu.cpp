#include "cuda_on_cpu/cuda_on_cpu.hpp"

#include <algorithm>

namespace cuda_on_cpu {

Kernel& Source::kernel(const std::string& kernel) {
  const auto found = std::ranges::find(kernels, kernel, &Kernel::name);
  if (found != kernels.end()) return *found;
  std::string names;
  for (const auto& each : kernels) names += " " + each.name;
  throw autopar::InvalidArgument(name + " has no kernel '" + kernel + "'; it has" + names);
}

std::vector<std::string> Source::never_launched() const {
  std::vector<std::string> names;
  for (const auto& each : kernels)
    if (each.launches == 0) names.push_back(each.name);
  return names;
}

void CudaOnCpu::launch_with(const std::string& kernel, const autopar::kernels::LaunchShape& shape,
                            const std::vector<std::size_t>& sizes, void* const* addresses) {
  auto& launched = source_.kernel(kernel);
  if (sizes.size() != launched.sizes.size())
    throw autopar::InvalidArgument(kernel + " takes " + std::to_string(launched.sizes.size()) + " arguments, got " +
                                   std::to_string(sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != launched.sizes[i])
      throw autopar::InvalidArgument(kernel + ": argument " + std::to_string(i) + " has " +
                                     std::to_string(launched.sizes[i]) + " bytes, got " + std::to_string(sizes[i]));
  }
  ++launched.launches;
  try {
    run_blocks(launched, shape, addresses, order_);
    for (const auto& memory : memory_) memory->check_surroundings();
  } catch (const ThreadFault& thrown) {
    const auto& fault = thrown.fault;
    const auto who = kernel + ": " + fault.place;
    if (fault.is_trap)
      throw autopar::Error(
          who + " reads or writes at null, at a misaligned pack or beyond an array, divides by zero or overflows");
    for (const auto& memory : memory_)
      if (const auto where = memory->describe(fault.address)) throw autopar::Error(who + " touches " + *where);
    throw autopar::Error(who + " touches memory that is none of the test's");
  } catch (const autopar::Error& error) {
    throw autopar::Error(std::string(error.what()).starts_with(kernel) ? error.what() : kernel + ": " + error.what());
  }
}

const GuardedMemory& CudaOnCpu::memory_at(const void* begin) const {
  const auto found =
      std::ranges::find(memory_, begin, [](const auto& memory) -> const void* { return memory->begin(); });
  if (found == memory_.end()) throw autopar::InvalidArgument("no memory begins there");
  return **found;
}

std::vector<CudaOnCpu::Content> CudaOnCpu::contents() const {
  std::vector<Content> made;
  for (const auto& memory : memory_)
    made.push_back({memory->name(), {memory->begin(), memory->begin() + memory->bytes()}});
  return made;
}

void check_same(const std::vector<CudaOnCpu::Content>& first, const std::vector<CudaOnCpu::Content>& other,
                Order order) {
  for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    if (i < first.size() && i < other.size() && first[i].bytes == other[i].bytes) continue;
    throw autopar::Error("'" + (i < first.size() ? first[i] : other[i]).name + "' has other bits with blocks " +
                         (order.blocks_backwards ? "backwards" : "forwards") + " and threads " +
                         (order.threads_backwards ? "backwards" : "forwards") +
                         ": a barrier is missing, or blocks touch the same memory");
  }
}

}  // namespace cuda_on_cpu
