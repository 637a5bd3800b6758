#pragma once

namespace autopar::parameters {

/// Installs unboxed checks of parts for the operators that optimizers consist of, since boxing arguments costs more
/// than the check. They allow and refuse the same as `part_rules.hpp`. Further calls do nothing.
void install_part_kernels();

}  // namespace autopar::parameters
