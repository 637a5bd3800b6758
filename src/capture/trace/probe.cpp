#include <cstdlib>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>

#include "capture/ir/ivalues.hpp"
#include "capture/trace/generator_use.hpp"
#include "capture/trace/trace_scope.hpp"
#include "capture/trace/tracer.hpp"

namespace autopar::trace {
namespace {

constexpr std::size_t kLargestProbe = std::size_t{16} << 20;
/// Products of matrices of so many elements take a tenth of a second: elements^1.5 multiply-adds at ten a nanosecond.
constexpr double kMostElements = 1e6;

/// Meta tensors and their stand-ins on zeroed memory, which the system hands out page by page as it is touched.
class StandIns {
 public:
  at::Tensor real(const at::Tensor& meta) {
    requires_grad_ |= meta.requires_grad();
    for (const auto& [known, stand_in] : pairs_) {
      if (known.is_same(meta)) return stand_in;
    }
    auto stand_in = at::detail::make_tensor<c10::TensorImpl>(storage_for(meta),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), meta.dtype());
    auto* impl = stand_in.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
    if (meta.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    if (meta.is_conj()) stand_in._set_conj(true);
    if (meta.is_neg()) stand_in._set_neg(true);
    if (meta.requires_grad()) stand_in.set_requires_grad(true);  // attention chooses its kernel by the mask's
    pairs_.emplace_back(meta, stand_in);
    return stand_in;
  }

  /// The meta tensor of a result: an argument, a view of an argument, or a new one.
  at::Tensor meta(const at::Tensor& result, bool grad_mode) {
    if (!result.defined() || result.layout() != at::kStrided) return result;  // sparse: refused by who asked
    for (const auto& [known, stand_in] : pairs_) {
      if (stand_in.is_same(result)) return known;
    }
    for (const auto& [known, stand_in] : pairs_) {
      if (stand_in.storage().is_alias_of(result.storage())) {
        return known.as_strided(result.sizes(), result.strides(), result.storage_offset());
      }
    }
    auto made = at::empty_strided(result.sizes(), result.strides(), result.options().device(at::kMeta));
    if (!requires_grad_ || !grad_mode || !(made.is_floating_point() || made.is_complex())) return made;
    made.set_requires_grad(true);
    return made.clone();  // no leaf: an in-place operator may follow
  }

 private:
  c10::Storage storage_for(const at::Tensor& meta) {
    for (const auto& [known, stand_in] : pairs_) {
      if (known.storage().is_alias_of(meta.storage())) return stand_in.storage();
    }
    const auto bytes = meta.storage().nbytes();
    void* memory = std::calloc(bytes + 64, 1);
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                        at::DataPtr(
                            memory, memory, [](void* block) { std::free(block); }, at::kCPU),
                        nullptr, false);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  bool requires_grad_ = false;
};

/// The default generator as it was, whatever a probe draws.
class KeepGenerator {
 public:
  KeepGenerator() : only_one_(generator_use()), generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> only_one_;
  at::Generator generator_;
  at::Tensor state_;
};

/// Looks at the operators inside a composite.
class DataWatch : public OperatorSink {
 public:
  void handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    read_ |= reads_data(op, *stack);
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    }
    const c10::impl::ExcludeDispatchKeyGuard below(kTraceKey);
    op.callBoxed(stack);
  }
  [[nodiscard]] bool data_was_read() const { return read_; }

 private:
  bool read_ = false;
};

/// Sends the thread's operators to a sink although a tracer further out is at work on one.
class Watched {
 public:
  explicit Watched(OperatorSink& sink) : keys_(included(), excluded()), scope_(sink) {}

 private:
  static c10::DispatchKeySet included() { return c10::impl::tls_local_dispatch_key_set().included_.add(kTraceKey); }
  static c10::DispatchKeySet excluded() { return c10::impl::tls_local_dispatch_key_set().excluded_.remove(kTraceKey); }

  c10::impl::ForceDispatchKeyGuard keys_;
  TraceScope scope_;
};

}  // namespace

bool may_be_probed(const torch::jit::Stack& arguments) {
  std::size_t bytes = 0;
  double elements = 0;
  std::unordered_set<const c10::StorageImpl*> seen;
  ir::for_each_tensor(arguments, 0, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    elements += static_cast<double>(tensor.numel());
    if (seen.insert(storage_of(tensor)).second) bytes += tensor.storage().nbytes();
  });
  return bytes <= kLargestProbe && elements <= kMostElements;
}

bool probe_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const auto& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    TORCH_CHECK(kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType, "it returns a ",
                result.type()->str(), ", which would be computed from zeros");
  }
  const bool grad_mode = at::GradMode::is_enabled();
  StandIns stand_ins;
  for (auto& argument : *stack) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      argument = stand_ins.real(argument.toTensor());
    } else if (argument.isDevice()) {
      argument = c10::Device(at::kCPU);
    } else if (argument.isTensorList() ||
               (argument.isList() && argument.toList().elementType()->kind() == c10::TypeKind::OptionalType)) {
      const auto list = argument.toList();
      c10::impl::GenericList replaced(list.elementType());
      for (std::size_t i = 0; i < list.size(); ++i) {
        const c10::IValue element = list.get(i);
        const bool is_tensor = element.isTensor() && element.toTensor().defined();
        replaced.push_back(is_tensor ? c10::IValue(stand_ins.real(element.toTensor())) : element);
      }
      argument = c10::IValue(replaced);
    }
  }
  {
    const at::AutoGradMode no_grad(false);
    std::optional<KeepGenerator> keep;
    if (op.hasTag(at::Tag::nondeterministic_seeded)) keep.emplace();
    DataWatch watch;
    try {
      const Watched watched(watch);
      watch.handle(op, stack);
    } catch (const c10::Error&) {
      if (!watch.data_was_read()) throw;
    }
    if (watch.data_was_read()) return false;
  }
  for (auto& result : *stack) {
    if (result.isTensor()) {
      result = stand_ins.meta(result.toTensor(), grad_mode);
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> metas;
      for (const at::Tensor& tensor : result.toTensorVector()) metas.push_back(stand_ins.meta(tensor, grad_mode));
      result = std::move(metas);
    }
  }
  return true;
}

}  // namespace autopar::trace
