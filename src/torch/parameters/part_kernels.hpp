#pragma once

namespace autopar::parameters {

/// Of the operators that optimizers consist of, what asks about parts without libtorch's boxes for arguments, which
/// cost more than the question. They allow and refuse what `part_rules.hpp` says of them. Set once.
void install_part_kernels();

}  // namespace autopar::parameters
