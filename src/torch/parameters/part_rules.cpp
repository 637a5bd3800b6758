#include "torch/parameters/part_rules.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>

#include <ATen/core/enum_tag.h>

namespace autopar::parameters {

namespace {

template <std::size_t n>
bool is_among(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Names of libtorch's operators without namespace and overload. A name that ends in _ works in place.

/// Element-wise in every overload, but without the tag `pointwise`. In-place variants follow from their functional one.
constexpr std::string_view kElementWiseNames[] = {"_add_relu",
                                                  "_conj",
                                                  "_conj_physical",
                                                  "_fw_primal",
                                                  "_masked_scale",
                                                  "_neg_view",
                                                  "_pin_memory",
                                                  "_to_copy",
                                                  "alias",
                                                  "complex",
                                                  "copy",
                                                  "copy_",
                                                  "detach",
                                                  "detach_",
                                                  "elu_backward",
                                                  "fill",
                                                  "fill_",
                                                  "floor_divide",
                                                  "hardshrink_backward",
                                                  "hardsigmoid_backward",
                                                  "hardswish",
                                                  "hardswish_backward",
                                                  "hardtanh_backward",
                                                  "leaky_relu",
                                                  "leaky_relu_backward",
                                                  "lift",
                                                  "lift_fresh",
                                                  "polar",
                                                  "softplus_backward",
                                                  "softshrink_backward",
                                                  "zero",
                                                  "zero_"};

/// On lists of tensors, in addition to `_foreach_*`.
constexpr std::string_view kListNames[] = {"_fused_adagrad_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"};

/// `_foreach_*` that reduce each tensor to one number.
constexpr std::string_view kListsOfNumbers[] = {"_foreach_max", "_foreach_norm", "_foreach_powsum"};

constexpr std::string_view kLikeNames[] = {"empty_like", "full_like", "new_empty", "new_empty_strided", "new_full",
                                           "new_ones",   "new_zeros", "ones_like", "zeros_like"};

constexpr std::string_view kNothingNames[] = {"_has_compatible_shallow_copy_type",
                                              "_has_same_storage_numel",
                                              "dense_dim",
                                              "is_coalesced",
                                              "is_pinned",
                                              "is_same_size",
                                              "is_set_to",
                                              "record_stream",
                                              "result_type",
                                              "sparse_dim"};

constexpr std::string_view kViewNames[] = {"_reshape_alias", "_unsafe_view", "expand",     "expand_as", "flatten",
                                           "ravel",          "reshape",      "reshape_as", "view",      "view_as"};

std::string_view base_name(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  const auto colons = name.rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

/// Whether the functional variant of an in-place operator has the tag `pointwise`.
bool sibling_is_pointwise(const c10::OperatorHandle& op) {
  auto name = op.operator_name();
  if (!name.name.ends_with('_') || name.name.ends_with("__")) return false;
  name.name.pop_back();
  const auto sibling = c10::Dispatcher::singleton().findSchema(name);
  return sibling && sibling->hasTag(at::Tag::pointwise);
}

bool is_tensor(const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::TensorType; }

bool is_element_wise(const c10::OperatorHandle& op, std::string_view name) {
  if (is_among(kElementWiseNames, name)) return true;
  if (name.ends_with('_') && is_among(kElementWiseNames, name.substr(0, name.size() - 1))) return true;
  return op.hasTag(at::Tag::pointwise) || sibling_is_pointwise(op);
}

/// Whether the operator runs as other operators on every device.
bool consists_of_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

PartUse use_of(const c10::OperatorHandle& op) {
  const auto name = base_name(op);
  if (is_among(kListNames, name)) return PartUse::kLists;
  if (name.starts_with("_foreach_")) return is_among(kListsOfNumbers, name) ? PartUse::kWhole : PartUse::kLists;
  if (is_among(kLikeNames, name)) return PartUse::kLike;
  if (is_among(kNothingNames, name)) return PartUse::kNothing;
  if (is_among(kViewNames, name)) return PartUse::kView;
  const bool is_composed = consists_of_others(op);
  const auto& returns = op.schema().returns();
  const bool makes_tensors = !returns.empty() && std::all_of(returns.begin(), returns.end(), is_tensor);
  if (makes_tensors && !is_composed && is_element_wise(op, name)) return PartUse::kElementWise;
  return is_composed ? PartUse::kComposed : PartUse::kWhole;
}

PartRule derived_rule(const c10::OperatorHandle& op) {
  PartRule rule{use_of(op), op.hasTag(at::Tag::nondeterministic_seeded), 0};
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (i < 64 && alias != nullptr && alias->isWrite()) rule.written |= std::uint64_t{1} << i;
    if (arguments[i].name() == "generator") rule.may_draw = true;
  }
  return rule;
}

}  // namespace

const PartRule& part_rule(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, PartRule> known;
  const auto* schema = &op.schema();
  const auto found = known.find(schema);
  return found != known.end() ? found->second : known.emplace(schema, derived_rule(op)).first->second;
}

bool draws(const PartRule& rule, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!rule.may_draw) return false;
  const auto& arguments = op.schema().arguments();
  const auto base = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = arguments[i].name();
    const auto& value = stack[base + i];
    if ((name == "train" || name == "training") && value.isBool() && !value.toBool()) return false;
    if ((name == "p" || name == "dropout_p" || name == "dropout") && value.isDouble() && value.toDouble() == 0)
      return false;
  }
  return true;
}

}  // namespace autopar::parameters
