#include <autopar/io/host_name.hpp>

#include <unistd.h>

#include <array>

namespace autopar {

std::string host_name() {
  std::array<char, 256> name{};
  const bool is_known = ::gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return is_known ? name.data() : "localhost";
}

}  // namespace autopar
