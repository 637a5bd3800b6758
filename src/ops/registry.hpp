#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// The definition of an operator; in-place twins share the functional one's. Of an unknown operator: one without a name
/// and without rules.
/// @param qualified_name  "aten::add_"
/// @cost O(1); of fused and users' operators O(log of how many there are), and a lock
[[nodiscard]] const OpDef& definition_of(std::string_view qualified_name);

/// Likewise; an operator without a definition, libtorch's or a user's, is pointwise if its registration says so
/// (`at::Tag::pointwise`).
[[nodiscard]] const OpDef& definition_of(const c10::OperatorHandle& op);

/// Whether a user has registered it.
[[nodiscard]] bool is_of_user(const OpDef& def);

/// The operator of a name of names.hpp.
[[nodiscard]] c10::OperatorHandle operator_named(std::string_view qualified_name, const char* overload = "");

/// Adds a definition of one of the library's fused operators, which kernels and passes bring along. Again: no effect.
/// @pre the name begins with "autopar::"
void define_fused(OpDef def);

/// Libtorch's and this library's, in the order of the list.
[[nodiscard]] const std::vector<OpDef>& own_definitions();

/// What users have registered, in alphabetic order: "mylib::cut 2, mylib::scale_rows 1"; empty: nothing.
[[nodiscard]] std::string registered_by_users();

/// The users' operators of a program: "mylib::scale_rows 1", in alphabetic order, each once.
[[nodiscard]] std::vector<std::string> operators_of_users(const OpGraph& graph);

/// From now on `register_op` is refused.
void close_registry();

}  // namespace autopar::ops
