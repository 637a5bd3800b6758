#include "console.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include <poll.h>
#include <unistd.h>

namespace autopar::tool {

void Console::say(const std::string& text) const {
  const auto line = "autopar run: " + text + '\n';
  for (std::size_t done = 0; done < line.size();) {
    const auto written = ::write(err, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{err, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
}

}  // namespace autopar::tool
