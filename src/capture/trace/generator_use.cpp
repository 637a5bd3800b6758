#include "capture/trace/generator_use.hpp"

namespace autopar::trace {

std::recursive_mutex& generator_use() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace autopar::trace
