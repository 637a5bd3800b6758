#pragma once

#include <string>
#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// The module of each operator by its path, as "layers.3.attention"; empty: the model itself. C++ modules have no
/// hooks, so this goes by parameters, buffers and program order:
/// - An operator that reads parameters or buffers belongs to the module that owns them. The n-th reader of a tied
///   parameter belongs to the owner by its n-th name.
/// - An operator that computes from parameters alone, such as a transposition, belongs where the result is read.
/// - Another operator belongs to the innermost module around the last operator before and the first after it that read
///   parameters. Between blocks 3 and 4 of a list it ends block 3; between modules 3 and 5 it is module 4.
/// O(operators + edges).
[[nodiscard]] std::vector<std::string> module_paths(const OpGraph& graph);

}  // namespace autopar
