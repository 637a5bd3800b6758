#include "capture/trace/first_change.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

#include "capture/ir/shown_name.hpp"

namespace autopar::trace {
namespace {

std::string text(const c10::IValue& value) {
  std::ostringstream out;
  out.precision(12);
  if (value.isDouble())
    out << value.toDouble();
  else
    out << value;
  return std::move(out).str();
}

std::string was_and_is(const std::string& was, const std::string& is) { return " was " + was + " and is " + is; }

/// Numbers by their bits, so that NaN is what it was; devices and generators are no part of a program.
bool same(const c10::IValue& a, const c10::IValue& b) {
  if ((a.isGenerator() && b.isGenerator()) || (a.isDevice() && b.isDevice())) return true;
  if (a.isDouble() && b.isDouble()) {
    return std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
  }
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  return a.tagKind() == b.tagKind() && a == b;
}

bool same(const std::vector<Slot>& a, const std::vector<Slot>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Slot& x, const Slot& y) {
    return x.position == y.position && x.kind == y.kind && x.values == y.values;
  });
}

bool same_content(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string content(const at::Tensor& tensor) { return text(tensor.detach().cpu().item()); }

std::optional<std::string> change_of(const OpNode& before, const OpNode& now) {
  if (!(before.op == now.op)) return "forward goes on with " + now.op.schema().name() + " in its place";
  if (before.grad_enabled != now.grad_enabled) {
    return "gradients were " + std::string(before.grad_enabled ? "on" : "off") + " there and are not any more";
  }
  for (std::size_t k = 0; k < before.args.size(); ++k) {
    if (same(before.args[k], now.args[k])) continue;
    return "its argument '" + before.op.schema().arguments()[k].name() + "'" +
           was_and_is(text(before.args[k]), text(now.args[k]));
  }
  if (!same(before.inputs, now.inputs) || !same(before.outputs, now.outputs)) return "it takes or gives other tensors";
  return std::nullopt;
}

std::optional<std::string> change_of(const ValueInfo& before, const ValueInfo& now, std::int64_t batch) {
  if (before.kind != now.kind || before.dtype != now.dtype || before.requires_grad != now.requires_grad) {
    return "the type of a tensor, or whether it needs a gradient, has changed";
  }
  const auto same_size = [&](SizeExpr x, SizeExpr y) { return x.at(batch) == y.at(batch); };
  if (!std::equal(before.sizes.begin(), before.sizes.end(), now.sizes.begin(), now.sizes.end(), same_size)) {
    return "the sizes of a tensor have changed";
  }
  if (!before.constant.defined() || !now.constant.defined()) return std::nullopt;
  if (same_content(before.constant, now.constant)) return std::nullopt;
  if (before.constant.numel() != 1 || now.constant.numel() != 1)
    return "a constant tensor holds other values than it did";
  return "a constant" + was_and_is(content(before.constant), content(now.constant));
}

/// What reads a leaf, or made a value: where a user finds it.
CaptureChange at_value(const OpGraph& graph, ValueId value, std::string what) {
  auto op = graph.value(value).definer;
  if (!op.valid()) {
    const auto users = graph.uses(value);
    if (users.empty()) return {"forward", graph.value(value).name, std::move(what)};
    op = users.front();
  }
  return {ir::shown_name(graph, op), graph.op(op).path, std::move(what)};
}

}  // namespace

std::optional<CaptureChange> first_change(const OpGraph& before, const OpGraph& now, std::int64_t batch) {
  const auto common = std::min(before.ops.size(), now.ops.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (auto what = change_of(before.ops[i], now.ops[i])) {
      return CaptureChange{ir::shown_name(before, OpId::of(i)), before.ops[i].path, std::move(*what)};
    }
  }
  if (before.ops.size() != now.ops.size()) {
    const bool ends = before.ops.size() > common;
    const auto& longer = ends ? before : now;
    return CaptureChange{ir::shown_name(longer, OpId::of(common)), longer.ops[common].path,
                         ends ? "forward ends before it now" : "forward has it now and had not"};
  }
  for (std::size_t v = 0; v < std::min(before.values.size(), now.values.size()); ++v) {
    auto what = change_of(before.values[v], now.values[v], batch);
    if (what) return at_value(before, ValueId::of(v), std::move(*what));
  }
  if (before.values.size() == now.values.size() && before.outputs == now.outputs) return std::nullopt;
  return CaptureChange{"forward", "", "its results are others than they were"};
}

}  // namespace autopar::trace
