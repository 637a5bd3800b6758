#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// The definition of an operator; in-place twins share it with the functional one. An unknown operator has a definition
/// without name and rules.
/// @param qualified_name  "aten::add_"
/// @cost O(1); for fused and users' operators O(log of their number), and a lock
[[nodiscard]] const OpDef& definition_of(std::string_view qualified_name);

/// The definition of an operator. Without one, it is pointwise if its registration in libtorch or by a user says so
/// (`at::Tag::pointwise`).
[[nodiscard]] const OpDef& definition_of(const c10::OperatorHandle& op);

/// Whether a user has registered the definition.
[[nodiscard]] bool is_of_user(const OpDef& def);

/// The operator with a name from names.hpp.
[[nodiscard]] c10::OperatorHandle operator_named(std::string_view qualified_name, const char* overload = "");

/// Adds a definition of one of the library's fused operators, which kernels and passes provide. Adding it again has no
/// effect.
/// @pre the name begins with "autopar::"
void define_fused(const OpDef& def);

/// Definitions of libtorch's and this library's operators, in the order of the list.
[[nodiscard]] const std::vector<OpDef>& own_definitions();

/// Users' operators and versions, in alphabetic order: "mylib::cut 2, mylib::scale_rows 1"; empty: none.
[[nodiscard]] std::string registered_by_users();

/// The users' operators of a program: "mylib::scale_rows 1", in alphabetic order, each once.
[[nodiscard]] std::vector<std::string> operators_of_users(const OpGraph& graph);

/// Refuses `register_op` from now on.
void close_registry();

}  // namespace autopar::ops
