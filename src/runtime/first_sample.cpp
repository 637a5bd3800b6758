#include <autopar/runtime/first_sample.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include <autopar/core/error.hpp>

namespace autopar {

std::int64_t first_sample(World& world, std::int64_t samples) {
  const auto all = world.all_gather(std::as_bytes(std::span(&samples, 1)), "first_sample");
  std::int64_t first = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::int64_t of_rank = 0;
    if (all[r].size() != sizeof(of_rank)) {
      throw InvalidArgument("first_sample: rank " + std::to_string(r) +
                            " made another collective call; every rank must make the same calls in the same order");
    }
    std::memcpy(&of_rank, all[r].data(), sizeof(of_rank));
    if (of_rank < 0) {
      throw InvalidArgument("first_sample: rank " + std::to_string(r) + " gives " + std::to_string(of_rank) +
                            " samples; give the size of its batch, 0 if it is empty");
    }
    if (static_cast<int>(r) < world.rank()) first += of_rank;
  }
  return first;
}

}  // namespace autopar
