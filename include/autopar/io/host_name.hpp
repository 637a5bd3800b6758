#pragma once

#include <string>

namespace autopar {

/// The name of this host; "localhost" where it has none.
[[nodiscard]] std::string host_name();

}  // namespace autopar
