#include "capture/init/element_fill.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "capture/init/skip_draws.hpp"
#include "capture/ir/ivalues.hpp"

namespace autopar::init {

namespace {

// A kernel draws normal numbers in blocks, and the last sixteen of a tensor anew where they are no block
// (aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill).
constexpr std::int64_t kBlock = 16;

template <std::size_t N>
bool is_any_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 4> kMakers{"aten::empty", "aten::zeros", "aten::ones", "aten::full"};
constexpr std::array<std::string_view, 4> kLikes{"aten::empty_like", "aten::zeros_like", "aten::ones_like",
                                                 "aten::full_like"};
constexpr std::array<std::string_view, 2> kSame{"aten::detach", "aten::alias"};
constexpr std::array<std::string_view, 2> kDraws{"aten::uniform_", "aten::normal_"};
constexpr std::array<std::string_view, 6> kArithmetic{"aten::zero_", "aten::fill_", "aten::mul_",
                                                      "aten::div_",  "aten::add_",  "aten::sub_"};

std::size_t operands(const OpNode& node) {
  std::size_t count = 0;
  for_each_input(node, [&](ValueId) { ++count; });
  return count;
}

/// Whether the operator only reads this memory, or has nothing to do with it.
bool leaves_alone(const OpGraph& graph, const OpNode& node, StorageId memory) {
  bool makes = false;
  for_each_output(node, [&](ValueId value) { makes = makes || graph.value(value).storage == memory; });
  return !makes && std::ranges::find(node.writes, memory) == node.writes.end();
}

/// The elements that a kernel has to see so that those asked for come out as they do among all.
Interval seen_by_kernels(Interval elements, std::int64_t size) {
  Interval seen{elements.begin / kBlock * kBlock, (elements.end + kBlock - 1) / kBlock * kBlock};
  if (size % kBlock == 0 || elements.end <= size - kBlock) return seen;
  return {std::min(seen.begin, (size - kBlock) / kBlock * kBlock), size};
}

}  // namespace

std::optional<ElementFill> ElementFill::of(const OpGraph& graph, const std::vector<bool>& needed, ValueId value) {
  ElementFill fill(graph, value);
  if (fill.size() < kBlock) return std::nullopt;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const auto op = OpId::of(i);
    if (!needed[i] || leaves_alone(graph, graph.op(op), graph.value(value).storage)) continue;
    if (!fill.add(op)) return std::nullopt;
  }
  if (fill.ops_.empty()) return std::nullopt;
  return fill;
}

bool ElementFill::add(OpId op) {
  const auto& node = graph_->op(op);
  if (node.outputs.size() != 1 || node.outputs.front().values.size() != 1) return false;
  const auto &made = graph_->value(node.outputs.front().values.front()), &wanted = graph_->value(value_);
  if (made.storage != wanted.storage || made.dtype != wanted.dtype) return false;
  if (made.elements(0) != size() || !is_contiguous(made)) return false;
  const std::string_view name = node.op.schema().name();
  const auto reads = operands(node);
  const bool reads_itself = reads == 1 && graph_->value(node.inputs.front().values.front()).storage == wanted.storage;
  if (is_any_of(name, kSame)) return reads_itself;
  const bool makes = ops_.empty() && (is_any_of(name, kMakers) ? reads == 0 : is_any_of(name, kLikes) && reads == 1);
  const bool draws = is_any_of(name, kDraws) && reads_itself && plain_draws(*graph_, node).has_value();
  const bool changes = is_any_of(name, kArithmetic) && reads_itself;
  if (!makes && (ops_.empty() || (!draws && !changes))) return false;
  ops_.push_back(op);
  return true;
}

at::Tensor ElementFill::part(std::int64_t blocks, Interval of_each, const StateBefore& state_before) const {
  constexpr std::int64_t kLeast = 4096;  // for which it pays to call kernels once more
  const at::AutoGradMode no_grad(false);
  auto own = at::empty({blocks, of_each.size()}, at::dtype(type()));
  const auto block = size() / blocks, chunk = std::max(kLeast, own.numel());
  Drawings drawings;
  for (std::int64_t first = 0; first < blocks && !of_each.empty();) {
    const auto count = std::clamp<std::int64_t>(chunk / block, 1, blocks - first);
    const Interval elements{first * block + of_each.begin, (first + count - 1) * block + of_each.end};
    own.narrow(0, first, count)
        .copy_(made(elements, drawings, state_before).as_strided({count, of_each.size()}, {block, 1}));
    first += count;
  }
  return own;
}

at::Tensor ElementFill::made(Interval elements, Drawings& drawings, const StateBefore& state_before) const {
  const auto seen = seen_by_kernels(elements, size());
  const auto data = at::empty({seen.size()}, at::dtype(type()));
  run(seen, data, drawings, state_before);
  return data.narrow(0, elements.begin - seen.begin, elements.size());
}

void ElementFill::run(Interval elements, at::Tensor into, Drawings& drawings, const StateBefore& state_before) const {
  auto generator = at::make_generator<at::CPUGeneratorImpl>();  // the default one is for one thread
  for (const auto op : ops_) {
    const auto& node = graph_->op(op);
    const auto& schema = node.op.schema();
    const std::string_view name = schema.name();
    if (is_any_of(name, kMakers) || is_any_of(name, kLikes)) {
      if (name.starts_with("aten::zeros")) into.zero_();
      if (name.starts_with("aten::ones")) into.fill_(1);
      if (name.starts_with("aten::full")) into.fill_(node.args[1].toScalar());
      continue;
    }
    torch::jit::Stack stack(node.args.begin(), node.args.end());
    stack[static_cast<std::size_t>(node.inputs.front().position)] = into;
    if (is_any_of(name, kDraws)) {
      const std::uint64_t words = type() == c10::kDouble ? 2 : 1;
      auto& drawing = drawings[op];
      if (!drawing.state.defined() || elements.begin < drawing.element) drawing = {0, state_before(op)};
      set_state(generator, drawing.state);
      skip_draws(generator, static_cast<std::uint64_t>(elements.begin - drawing.element) * words);
      drawing = {elements.begin, state_of(generator)};
      stack[static_cast<std::size_t>(*schema.argumentIndexWithName("generator"))] = generator;
    }
    node.op.callBoxed(&stack);
  }
}

void ElementFill::Piece::make(const StateBefore& state_before) const {
  constexpr std::int64_t kChunk = 1 << 15;  // for which libtorch's kernels start no threads, and which caches hold
  const at::AutoGradMode no_grad(false);
  Drawings drawings;
  for (std::int64_t begin = elements.begin; begin < elements.end;) {
    const auto left = elements.end - begin, count = left < kChunk + kBlock ? left : kChunk;
    fill->run({begin, begin + count}, into.narrow(0, begin - elements.begin, count), drawings, state_before);
    begin += count;
  }
}

std::vector<ElementFill::Piece> ElementFill::pieces(const at::Tensor& into, std::int64_t most) const {
  const auto length = std::max(kBlock, most / kBlock * kBlock);
  const auto flat = into.view({size()});
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0; begin < size();) {
    const auto left = size() - begin;
    const auto count = left < length + kBlock ? left : length;  // the last sixteen are of one piece
    pieces.push_back({this, {begin, begin + count}, flat.narrow(0, begin, count)});
    begin += count;
  }
  return pieces;
}

}  // namespace autopar::init
