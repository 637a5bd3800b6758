#include "capture/trace/polymorphism.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>

#include <ATen/ops/equal.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "capture/ir/shown_name.hpp"

namespace autopar::trace {
namespace {

using Three = std::array<std::int64_t, 3>;

constexpr const char* kWayOut =
    "; the program must be the same for every batch size, with sizes a * batch + c. Way out: use operators that take "
    "the "
    "batch as it is (-1 in view, size(0) as an operand: t.sum() / t.size(0), t.sum() * (0.5 / t.size(0))), not loops, "
    "branches or other functions of the batch size";

bool is_bound_of_range(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name == "aten::arange" || name == "aten::range" || name == "aten::linspace" || name == "aten::logspace";
}

IntegerRole role_of(const c10::OperatorHandle& op, std::size_t argument) {
  const auto& schema = op.schema();
  auto type = schema.arguments()[argument].type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
  const bool is_scalar = type->kind() == c10::TypeKind::NumberType;
  return is_scalar && !is_bound_of_range(op) ? IntegerRole::kArithmetic : IntegerRole::kSize;
}

bool same_slots(const std::vector<Slot>& a, const std::vector<Slot>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Slot& x, const Slot& y) {
    return x.position == y.position && x.kind == y.kind && x.values == y.values;
  });
}

/// Equality of non-integer arguments. Doubles by bits, so that NaN and -0.0 are what they are.
bool same_argument(const c10::IValue& a, const c10::IValue& b) {
  if (a.isGenerator() && b.isGenerator()) return true;
  if (a.isDouble() && b.isDouble()) {
    return std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
  }
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  return a.tagKind() == b.tagKind() && a == b;
}

std::string text_of_argument(const c10::IValue& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

[[noreturn]] void differs(const OpGraph& graph, OpId op, const std::string& what) {
  throw CaptureError(ir::shown_name(graph, op), graph.op(op).path, what + kWayOut);
}

std::string argument_name(const OpNode& node, std::size_t argument) {
  return "argument '" + node.op.schema().arguments()[argument].name() + "'";
}

std::string list(const Three& values) {
  return std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]);
}

/// Whether the program has run the operator of `node` shortly before its operator `i`: then `node` is one more pass of
/// a loop.
bool goes_on_with(const OpGraph& graph, std::size_t i, const OpNode& node) {
  constexpr std::size_t kLongestPass = 64;
  for (std::size_t k = i; k > 0 && i - k < kLongestPass; --k) {
    if (graph.ops[k - 1].op == node.op && graph.ops[k - 1].path == node.path) return true;
  }
  return false;
}

/// The operators of `a` and `b` in their order, their wiring and result slots.
/// @param sizes  where they are compared: " with batch 4 as with other sizes"
void require_same_structure(const OpGraph& a, const OpGraph& b, const std::string& sizes) {
  const auto common = std::min(a.ops.size(), b.ops.size());
  for (std::size_t i = 0; i < common; ++i) {
    const auto& x = a.ops[i];
    const auto& y = b.ops[i];
    if (!(x.op == y.op) && goes_on_with(a, i, y) && !goes_on_with(a, i, x)) {
      differs(b, OpId::of(i), "it runs in a loop, or for each element of a list, that is not equally long" + sizes);
    }
    if (!(x.op == y.op) || x.grad_enabled != y.grad_enabled) {
      differs(a, OpId::of(i),
              "the program is not the same" + sizes + ": there it continues with " + y.op.schema().name());
    }
    if (!same_slots(x.inputs, y.inputs) || !same_slots(x.outputs, y.outputs)) {
      differs(
          a, OpId::of(i),
          "it does not take or give the same tensors" + sizes + " (a list as long as the batch, or a loop over it)");
    }
  }
  if (a.ops.size() != b.ops.size()) {
    const auto& longer = a.ops.size() > common ? a : b;
    differs(longer, OpId::of(common),
            "the program has " + std::to_string(a.ops.size()) + " operators and " + std::to_string(b.ops.size()) +
                " operators, not the same" + sizes);
  }
  if (a.outputs != b.outputs || a.values.size() != b.values.size()) {
    throw CaptureError("forward", "", "its results are not the same ones" + sizes + kWayOut);
  }
}

void require_same_kind(const OpGraph& graph, const ValueInfo& x, const ValueInfo& y) {
  const auto place = [&](const std::string& what) {
    if (x.definer.valid()) differs(graph, x.definer, what);
    throw CaptureError("forward", x.name, what + kWayOut);
  };
  if (x.kind != y.kind || x.dtype != y.dtype || x.requires_grad != y.requires_grad) {
    place("a result's type or requires_grad depends on the batch size");
  }
  if (x.sizes.size() != y.sizes.size()) place("the number of dimensions of a result depends on the batch size");
  if (x.constant.defined() && !x.constant.is_same(y.constant) &&
      (x.constant.sizes() != y.constant.sizes() || !at::equal(x.constant, y.constant))) {
    place(
        "a constant tensor depends on the batch size, or changes from run to run; what is made once and kept must not, "
        "so "
        "make it anew in each forward");
  }
}

/// What an argument, or an element of a list, follows from if it depends on the batch size; else empty.
ir::BatchFactors number_of(const OpNode& node, std::size_t argument, std::int32_t element) {
  ir::BatchFactors found;
  ir::for_each_number(node, [&](ir::BatchFactors factors) {
    const auto& number = factors.back();
    if (number.argument == static_cast<std::int32_t>(argument) && number.element == element) found = factors;
  });
  return found;
}

void solve_arguments(const Three& batches, std::array<OpGraph*, 3> graphs, OpId id) {
  auto& node = graphs[0]->op(id);
  const auto& second = graphs[1]->op(id);
  const auto& third = graphs[2]->op(id);
  const auto solve = [&](std::size_t argument, std::int32_t element, const Three& values) {
    if (values[0] == values[1] && values[0] == values[2]) return;
    const auto role = role_of(node.op, argument);
    auto factors = solve_integer(batches, values);
    if (factors.empty() || (role == IntegerRole::kSize && factors.size() > 1)) {
      differs(*graphs[0], id, argument_name(node, argument) + " is " + list(values) + " for three batch sizes");
    }
    for (auto& factor : factors) {
      factor.argument = static_cast<std::int32_t>(argument);
      factor.element = element;
      factor.role = role;
      node.integers.push_back(factor);
    }
  };
  for (std::size_t k = 0; k < node.args.size(); ++k) {
    const auto &a = node.args[k], &b = second.args[k], &c = third.args[k];
    if (a.isInt() && b.isInt() && c.isInt()) {
      solve(k, -1, {a.toInt(), b.toInt(), c.toInt()});
    } else if (a.isIntList() && b.isIntList() && c.isIntList()) {
      const auto x = a.toIntVector(), y = b.toIntVector(), z = c.toIntVector();
      if (x.size() != y.size() || x.size() != z.size()) {
        differs(*graphs[0], id, "the length of " + argument_name(node, k) + " depends on the batch size");
      }
      for (std::size_t e = 0; e < x.size(); ++e) solve(k, static_cast<std::int32_t>(e), {x[e], y[e], z[e]});
    } else if (!same_argument(a, b) || !same_argument(a, c)) {
      if (a.isDouble() && b.isDouble() && c.isDouble() && role_of(node.op, k) == IntegerRole::kArithmetic) {
        auto factors = solve_number(batches, {a.toDouble(), b.toDouble(), c.toDouble()});
        for (auto& factor : factors) {
          factor.argument = static_cast<std::int32_t>(k);
          node.integers.push_back(factor);
        }
        if (!factors.empty()) continue;
      }
      differs(*graphs[0], id,
              argument_name(node, k) + " is " + text_of_argument(a) + ", " + text_of_argument(b) + ", " +
                  text_of_argument(c) +
                  " for three batch sizes, which is neither k * (a * batch + c) nor "
                  "k / (a * batch + c), nor either of them with two such factors");
    }
  }
}

void solve_value(const Three& batches, std::array<OpGraph*, 3> graphs, std::size_t index) {
  auto& info = graphs[0]->values[index];
  const auto& second = graphs[1]->values[index];
  const auto& third = graphs[2]->values[index];
  require_same_kind(*graphs[0], info, second);
  require_same_kind(*graphs[0], info, third);
  const auto solve = [&](SizeExpr& x, SizeExpr y, SizeExpr z, const char* what) {
    const Three values{x.fixed, y.fixed, z.fixed};
    const auto expr = solve_affine(batches, values);
    if (!expr) {
      const auto message = std::string("a ") + what + " of its result is " + list(values) + " for three batch sizes";
      if (info.definer.valid()) differs(*graphs[0], info.definer, message);
      throw CaptureError("forward", info.name, message + kWayOut);
    }
    x = *expr;
  };
  for (std::size_t d = 0; d < info.sizes.size(); ++d) {
    solve(info.sizes[d], second.sizes[d], third.sizes[d], "size");
    solve(info.strides[d], second.strides[d], third.strides[d], "stride");
  }
}

/// Storages that some operator writes after they were made.
std::vector<bool> overwritten(const OpGraph& graph) {
  std::vector<bool> result(static_cast<std::size_t>(graph.storage_count), false);
  const auto creators = graph.storage_creators();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    for (const auto storage : graph.ops[i].writes) {
      if (creators[storage.index()] != OpId::of(i)) result[storage.index()] = true;
    }
  }
  return result;
}

/// A view at one size and a copy at another (contiguous, reshape) is harmless unless something writes to it.
void require_same_sharing(const OpGraph& graph, const OpGraph& other) {
  const auto written = overwritten(graph), written_other = overwritten(other);
  std::vector<StorageId> map(static_cast<std::size_t>(graph.storage_count));
  std::vector<StorageId> back(static_cast<std::size_t>(other.storage_count));
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const auto a = graph.values[v].storage, b = other.values[v].storage;
    if (!a.valid() || !b.valid()) continue;
    auto& forward = map[a.index()];
    auto& backward = back[b.index()];
    const bool consistent = (!forward.valid() || forward == b) && (!backward.valid() || backward == a);
    if (!forward.valid()) forward = b;
    if (!backward.valid()) backward = a;
    if (consistent || (!written[a.index()] && !written_other[b.index()])) continue;
    const auto definer = graph.values[v].definer;
    const std::string what =
        "its result shares memory with its argument at one batch size and not at another, and an "
        "in-place operator writes there";
    if (definer.valid()) differs(graph, definer, what);
    throw CaptureError("forward", graph.values[v].name, what);
  }
}

}  // namespace

std::optional<SizeExpr> solve_affine(const Three& batches, const Three& values) {
  const auto run = batches[1] - batches[0], rise = values[1] - values[0];
  if (rise % run != 0) return std::nullopt;
  const SizeExpr expr{rise / run, values[0] - rise / run * batches[0]};
  if (expr.at(batches[2]) != values[2]) return std::nullopt;
  return expr;
}

OpGraph solve_batch(std::array<SizedGraph, 3> captures) {
  const Three batches{captures[0].batch, captures[1].batch, captures[2].batch};
  const std::array<OpGraph*, 3> graphs{&captures[0].graph, &captures[1].graph, &captures[2].graph};
  require_same_structure(*graphs[0], *graphs[1], " for all batch sizes");
  require_same_structure(*graphs[0], *graphs[2], " for all batch sizes");
  for (std::size_t i = 0; i < graphs[0]->ops.size(); ++i) solve_arguments(batches, graphs, OpId::of(i));
  for (std::size_t v = 0; v < graphs[0]->values.size(); ++v) solve_value(batches, graphs, v);
  require_same_sharing(*graphs[0], *graphs[1]);
  require_same_sharing(*graphs[0], *graphs[2]);
  return std::move(*graphs[0]);
}

void require_same_for_one_sample(const OpGraph& graph, const SizedGraph& capture) {
  const auto& other = capture.graph;
  const auto skip_copies = [](const OpGraph& program, std::size_t i) {
    while (i < program.ops.size() && program.is(OpId::of(i), "aten::contiguous")) ++i;
    return i;
  };
  std::size_t i = skip_copies(graph, 0), k = skip_copies(other, 0);
  for (; i < graph.ops.size() && k < other.ops.size(); i = skip_copies(graph, i + 1), k = skip_copies(other, k + 1)) {
    if (graph.ops[i].op == other.ops[k].op) continue;
    differs(graph, OpId::of(i), "with one sample the program continues with " + other.name(OpId::of(k)));
  }
  if (i < graph.ops.size()) differs(graph, OpId::of(i), "with one sample the program ends before it");
  if (k < other.ops.size()) differs(other, OpId::of(k), "only with one sample the program has it");
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) {
    const auto& x = graph.value(graph.outputs[r]);
    if (r < other.outputs.size() && x.sizes.size() == other.value(other.outputs[r]).sizes.size()) continue;
    throw CaptureError("forward", x.name,
                       "with one sample its results have another number of dimensions" + std::string(kWayOut));
  }
}

void require_instance(const OpGraph& graph, const SizedGraph& capture) {
  const auto batch = capture.batch;
  const auto at_batch = " at batch " + std::to_string(batch);
  require_same_structure(graph, capture.graph, " with batch " + std::to_string(batch) + " as with other sizes");
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& node = graph.ops[i];
    const auto& other = capture.graph.ops[i];
    const auto expected = [&](std::size_t argument, std::int32_t element, std::int64_t value) {
      const auto factors = number_of(node, argument, element);
      return factors.empty() ? value : ir::integer_at(factors, batch);
    };
    for (std::size_t k = 0; k < node.args.size(); ++k) {
      const auto &a = node.args[k], &b = other.args[k];
      bool same = false;
      if (a.isInt() && b.isInt()) {
        same = expected(k, -1, a.toInt()) == b.toInt();
      } else if (a.isIntList() && b.isIntList()) {
        auto x = a.toIntVector();
        for (std::size_t e = 0; e < x.size(); ++e) x[e] = expected(k, static_cast<std::int32_t>(e), x[e]);
        same = x == b.toIntVector();
      } else if (const auto number = number_of(node, k, -1); !number.empty() && a.isDouble() && b.isDouble()) {
        same = agrees(number, batch, b.toDouble());
      } else {
        same = same_argument(a, b);
      }
      if (!same)
        differs(graph, OpId::of(i),
                argument_name(node, k) + " is " + text_of_argument(b) + at_batch +
                    ", which does not "
                    "follow from other batch sizes");
    }
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const auto& info = graph.values[v];
    const auto& other = capture.graph.values[v];
    require_same_kind(graph, info, other);
    for (std::size_t d = 0; d < info.sizes.size(); ++d) {
      if (info.sizes[d].at(batch) == other.sizes[d].fixed) continue;
      const auto what = "a size of its result is " + std::to_string(other.sizes[d].fixed) + at_batch + ", expected " +
                        std::to_string(info.sizes[d].at(batch));
      if (info.definer.valid()) differs(graph, info.definer, what);
      throw CaptureError("forward", info.name, what);
    }
  }
  require_same_sharing(graph, capture.graph);
}

}  // namespace autopar::trace
