#include "capture/trace/autocast_rules.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/boxing/KernelFunction.h>

#include "ops/registry.hpp"

namespace autopar::trace {
namespace {

/// What libtorch's KERNEL macros register, kept here instead of in the dispatcher.
class KernelTable {
 public:
  template <class Function>
  void impl(const char* name, Function* kernel) {
    kernels_.insert_or_assign(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
  }

  [[nodiscard]] bool call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    const auto* kernel = find(op);
    if (kernel == nullptr) return false;
    kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::AutocastCPU), stack);
    return true;
  }

  [[nodiscard]] bool has(const c10::OperatorHandle& op) const { return find(op) != nullptr; }

 private:
  [[nodiscard]] const c10::KernelFunction* find(const c10::OperatorHandle& op) const {
    const auto& name = op.operator_name();
    const auto found = kernels_.find(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
    return found == kernels_.end() ? nullptr : &found->second;
  }

  std::unordered_map<std::string, c10::KernelFunction> kernels_;
};

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       std::int64_t) {
  TORCH_CHECK(
      false,
      "binary_cross_entropy is not safe under CUDA autocast: its gradient leaves the range of half precision; use "
      "binary_cross_entropy_with_logits on the values before the sigmoid");
}

#define AUTOPAR_LOWER(...) KERNEL_CPU(__VA_ARGS__, lower_precision_fp)
#define AUTOPAR_FP32(...) KERNEL_CPU(__VA_ARGS__, fp32)
#define AUTOPAR_FP32_RESULT(...) KERNEL_CPU(__VA_ARGS__, fp32_set_opt_dtype)
#define AUTOPAR_PROMOTE(...) KERNEL_CPU(__VA_ARGS__, promote)

KernelTable cuda_kernels() {
  using namespace at;  // which the lists are written for
  KernelTable m;
  AT_FORALL_LOWER_PRECISION_FP(AUTOPAR_LOWER)
  AT_FORALL_FP32(AUTOPAR_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(AUTOPAR_FP32_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_CPU)
  AT_FORALL_PROMOTE(AUTOPAR_PROMOTE)
  m.impl("aten::binary_cross_entropy", &refuse_binary_cross_entropy);
  return m;
}

KernelTable recurrent_kernels_and_sums() {
  KernelTable m;
  AUTOPAR_FP32(lstm, input)
  AUTOPAR_FP32(lstm, data)
  AUTOPAR_FP32(gru, input)
  AUTOPAR_FP32(gru, data)
  AUTOPAR_FP32(rnn_tanh, input)
  AUTOPAR_FP32(rnn_tanh, data)
  AUTOPAR_FP32(rnn_relu, input)
  AUTOPAR_FP32(rnn_relu, data)
  AUTOPAR_FP32_RESULT(sum)
  AUTOPAR_FP32_RESULT(mean)
  return m;
}

KernelTable further_kernels() {
  auto m = recurrent_kernels_and_sums();
  AUTOPAR_LOWER(einsum)
  return m;
}

/// What sums over samples or classes, and recurrent layers.
KernelTable single_kernels() {
  auto m = recurrent_kernels_and_sums();
  AUTOPAR_FP32(nll_loss_nd)
  AUTOPAR_FP32(nll_loss)
  AUTOPAR_FP32(nll_loss2d)
  AUTOPAR_FP32(binary_cross_entropy)
  AUTOPAR_FP32(binary_cross_entropy_with_logits)
  AUTOPAR_FP32(cosine_embedding_loss)
  AUTOPAR_FP32(ctc_loss, IntList)
  AUTOPAR_FP32(ctc_loss, Tensor)
  AUTOPAR_FP32(hinge_embedding_loss)
  AUTOPAR_FP32(huber_loss)
  AUTOPAR_FP32(kl_div)
  AUTOPAR_FP32(l1_loss)
  AUTOPAR_FP32(margin_ranking_loss)
  AUTOPAR_FP32(mse_loss)
  AUTOPAR_FP32(multi_margin_loss)
  AUTOPAR_FP32(multilabel_margin_loss)
  AUTOPAR_FP32(poisson_nll_loss)
  AUTOPAR_FP32(smooth_l1_loss)
  AUTOPAR_FP32(soft_margin_loss)
  AUTOPAR_FP32(triplet_margin_loss)
  AUTOPAR_FP32(logsumexp)
  AUTOPAR_FP32_RESULT(log_softmax, int)
  return m;
}

KernelTable product_kernels() {
  using namespace at;  // which the lists are written for
  KernelTable m;
  AT_FORALL_LOWER_PRECISION_FP(AUTOPAR_LOWER)
  AT_FORALL_PROMOTE(AUTOPAR_PROMOTE)
  AUTOPAR_LOWER(einsum)
  return m;
}

const KernelTable& singles() {
  static const KernelTable table = single_kernels();
  return table;
}

#undef AUTOPAR_LOWER
#undef AUTOPAR_FP32
#undef AUTOPAR_FP32_RESULT
#undef AUTOPAR_PROMOTE

}  // namespace

bool call_autocast_kernel(const c10::OperatorHandle& op, c10::DeviceType device, torch::jit::Stack* stack) {
  static const KernelTable further = further_kernels(), cuda = cuda_kernels();
  if (further.call(op, stack)) return true;
  if (device == c10::DeviceType::CUDA) return cuda.call(op, stack);
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) return false;
  op.callBoxedForDispatchKey(c10::DispatchKey::AutocastCPU, *stack);
  return true;
}

bool call_low_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const KernelTable products = product_kernels();
  return singles().call(op, stack) || products.call(op, stack);
}

namespace {

at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type) {
  const bool is_cast = tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
                       tensor.scalar_type() != type;
  return is_cast ? tensor.to(type) : tensor;
}

/// The widest floating type among the arguments, `low` if none is wider.
at::ScalarType widest(const torch::jit::Stack& stack, std::size_t base, at::ScalarType low) {
  auto type = low;
  for (auto i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const auto own = stack[i].toTensor().scalar_type();
    if (c10::isFloatingType(own)) type = c10::promoteTypes(type, own);
  }
  return type;
}

}  // namespace

bool cast_as_defined(const c10::OperatorHandle& op, at::ScalarType low, torch::jit::Stack& stack) {
  const auto rule = ops::definition_of(op).autocast;
  if (rule == AutocastRule::kAsLibtorch || rule == AutocastRule::kNone) return false;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto base = stack.size() - op.schema().arguments().size();
  const auto type = rule == AutocastRule::kLow       ? low
                    : rule == AutocastRule::kFloat32 ? at::kFloat
                                                     : widest(stack, base, low);
  for (auto i = base; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      stack[i] = cast_to(stack[i].toTensor(), type);
    } else if (stack[i].isTensorList()) {
      auto tensors = stack[i].toTensorVector();
      for (auto& tensor : tensors) tensor = cast_to(tensor, type);
      stack[i] = c10::List<at::Tensor>(tensors);
    }
  }
  return true;
}

std::size_t lowered_arguments(const c10::OperatorHandle& op) {
  const auto& def = ops::definition_of(op);
  const bool is_single = singles().has(op) || def.autocast == AutocastRule::kFloat32;
  return is_single ? 0 : std::min(def.low_arguments, op.schema().arguments().size());
}

bool is_free_of_autocast(const c10::OperatorHandle& op) {
  const auto& def = ops::definition_of(op);
  const bool is_twin = op.schema().name() != def.name;  // written with the functional one
  return def.autocast == AutocastRule::kNone && !is_twin;
}

}  // namespace autopar::trace
