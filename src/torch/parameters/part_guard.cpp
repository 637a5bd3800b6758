#include "torch/parameters/part_guard.hpp"

#include <cstddef>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>
#include <torch/library.h>

#include <autopar/core/error.hpp>

#include "capture/ir/ivalues.hpp"
#include "ops/names.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/parameters/part_checks.hpp"
#include "torch/parameters/part_kernels.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/part_rules.hpp"

namespace autopar::parameters {
namespace {

/// The operator that the program called, if it consists of other operators; messages name it.
thread_local const c10::OperatorHandle* composed_of_others = nullptr;

std::string name_of(const c10::OperatorHandle& op) {
  return (composed_of_others != nullptr ? composed_of_others : &op)->operator_name().name;
}

/// A call of an operator with its arguments.
class GuardedCall {
 public:
  GuardedCall(const c10::OperatorHandle& op, const PartRule& rule, c10::DispatchKeySet keys, torch::jit::Stack& stack)
      : op_(op), rule_(rule), keys_(keys), stack_(stack), base_(stack.size() - op.schema().arguments().size()) {}

  void run() {
    if (draws(rule_, op_, stack_)) {
      if (const auto* marked = any_mark()) refuse_draw(name_of(op_), marked->layout());
    }
    switch (rule_.use) {
      case PartUse::kElementWise:
        return run_element_wise();
      case PartUse::kLists:
        return run_lists();
      case PartUse::kLike:
        return run_like();
      case PartUse::kView:
        return run_view();
      case PartUse::kNothing:
        return run_nothing();
      case PartUse::kComposed:
        return run_composed();
      case PartUse::kWhole:
        break;
    }
    if (const auto* part = any_part()) refuse_whole(name_of(op_), part->layout());
    pass_on();
  }

 private:
  using Sizes = c10::SmallVector<std::int64_t, 5>;

  [[nodiscard]] bool is_written(std::size_t argument) const {
    return argument < 64 && ((rule_.written >> argument) & 1) != 0;
  }

  /// Visits each defined tensor.
  /// @param visit  visit(tensor) returns whether to continue
  template <class Visit>
  void for_each_operand(const Visit& visit) const {
    for (std::size_t i = base_; i < stack_.size(); ++i) {
      if (stack_[i].isTensor()) {
        if (stack_[i].toTensor().defined() && !visit(stack_[i].toTensor())) return;
      } else if (ir::is_tensor_list(stack_[i])) {
        for (const c10::IValue& element : stack_[i].toListRef())
          if (element.isTensor() && element.toTensor().defined() && !visit(element.toTensor())) return;
      }
    }
  }

  template <class Wanted>
  [[nodiscard]] PartMark* find_mark(const Wanted& wanted) const {
    PartMark* found = nullptr;
    for_each_operand([&](const at::Tensor& tensor) {
      if (auto* mark = mark_of(tensor); mark != nullptr && wanted(*mark)) found = mark;
      return found == nullptr;
    });
    return found;
  }
  [[nodiscard]] PartMark* any_mark() const {
    return find_mark([](const PartMark&) { return true; });
  }
  [[nodiscard]] PartMark* any_part() const {
    return find_mark([](const PartMark& mark) { return mark.layout().is_part(); });
  }

  void add(PartOperands& operands, const c10::IValue& value, std::size_t argument) const {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const auto& tensor = value.toTensor();
    operands.push_back({&tensor, mark_of(tensor), is_written(argument)});
  }

  [[nodiscard]] PartOperands tensors() const {
    PartOperands operands;
    for (std::size_t i = base_; i < stack_.size(); ++i) add(operands, stack_[i], i - base_);
    return operands;
  }

  /// Sizes of the tensor with this mark.
  [[nodiscard]] static Sizes sizes_of(const PartOperands& operands, const PartMark* mark) {
    for (const auto& operand : operands) {
      if (operand.mark == mark) return Sizes(operand.tensor->sizes().begin(), operand.tensor->sizes().end());
    }
    return {};
  }

  void proceed() {
    const PartAccess below;
    op_.redispatchBoxed(keys_ & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPartKey), &stack_);
  }

  /// Runs an operator on copies. A view of a copy is memory of the parameter, so it gets the mark.
  void pass_on() {
    auto* const mark = any_mark();
    const auto kept = mark == nullptr ? PartMarkPtr() : PartMarkPtr::reclaim_copy(mark);
    proceed();
    if (mark == nullptr) return;
    const auto mark_view = [&](const at::Tensor& made) {
      if (made.defined() && made.key_set().has(kPartKey) && mark_of(made) == nullptr) set_mark(made, kept);
    };
    ir::for_each_tensor(stack_, stack_.size() - op_.schema().returns().size(), mark_view);
  }

  void run_element_wise() {
    const auto operands = tensors();
    auto* const mark = require_one_layout(operands, [&] { return name_of(op_); });
    make(mark, sizes_of(operands, mark));
  }

  void run_like() {
    const auto operands = tensors();
    auto* const mark = any_mark();
    make(mark, sizes_of(operands, mark));
  }

  // The stack releases the arguments, but not the marks on the caller's tensors. Results may be the arguments.
  void make(PartMark* mark, const Sizes& sizes) {
    const auto kept = mark == nullptr ? PartMarkPtr() : PartMarkPtr::reclaim_copy(mark);
    proceed();
    const auto first = stack_.size() - op_.schema().returns().size();
    for (std::size_t i = first; i < stack_.size(); ++i)
      if (stack_[i].isTensor()) mark_made(stack_[i].toTensor(), mark, sizes);
  }

  /// The operands at one position of the lists. A tensor that is not in a list belongs to every position if it is a
  /// part. Otherwise it has the numbers for the positions.
  [[nodiscard]] PartOperands operands_at(std::size_t place) const {
    PartOperands operands;
    for (std::size_t i = base_; i < stack_.size(); ++i) {
      if (ir::is_tensor_list(stack_[i])) {
        const auto list = stack_[i].toListRef();
        if (place < list.size()) add(operands, list[place], i - base_);
      } else if (stack_[i].isTensor() && stack_[i].toTensor().defined() && mark_of(stack_[i].toTensor()) != nullptr) {
        add(operands, stack_[i], i - base_);
      }
    }
    return operands;
  }

  void run_lists() {
    struct Place {
      PartMarkPtr mark;
      Sizes sizes;
      c10::SmallVector<at::Tensor, 2> written;  // not marked yet
    };
    std::size_t count = 0;
    for (std::size_t i = base_; i < stack_.size(); ++i) {
      if (ir::is_tensor_list(stack_[i])) count = std::max(count, stack_[i].toListRef().size());
    }
    std::vector<Place> places(count);
    for (std::size_t k = 0; k < count; ++k) {
      const auto operands = operands_at(k);
      auto* const mark = require_one_layout(operands, [&] { return name_of(op_); });
      if (mark == nullptr) continue;
      places[k].mark = PartMarkPtr::reclaim_copy(mark);
      places[k].sizes = sizes_of(operands, mark);
      for (const auto& operand : operands)
        if (operand.is_written && operand.mark == nullptr) places[k].written.push_back(*operand.tensor);
    }
    proceed();
    for (const auto& place : places)
      for (const auto& tensor : place.written) mark_made(tensor, place.mark.get(), place.sizes);
    if (op_.schema().returns().size() != 1 || !ir::is_tensor_list(stack_.back())) return;
    const auto made = stack_.back().toListRef();
    for (std::size_t k = 0; k < std::min(count, made.size()); ++k)
      mark_made(made[k].toTensor(), places[k].mark.get(), places[k].sizes);
  }

  void run_view() {
    const auto whole = stack_[base_].toTensor();
    auto* const mark = mark_of(whole);
    if (mark == nullptr || !mark->layout().is_part()) return pass_on();
    try {
      proceed();
    } catch (const c10::Error&) {
      refuse_whole(name_of(op_), mark->layout());
    }
    const auto& made = stack_.back().toTensor();
    if (made.sizes() != whole.sizes() || (made.strides() != whole.strides() && made.numel() > 0))
      refuse_whole(name_of(op_), mark->layout());
    mark_like(made, whole);
  }

  void run_nothing() {
    if (op_.schema().name() == ops::kHasCompatibleShallowCopyType) give_mark_to_data();
    proceed();
  }

  /// For `set_data`: the handle gets the mark of the new data.
  void give_mark_to_data() {
    const auto operands = tensors();
    if (operands.size() != 2 || operands[0].mark == nullptr) return;
    const auto &handle = operands[0], &data = operands[1];
    if (handle.is_part() && data.tensor->sizes() != handle.tensor->sizes()) refuse_sizes(name_of(op_), handle, data);
    if (handle.mark->layout().kind == PartLayout::Kind::kShard) refuse_set_data(handle.mark->layout());
    mark_made(*data.tensor, handle.mark, handle.tensor->sizes());
  }

  void run_composed() {
    struct Scope {
      const c10::OperatorHandle* before = composed_of_others;
      explicit Scope(const c10::OperatorHandle& op) {
        if (before == nullptr) composed_of_others = &op;
      }
      ~Scope() { composed_of_others = before; }
    };
    const Scope scope(op_);
    op_.redispatchBoxed(keys_ & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPartKey), &stack_);
  }

  const c10::OperatorHandle& op_;
  const PartRule& rule_;
  c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  std::size_t base_;
};

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  GuardedCall(op, part_rule(op), keys, *stack).run();
}

using Metadata = std::unordered_map<std::string, bool>;

/// Wraps the hook that libtorch calls for each tensor that it writes to a file.
void refuse_to_save_parts(c10::DeviceType device) {
  auto& hook = torch::jit::GetBackendMetaSerialization()[static_cast<std::size_t>(device)];
  const auto before = hook ? hook->first : torch::jit::BackendMetaPtr();
  const auto save = [before](const at::Tensor& tensor, Metadata& metadata) {
    const auto* layout = tensor.defined() ? layout_of(tensor) : nullptr;
    if (layout != nullptr && layout->is_part()) {
      throw InvalidArgument("torch::save: '" + layout->name + "' " + layout->description +
                            "; use model->save(folder, optimizers...), which all ranks call, "
                            "or save on rank 0 the tensors that model->gather_state() gives, and for an optimizer what "
                            "model->gather_optimizer(optimizer) gives");
    }
    if (before) before(tensor, metadata);
  };
  const auto load = hook ? hook->second : [](const at::Tensor&, Metadata&) {};
  hook.emplace(save, load);
}

}  // namespace

void install_part_guard() {
  static const bool installed = [] {
    static torch::Library library(torch::Library::IMPL, "_", c10::make_optional(kPartKey), __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
    install_part_kernels();
    refuse_to_save_parts(c10::DeviceType::CPU);
    refuse_to_save_parts(c10::DeviceType::CUDA);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace autopar::parameters
