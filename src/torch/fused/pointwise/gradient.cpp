#include "torch/fused/pointwise/gradient.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <utility>

#include <c10/core/ScalarType.h>

#include <autopar/core/assert.hpp>

namespace autopar::fused::pointwise {

namespace {

std::size_t index_of(Node node) { return static_cast<std::size_t>(node); }

/// The instructions of an expression, followed by the instructions of its gradients. Input numbers from
/// `first_gradient` on are gradients of results.
class Adjoints {
 public:
  Adjoints(const Expression& expression, const std::vector<bool>& wanted, const std::vector<bool>& given)
      : first_gradient_(static_cast<std::int32_t>(expression.inputs.size())) {
    for (const auto& [code, operands, number] : expression.instructions) {
      const auto mapped = [&](Node node) { return node == kNone ? kNone : copies_[index_of(node)]; };
      copies_.push_back(code == Code::kInput ? builder_.input(static_cast<std::int32_t>(number))
                        : code == Code::kConstant
                            ? builder_.constant(number)
                            : builder_.make(code, mapped(operands[0]), mapped(operands[1]), mapped(operands[2])));
    }
    const auto forward = builder_.instructions().size();
    of_.assign(forward, kNone);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!given[i]) continue;
      add_to(copies_[index_of(expression.results[i].node)], builder_.input(first_gradient_ + int(i)));
    }
    leads_to_wanted_.assign(forward, false);
    for (std::size_t i = 0; i < forward; ++i) {
      const auto& instruction = builder_.instructions()[i];
      const bool is_wanted = instruction.code == Code::kInput && wanted[static_cast<std::size_t>(instruction.number)];
      leads_to_wanted_[i] = is_wanted || std::ranges::any_of(instruction.operands, [&](Node operand) {
                              return operand != kNone && leads_to_wanted_[index_of(operand)];
                            });
    }
    for (auto node = static_cast<Node>(forward); node-- > 0;) pass_on(node);
  }

  [[nodiscard]] const std::vector<Instruction>& instructions() const { return builder_.instructions(); }
  [[nodiscard]] Builder& builder() { return builder_; }
  /// By node of the expression.
  [[nodiscard]] Node copy_of(Node node) const { return copies_[index_of(node)]; }
  /// The gradient of an input; a constant 0 if nothing depends on it.
  [[nodiscard]] Node of_input(std::int32_t input) {
    const auto at = builder_.input(input);
    const bool has_one = index_of(at) < of_.size() && of_[index_of(at)] != kNone;
    return has_one ? of_[index_of(at)] : builder_.constant(0);
  }
  [[nodiscard]] bool is_gradient(const Instruction& instruction) const {
    return instruction.code == Code::kInput && instruction.number >= first_gradient_;
  }
  /// By instruction: whether the instruction depends on a gradient.
  [[nodiscard]] std::vector<bool> depend_on_gradients() const {
    std::vector<bool> depends;
    for (const auto& instruction : instructions()) {
      depends.push_back(is_gradient(instruction) || std::ranges::any_of(instruction.operands, [&](Node operand) {
                          return operand != kNone && depends[index_of(operand)];
                        }));
    }
    return depends;
  }

 private:
  Node make(Code code, Node a, Node b = kNone, Node c = kNone) { return builder_.make(code, a, b, c); }
  Node product(Node a, Node b) { return make(Code::kMul, a, b); }
  Node constant(double number) { return builder_.constant(number); }

  void add_to(Node node, Node gradient) {
    auto& sum = of_[index_of(node)];
    sum = sum == kNone ? gradient : make(Code::kAdd, sum, gradient);
  }

  void pass_on(Node result) {
    const auto gradient = of_[index_of(result)];
    if (gradient == kNone || !leads_to_wanted_[index_of(result)]) return;
    const auto [code, operands, number] = builder_.at(result);
    const auto [a, b, c] = operands;
    const auto pass = [&](Node operand, const auto& made) {
      if (leads_to_wanted_[index_of(operand)]) add_to(operand, made());
    };
    switch (code) {
      case Code::kAdd:
        pass(a, [&] { return gradient; });
        pass(b, [&] { return gradient; });
        return;
      case Code::kSub:
        pass(a, [&] { return gradient; });
        pass(b, [&, g = gradient] { return make(Code::kNeg, g); });
        return;
      case Code::kMul:
        pass(a, [&, b = b] { return product(gradient, b); });
        pass(b, [&, a = a] { return product(gradient, a); });
        return;
      case Code::kDiv:
        pass(a, [&, b = b] { return make(Code::kDiv, gradient, b); });
        pass(b, [&, b = b] { return make(Code::kNeg, make(Code::kDiv, product(gradient, result), b)); });
        return;
      case Code::kSelect: {
        const auto zero = constant(0);
        pass(b, [&, a = a] { return make(Code::kSelect, a, gradient, zero); });
        pass(c, [&, a = a] { return make(Code::kSelect, a, zero, gradient); });
        return;
      }
      case Code::kInput:
      case Code::kConstant:
      case Code::kLess:
      case Code::kLessEqual:
      case Code::kEqual:
        return;
      default:
        pass(a, [&, a = a, b = b] { return of_one(builder_.at(result).code, gradient, a, b, result); });
    }
  }

  /// The gradient of the operand `x` of a unary function.
  Node of_one(Code code, Node gradient, Node x, Node exponent, Node result) {
    const auto one = constant(1), zero = constant(0);
    switch (code) {
      case Code::kNeg:
        return make(Code::kNeg, gradient);
      case Code::kAbs: {
        const auto if_negative = make(Code::kSelect, make(Code::kLess, x, zero), make(Code::kNeg, gradient), zero);
        return make(Code::kSelect, make(Code::kLess, zero, x), gradient, if_negative);
      }
      case Code::kPow: {
        const auto power = builder_.at(exponent).number;
        return product(gradient, product(exponent, make(Code::kPow, x, constant(power - 1))));
      }
      case Code::kExp:
        return product(gradient, result);
      case Code::kExpm1:
        return product(gradient, make(Code::kAdd, result, one));
      case Code::kLog:
        return make(Code::kDiv, gradient, x);
      case Code::kLog1p:
        return make(Code::kDiv, gradient, make(Code::kAdd, x, one));
      case Code::kSqrt:
        return make(Code::kDiv, gradient, product(constant(2), result));
      case Code::kRsqrt:
        return product(product(constant(-0.5), gradient), product(result, product(result, result)));
      case Code::kTanh:
        return product(gradient, make(Code::kSub, one, product(result, result)));
      case Code::kErf: {
        const auto bell = make(Code::kExp, make(Code::kNeg, product(x, x)));
        return product(gradient, product(constant(2 * std::numbers::inv_sqrtpi), bell));
      }
      case Code::kSigmoid:
        return product(gradient, product(result, make(Code::kSub, one, result)));
      case Code::kRelu:
        return make(Code::kSelect, make(Code::kLessEqual, result, zero), zero, gradient);
      default:
        break;
    }
    AUTOPAR_ASSERT(false, "an instruction has no derivative");
    return kNone;
  }

  std::int32_t first_gradient_;
  Builder builder_;
  std::vector<Node> copies_;  // by node of the expression
  std::vector<Node> of_;      // by forward node: its gradient so far
  std::vector<bool> leads_to_wanted_;
};

/// The minimum vertex cut of a graph. Each node is two vertices, joined by an edge with the node's capacity.
class NodeCut {
 public:
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;

  explicit NodeCut(std::size_t nodes) : edges_(2 * nodes + 2) {}

  void set_capacity(std::size_t node, std::int64_t capacity) { edges_[entry(node)][exit(node)] += capacity; }
  void connect(std::size_t from, std::size_t to) { edges_[exit(from)][entry(to)] = kEndless; }
  void start_at(std::size_t node) { edges_[source()][entry(node)] = kEndless; }
  void end_at(std::size_t node) { edges_[exit(node)][sink()] = kEndless; }

  /// The nodes of the cut between the starts and the ends.
  [[nodiscard]] std::vector<std::size_t> find() {
    for (;;) {
      seen_.assign(edges_.size(), false);
      if (augment(source(), kEndless) == 0) break;
    }
    std::vector<std::size_t> nodes;
    for (std::size_t node = 0; 2 * node + 2 < edges_.size(); ++node) {
      if (seen_[entry(node)] && !seen_[exit(node)]) nodes.push_back(node);
    }
    return nodes;
  }

 private:
  static std::size_t entry(std::size_t node) { return 2 * node; }
  static std::size_t exit(std::size_t node) { return 2 * node + 1; }
  [[nodiscard]] std::size_t source() const { return edges_.size() - 2; }
  [[nodiscard]] std::size_t sink() const { return edges_.size() - 1; }

  std::int64_t augment(std::size_t at, std::int64_t most) {
    if (at == sink()) return most;
    seen_[at] = true;
    for (auto& [to, capacity] : edges_[at]) {
      if (capacity == 0 || seen_[to]) continue;
      const auto flow = augment(to, std::min(most, capacity));
      if (flow == 0) continue;
      capacity -= flow;
      edges_[to][at] += flow;
      return flow;
    }
    return 0;
  }

  std::vector<std::map<std::size_t, std::int64_t>> edges_;
  std::vector<bool> seen_;
};

/// Cost of keeping a full tensor, in 1/16 byte per element. Values between the operators must also be written.
constexpr std::int64_t kKept = 16, kStoredToo = 20, kSmall = 1;

std::int64_t bytes_of(c10::ScalarType type) { return static_cast<std::int64_t>(c10::elementSize(type)); }

struct Offer {
  std::int64_t cost = 0;
  Kept kept;
};

/// The values that may be kept, by instruction of the adjoints.
std::map<Node, Offer> what_may_be_kept(const Expression& expression, const std::vector<bool>& full,
                                       Adjoints& adjoints) {
  std::map<Node, Offer> all;
  const auto offer = [&](Node node, const Offer& made) {
    const auto [at, is_new] = all.try_emplace(node, made);
    if (!is_new && made.cost < at->second.cost) at->second = made;
  };
  for (std::size_t i = 0; i < expression.inputs.size(); ++i) {
    const auto type = expression.inputs[i];
    const auto node = adjoints.builder().input(static_cast<std::int32_t>(i));
    offer(node, {full[i] ? kKept * bytes_of(type) : kSmall, {{kNone, type}, static_cast<int>(i), -1}});
  }
  for (std::size_t i = 0; i < expression.results.size(); ++i) {
    const auto& result = expression.results[i];
    offer(adjoints.copy_of(result.node), {kKept * bytes_of(result.type), {result, -1, static_cast<int>(i)}});
  }
  for (const auto& step : expression.steps)
    offer(adjoints.copy_of(step.node), {kStoredToo * bytes_of(step.type), {step, -1, -1}});
  return all;
}

}  // namespace

std::vector<Kept> values_to_keep(const Expression& expression, const std::vector<bool>& wanted,
                                 const std::vector<bool>& full) {
  Adjoints adjoints(expression, wanted, std::vector<bool>(expression.results.size(), true));
  std::vector<Node> made;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) made.push_back(adjoints.of_input(static_cast<std::int32_t>(i)));
  }
  const auto may_be_kept = what_may_be_kept(expression, full, adjoints);
  const auto& instructions = adjoints.instructions();
  const auto of_gradients = adjoints.depend_on_gradients();
  std::vector<bool> is_used(instructions.size(), false);
  for (const auto node : made) is_used[index_of(node)] = true;
  NodeCut cut(instructions.size());
  for (auto i = instructions.size(); i-- > 0;) {
    if (!is_used[i] || instructions[i].code == Code::kConstant) continue;
    const auto node = static_cast<Node>(i);
    for (const auto operand : instructions[i].operands) {
      if (operand == kNone) continue;
      is_used[index_of(operand)] = true;
      const bool is_forward =
          !of_gradients[index_of(operand)] && instructions[index_of(operand)].code != Code::kConstant;
      if (of_gradients[i] && is_forward) cut.end_at(index_of(operand));
      if (!of_gradients[i] && is_forward) cut.connect(index_of(operand), i);
    }
    if (of_gradients[i]) continue;
    const auto offered = may_be_kept.find(node);
    cut.set_capacity(i, offered == may_be_kept.end() ? NodeCut::kEndless : offered->second.cost);
    if (instructions[i].code == Code::kInput) cut.start_at(i);
  }
  std::vector<Kept> kept;
  for (const auto node : cut.find()) kept.push_back(may_be_kept.at(static_cast<Node>(node)).kept);
  return kept;
}

Expression gradient_of(const Expression& expression, const std::vector<Kept>& kept, const std::vector<bool>& wanted,
                       const std::vector<bool>& given) {
  Adjoints adjoints(expression, wanted, given);
  Expression gradient;
  std::vector<std::int32_t> place_of(given.size(), -1);  // index among the inputs of the gradient
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    place_of[i] = static_cast<std::int32_t>(gradient.inputs.size());
    gradient.inputs.push_back(expression.results[i].type);
  }
  std::map<Node, std::int32_t> place_of_kept;
  for (const auto& [value, input, result] : kept) {
    const auto node = input >= 0 ? adjoints.builder().input(input) : adjoints.copy_of(value.node);
    place_of_kept.try_emplace(node, static_cast<std::int32_t>(gradient.inputs.size()));
    gradient.inputs.push_back(value.type);
  }
  std::vector<std::pair<Node, c10::ScalarType>> made;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) made.emplace_back(adjoints.of_input(static_cast<std::int32_t>(i)), expression.inputs[i]);
  }
  const auto& instructions = adjoints.instructions();
  const auto first_gradient = static_cast<std::int32_t>(expression.inputs.size());
  Builder builder;
  std::map<Node, Node> taken;
  const std::function<Node(Node)> take = [&](Node node) -> Node {
    if (node == kNone) return kNone;
    if (const auto known = taken.find(node); known != taken.end()) return known->second;
    const auto& [code, operands, number] = instructions[index_of(node)];
    Node copy = kNone;
    if (const auto found = place_of_kept.find(node); found != place_of_kept.end()) {
      copy = builder.input(found->second);
    } else if (code == Code::kInput) {
      AUTOPAR_ASSERT(number >= first_gradient, "a gradient reads an input that is not kept");
      copy = builder.input(place_of[static_cast<std::size_t>(number) - static_cast<std::size_t>(first_gradient)]);
    } else if (code == Code::kConstant) {
      copy = builder.constant(number);
    } else {
      const auto a = take(operands[0]), b = take(operands[1]), c = take(operands[2]);
      copy = builder.make(code, a, b, c);
    }
    return taken[node] = copy;
  };
  for (const auto& [node, type] : made) gradient.results.push_back({take(node), type});
  gradient.instructions = builder.instructions();
  return gradient;
}

}  // namespace autopar::fused::pointwise
