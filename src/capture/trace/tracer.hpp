#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <autopar/capture/op_def.hpp>
#include <autopar/capture/op_graph.hpp>
#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Libtorch's message of a run at a batch size that the user never chose, with "batch" instead of that number.
[[nodiscard]] std::string without_batch_size(const std::string& message, std::int64_t batch);

/// libtorch refused the forward at some batch size; the batch size may be the reason.
class ForwardFailed : public CaptureError {
  using CaptureError::CaptureError;
};

/// Records the operators of one run into an OpGraph of that run's sizes. Each tensor that the traced code holds is
/// either a fake tensor of ours or a leaf (parameter, buffer, argument, constant). Each has a *twin* on the meta
/// device, on which the operator really runs. Used by one thread.
///
/// Size: each operator goes through one chain of cases (`handle`), and each case reads and writes the same tables of
/// tensors, storages and values. Its files are the cases: tracer.cpp, tracer_tensors.cpp, tracer_constants.cpp.
class Tracer {
 public:
  struct Options {
    /// Message of the error when the data of a fake tensor is read.
    std::string description;
    /// Receives operators on the fake tensors outside the run; none: they are refused.
    std::weak_ptr<OperatorSink> owner;
    /// A module is being constructed: anything may be written, and leaves may start to require a gradient.
    bool constructing = false;
    /// Gives data to a fake tensor that is no parameter, buffer or argument: a plain member made by the constructor.
    /// Returns false if it cannot.
    std::function<bool(const at::Tensor&)> make_real;
    /// Batch norms in training mode are recorded as the operators of exact_batch_norm.
    bool exact_batch_norm = false;
    /// `CaptureOptions::device`.
    c10::DeviceType device = c10::DeviceType::CPU;
    /// The device of `CaptureOptions::autocast`, if autocast is on; none: the caller's autocast applies.
    std::optional<c10::DeviceType> autocast_device{};
    /// `Autocast::everywhere` and its element type.
    std::optional<c10::ScalarType> compute_type{};
    /// The solved program of all batch sizes. It gives the forms of results that are too large to be tried. None before
    /// it is solved.
    const OpGraph* solved = nullptr;
    std::int64_t batch = 0;
    /// `CaptureOptions::on_constant`.
    std::function<void(const at::Tensor&)> on_constant{};
  };

  explicit Tracer(Options options);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Adds a leaf, before the run. A tensor that was added before keeps its value: tied names.
  ValueId add_state(ValueKind kind, const std::string& name, const at::Tensor& tensor);
  /// Adds an argument: a fake tensor of these sizes.
  [[nodiscard]] at::Tensor add_input(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                                     at::MemoryFormat format);

  /// Called by the dispatcher: performs and records one operator.
  void handle(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  /// The value of a tensor that the run made or used; a constant if it is unknown.
  [[nodiscard]] ValueId value_of(const at::Tensor& tensor);
  /// The value if the tensor is known.
  [[nodiscard]] std::optional<ValueId> find(const at::Tensor& tensor);
  /// Frees the memory of small `empty` tensors; the contents written there become part of the program.
  void release_raw_memory();
  /// After the run: refuses hooks and gradients that fake tensors kept.
  void finish();
  /// Whether a tensor handle to a computed value of the run still exists.
  [[nodiscard]] bool keeps_values() const;
  /// Gives data to the live tensors that depend only on constants; they keep it from now on. Evaluates the operators
  /// behind them. Returns whether there was any.
  bool settle_constants();
  /// The data of a tensor of the run if it depends only on constants; else nullopt. Evaluates operators.
  [[nodiscard]] std::optional<at::Tensor> constant_data(const at::Tensor& tensor);
  /// A fake tensor that got other memory, with data, behind the dispatcher's back becomes an ordinary tensor.
  void take_replaced(const at::Tensor& user);
  void take_replaced();
  /// To be called before the memory of a constant is written. Recorded operators keep its current contents.
  void keep_before_write(const at::Tensor& constant);

  [[nodiscard]] OpGraph& graph() { return graph_; }
  [[nodiscard]] const std::string& last_path() const { return last_path_; }
  [[nodiscard]] const std::string& last_op() const { return last_op_; }

 private:
  struct Twin {
    WeakTensor user;
    at::Tensor meta;
    ValueId value;
    bool requires_grad = false;                 ///< of the user's tensor when bound; requires_grad_ changes it
    const c10::StorageImpl* storage = nullptr;  ///< of the user's tensor when bound; set_data changes it
  };
  /// A small `empty` has memory, because torch::tensor(vector) writes into it behind the dispatcher's back.
  struct RawMemory {
    c10::Storage storage;
    std::vector<char> seen;  ///< contents when we last looked
  };
  struct Call;  ///< state of one operator call in handle()

  bool resolve_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void lower_leaves(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  at::Tensor lowered(const at::Tensor& user);
  at::Tensor on_cpu(const at::Tensor& user);
  std::vector<std::pair<std::size_t, c10::IValue>> put_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  bool take_apart(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool take_windows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool answer_by_identity(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool answer_by_data(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool select_by_constants(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool refer_to_data(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool read_borrowed(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  [[nodiscard]] const char* data_dependent() const;
  void collect_arguments(Call& call);
  void run_on_twins(Call& call);
  static void form_as_defined(const OpDef& def, Call& call);
  [[nodiscard]] bool is_given_without_elements(Call& call) const;
  void try_on_zeros(Call& call);
  bool take_solved_form(Call& call) const;
  void collect_results(Call& call);
  void record(Call& call);
  void check_writes(const Call& call) const;
  void check_factors(const Call& call) const;

  Twin& twin_of(const at::Tensor& user);
  Twin& adopt_unknown(const at::Tensor& user);
  at::Tensor copy_of_borrowed(const at::Tensor& user);
  void look_at_borrowed(const at::Tensor& user);
  void forget(const c10::StorageImpl* storage);
  Twin& adopt_alias(const at::Tensor& user, ValueId base);
  std::optional<ValueId> alias_of(const at::Tensor& user) const;
  Twin& bind(const at::Tensor& user, const at::Tensor& meta, ValueId value);
  void check_fake(const at::Tensor& user, Twin& twin) const;
  at::Tensor meta_leaf(const at::Tensor& user);
  at::Tensor wrap(const at::Tensor& meta, bool may_have_memory);
  ValueId new_value(const at::Tensor& meta, OpId definer);
  StorageId storage_id(const at::Tensor& meta);
  void take_raw_writes(const at::Tensor& user);
  std::string path_of(const Call& call);
  [[noreturn]] void refuse(const std::string& op, const std::string& path, const std::string& reason) const;

  Options options_;
  OpGraph graph_;
  c10::intrusive_ptr<FakeTag> tag_;
  std::unordered_map<const c10::TensorImpl*, Twin> twins_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> meta_storage_of_;     ///< user's storage -> twin's
  std::unordered_map<const c10::StorageImpl*, c10::Storage> user_storage_of_;     ///< twin's storage -> user's
  std::unordered_map<const c10::StorageImpl*, StorageId> storage_ids_;            ///< twin's storage -> id
  std::unordered_map<const c10::StorageImpl*, std::vector<ValueId>> by_storage_;  ///< user's storage -> its values
  std::unordered_map<const c10::StorageImpl*, RawMemory> raw_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> borrowed_;  ///< user's storage that libtorch does not own
                                                                        ///< -> its copy
  /// Constants on other devices: the CPU tensors that replace them
  std::unordered_map<const c10::TensorImpl*, at::Tensor> on_cpu_;
  /// Leaves, and views of them, cast to `Options::compute_type`, by value and grad mode.
  std::map<std::pair<ValueId, bool>, at::Tensor> lowered_;
  std::vector<at::Tensor> metas_;        ///< twin of each value, by ValueId
  std::vector<OpId> path_age_;           ///< by ValueId: op whose path `paths_` holds
  std::vector<std::string> paths_;       ///< by ValueId
  std::vector<ValueKind> storage_kind_;  ///< by StorageId: kind of the leaf it belongs to
  std::string last_path_, last_op_;
};

/// The storage of a tensor that has one.
[[nodiscard]] inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/// Whether it is host memory that libtorch does not own (from_blob). It may change, or be freed, before the program
/// runs.
[[nodiscard]] bool is_borrowed(const at::Tensor& tensor);

/// Adds an id to a sorted set, if it is valid and not in it.
inline void insert_sorted(std::vector<StorageId>& set, StorageId id) {
  if (!id.valid()) return;
  const auto place = std::lower_bound(set.begin(), set.end(), id);
  if (place == set.end() || *place != id) set.insert(place, id);
}

/// Whether the call draws random numbers (dropout with p = 0 or in eval mode does not).
[[nodiscard]] bool draws_random(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args);

/// Argument positions that the operator writes although its schema does not say so.
[[nodiscard]] std::vector<std::int32_t> unannotated_writes(const c10::OperatorHandle& op,
                                                           const std::vector<c10::IValue>& args);

/// Whether the results, or their sizes, depend on the values of the arguments.
[[nodiscard]] bool reads_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Whether the arguments are small enough to try the operator: at most 16 MiB, and products of them take at most 0.1 s.
[[nodiscard]] bool may_be_probed(const torch::jit::Stack& arguments);

/// Runs an operator that has no Meta kernel on zeroed CPU memory, for the form of its results; @pre may_be_probed.
/// `stack` holds arguments (meta tensors) on entry, results (meta tensors) on return. False if an operator inside it
/// reads data, so that zeros do not show the form; the stack is then invalid.
[[nodiscard]] bool probe_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace autopar::trace
