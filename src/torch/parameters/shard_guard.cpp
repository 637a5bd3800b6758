#include "torch/parameters/shard_guard.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>
#include <torch/library.h>

#include <autopar/core/error.hpp>

#include "torch/ir/ivalues.hpp"

namespace autopar {
namespace {

constexpr c10::DispatchKey kShardKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

struct ShardTag : c10::BackendMeta {
  std::string share;
};

bool is_shard(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kShardKey); }

/// Views have the key and no tag. @pre is_shard(tensor)
std::string description_of(const at::Tensor& tensor) {
  const auto* tag = dynamic_cast<const ShardTag*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return tag != nullptr ? tag->share : "it is a view of a parameter that is held in shards (ZeRO)";
}

/// A tensor among an operator's arguments.
struct Operand {
  at::Tensor tensor;
  std::size_t argument;
  std::optional<std::size_t> element;  ///< where the argument is a list
};

std::vector<Operand> operands_of(const torch::jit::Stack& stack, std::size_t base) {
  std::vector<Operand> operands;
  for (std::size_t i = base; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      operands.push_back({stack[i].toTensor(), i, std::nullopt});
    } else if (detail::is_tensor_list(stack[i])) {
      const auto list = stack[i].toListRef();
      for (std::size_t e = 0; e < list.size(); ++e) {
        if (list[e].isTensor()) operands.push_back({list[e].toTensor(), i, e});
      }
    }
  }
  return operands;
}

/// Whether an operator on lists, or on tensors, takes the two together.
bool meet(const Operand& a, const Operand& b) {
  return a.argument != b.argument && (!a.element || !b.element || a.element == b.element);
}

/// Operators that look at another tensor's type, or compare sizes themselves.
bool is_exempt(const c10::OperatorHandle& op) {
  static constexpr std::string_view kNames[] = {"aten::_has_compatible_shallow_copy_type",
                                                "aten::is_same_size",
                                                "aten::to",
                                                "aten::type_as",
                                                "aten::set_",
                                                "aten::is_set_to"};
  return std::ranges::find(kNames, op.schema().name()) != std::end(kNames);
}

void require_own_sizes(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto arguments = op.schema().arguments().size();
  if (arguments < 2 || is_exempt(op)) return;
  const auto operands = operands_of(stack, stack.size() - arguments);
  for (const auto& share : operands) {
    if (!is_shard(share.tensor) || share.tensor.dim() == 0) continue;
    for (const auto& other : operands) {
      if (!other.tensor.defined() || other.tensor.dim() == 0 || !meet(share, other)) continue;
      if (other.tensor.sizes() == share.tensor.sizes()) continue;
      std::ostringstream message;
      message << op.schema().name() << " of sizes " << share.tensor.sizes() << " and " << other.tensor.sizes() << ": "
              << description_of(share.tensor)
              << ", flat, and goes with tensors of as many elements only. A copy that was made before the "
              << "first call has the whole parameter's: call model->prepare(arguments...) first, then copy "
              << "model->owned_parameters(); or take the whole parameter with model->gather(p). Methods of the module "
                 "run by "
              << "model->call(&Net::method, arguments...)";
      throw InvalidArgument(message.str());
    }
  }
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  require_own_sizes(op, *stack);
  const c10::impl::ExcludeDispatchKeyGuard below(kShardKey);
  op.callBoxed(stack);
}

using Metadata = std::unordered_map<std::string, bool>;

/// What libtorch calls for each tensor that it writes to a file, in front of what was there.
void refuse_to_save_shards(c10::DeviceType device) {
  auto& hook = torch::jit::GetBackendMetaSerialization()[static_cast<std::size_t>(device)];
  const auto before = hook ? hook->first : torch::jit::BackendMetaPtr();
  const auto save = [before](const at::Tensor& tensor, Metadata& metadata) {
    if (is_shard(tensor)) {
      throw InvalidArgument("torch::save: " + description_of(tensor) +
                            "; use model->save(folder, optimizers...), which all ranks call, "
                            "or save on rank 0 the tensors that model->gather_state() gives, and for an optimizer what "
                            "model->gather_optimizer(optimizer) gives");
    }
    if (before) before(tensor, metadata);
  };
  const auto load = hook ? hook->second : [](const at::Tensor&, Metadata&) {};
  hook.emplace(save, load);
}

void install() {
  static const bool installed = [] {
    static torch::Library library(torch::Library::IMPL, "_", c10::make_optional(kShardKey), __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
    refuse_to_save_shards(c10::DeviceType::CPU);
    refuse_to_save_shards(c10::DeviceType::CUDA);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

at::Tensor guarded_shard(const at::Tensor& data, const std::string& share) {
  install();
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(data.storage()),
                                                         data.key_set().add(kShardKey), data.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(data.sizes(), data.strides(), data.storage_offset());
  auto tag = c10::make_intrusive<ShardTag>();
  tag->share = share;
  impl->set_backend_meta(std::move(tag));
  return tensor;
}

}  // namespace autopar
