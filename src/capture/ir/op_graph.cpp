#include <autopar/capture/op_graph.hpp>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <ATen/ops/empty.h>

#include <autopar/core/error.hpp>

#include "capture/ir/graph_hash.hpp"

namespace autopar {
namespace {

/// FNV-1a, 64 bits.
class Hasher {
 public:
  void bytes(const void* data, std::size_t size) {
    const auto* begin = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ begin[i]) * 0x100000001b3ULL;
  }
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) { bytes(&value, sizeof value); }
  void add(const std::string& text) {
    add(text.size());
    bytes(text.data(), text.size());
  }
  template <class Tag>
  void add(Index<Tag> id) {
    add(id.value());
  }
  void add(SizeExpr expr) {
    add(expr.per_sample);
    add(expr.fixed);
  }
  template <class T>
  void add(const std::vector<T>& list) {
    add(list.size());
    for (const auto& element : list) add(element);
  }
  void add(const Slot& slot) {
    add(slot.position);
    add(slot.kind);
    add(slot.values);
  }
  void add(const NamedValue& named) {
    add(named.name);
    add(named.value);
  }
  void add(const BatchInteger& integer) {
    add(integer.argument);
    add(integer.element);
    add(integer.expr);
    add(integer.role);
    add(integer.form);
    add(integer.factor);
  }
  void add(const c10::IValue& value);
  void add(const at::Tensor& constant) {
    const auto data = constant.detach().cpu().contiguous();
    add(static_cast<int>(data.scalar_type()));
    bytes(data.const_data_ptr(), data.nbytes());
  }
  [[nodiscard]] std::uint64_t result() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

void Hasher::add(const c10::IValue& value) {
  if (value.isDevice() || value.isGenerator()) return add(0);  // each rank has its own
  add(value.tagKind());
  if (value.isInt())
    add(value.toInt());
  else if (value.isDouble())
    add(value.toDouble());
  else if (value.isBool())
    add(value.toBool());
  else if (value.isString())
    add(value.toStringRef());
  else if (value.isIntList())
    add(value.toIntVector());
  else if (value.isDoubleList())
    add(value.toDoubleVector());
  else if (value.isComplexDouble())
    add(value.toComplexDouble().real()), add(value.toComplexDouble().imag());
  else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add(element);
  }
}

ValueId at_position(const std::vector<Slot>& slots, std::int32_t position) {
  for (const auto& slot : slots) {
    if (slot.position == position && slot.kind == SlotKind::kTensor) return slot.values.front();
  }
  return ValueId::none();
}

}  // namespace

double BatchInteger::number_at(std::int64_t batch) const {
  const auto integer = static_cast<double>(expr.at(batch));
  switch (form) {
    case NumberForm::kInteger:
      return integer;
    case NumberForm::kMultiple:
      return factor * integer;
    case NumberForm::kQuotient:
      return factor / integer;
    case NumberForm::kSingleQuotient:
      return static_cast<float>(factor) / static_cast<float>(integer);
  }
  return integer;
}

std::int64_t ValueInfo::elements(std::int64_t batch) const {
  std::int64_t product = 1;
  for (const auto& size : sizes) product *= size.at(batch);
  return product;
}

std::vector<std::vector<OpId>> OpGraph::uses() const {
  std::vector<std::vector<OpId>> result(values.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for_each_input(ops[i], [&](ValueId value) {
      auto& users = result[value.index()];
      if (users.empty() || users.back() != OpId::of(i)) users.push_back(OpId::of(i));
    });
  }
  return result;
}

std::vector<OpId> OpGraph::uses(ValueId value) const {
  std::vector<OpId> result;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    bool takes = false;
    for_each_input(ops[i], [&](ValueId input) { takes |= input == value; });
    if (takes) result.push_back(OpId::of(i));
  }
  return result;
}

ValueId OpGraph::input(OpId id, std::int32_t position) const { return at_position(op(id).inputs, position); }
ValueId OpGraph::output(OpId id, std::int32_t position) const { return at_position(op(id).outputs, position); }

std::vector<ValueId> parameters_read(const OpGraph& graph, const std::vector<OpId>& ops) {
  std::vector<ValueId> read;
  for (const auto op : ops) {
    for_each_input(graph.op(op), [&](ValueId value) {
      if (graph.value(value).kind == ValueKind::kParameter) read.push_back(value);
    });
  }
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  return read;
}

std::vector<OpId> OpGraph::storage_creators() const {
  std::vector<OpId> creators(static_cast<std::size_t>(storage_count));
  std::vector<bool> seen(creators.size(), false);
  for (const auto& info : values) {
    if (!info.storage.valid() || seen[info.storage.index()]) continue;
    seen[info.storage.index()] = true;
    creators[info.storage.index()] = info.definer;
  }
  return creators;
}

std::string OpGraph::describe(OpId id) const {
  const auto& path = op(id).path;
  return "#" + std::to_string(id.value()) + " " + name(id) + (path.empty() ? "" : " (near " + path + ")");
}

namespace {

enum class Strides : std::uint8_t { kTaken, kLeftOut };

std::uint64_t hash_of(const OpGraph& graph, Strides strides) {
  Hasher hasher;
  for (const auto& node : graph.ops) {
    hasher.add(node.op.schema().name());
    hasher.add(node.op.schema().overload_name());
    hasher.add(node.args);
    hasher.add(node.inputs);
    hasher.add(node.outputs);
    hasher.add(node.integers);
    hasher.add(node.grad_enabled);
    hasher.add(node.is_random);
    hasher.add(node.reads);
    hasher.add(node.writes);
  }
  for (const auto& info : graph.values) {
    hasher.add(info.kind);
    hasher.add(info.dtype);
    hasher.add(info.sizes);
    if (strides == Strides::kTaken) hasher.add(info.strides);
    hasher.add(info.requires_grad);
    hasher.add(info.storage);
    hasher.add(info.definer);
    hasher.add(info.position);
    hasher.add(info.name);
    if (info.constant.defined()) hasher.add(info.constant);
  }
  hasher.add(graph.inputs);
  hasher.add(graph.outputs);
  hasher.add(graph.parameters);
  hasher.add(graph.buffers);
  return hasher.result();
}

}  // namespace

std::uint64_t OpGraph::hash() const { return hash_of(*this, Strides::kTaken); }

std::uint64_t ir::hash_without_strides(const OpGraph& graph) { return hash_of(graph, Strides::kLeftOut); }

std::string describe_form(const ValueInfo& value) {
  std::string text = std::string(c10::toString(value.dtype)) + "[";
  for (std::size_t d = 0; d < value.sizes.size(); ++d) {
    const auto& size = value.sizes[d];
    if (d > 0) text += ", ";
    if (size.per_sample == 0) {
      text += std::to_string(size.fixed);
      continue;
    }
    text += (size.per_sample == 1 ? "" : std::to_string(size.per_sample)) + "B";
    if (size.fixed != 0) text += (size.fixed > 0 ? "+" : "") + std::to_string(size.fixed);
  }
  return text + "]";
}

}  // namespace autopar
