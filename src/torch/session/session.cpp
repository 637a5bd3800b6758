#include <autopar/torch/session.hpp>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "torch/parameters/parameter_shard.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar {

// What runs from here on knows what elements handles have.

Session::Session(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
                 std::shared_ptr<InitRecord> init, std::span<const std::byte> members)
    : impl_(std::make_shared<session::Impl>(world, std::move(module), std::move(code), std::move(planner),
                                            std::move(init), members)) {}
Session::~Session() { impl_->parts().runner.trace().finish(); }

bool Session::only_plans(const Options& code) {
  try {
    return resolve_options(code, process_config_sources()).options.plan_only;
  } catch (const Error&) {
    return false;
  }
}

CallResult Session::call(const Flattened& arguments, const ForwardFunction& forward) {
  const auto inside = impl_->parts().ranks->enter("forward");
  const parameters::PartAccess access;
  return impl_->call(arguments, forward);
}
void Session::prepare(const Flattened& arguments, const ForwardFunction& forward) {
  const auto inside = impl_->parts().ranks->enter("prepare");
  const parameters::PartAccess access;
  impl_->prepare(arguments, forward);
}
void Session::deploy(Plan plan) { impl_->deploy(std::move(plan)); }
void Session::recapture() {
  const auto inside = impl_->parts().ranks->enter("recapture");
  impl_->recapture();
}
const Plan& Session::plan() const { return impl_->plan(); }
bool Session::deployed() const { return impl_->parts().deployer.deployed(); }
void Session::begin_step() { impl_->begin_step(); }
const SessionStats& Session::stats() const { return impl_->stats(); }
int Session::snapshot_every() const {
  const auto& options = impl_->parts().options;
  if (options.resolved()) return options.get().snapshot_every;
  try {
    return resolve_options(options.get(), process_config_sources()).options.snapshot_every;
  } catch (const Error&) {
    return 0;
  }
}
c10::Device Session::device() const { return impl_->device(); }
World& Session::world() { return impl_->parts().ranks->world(); }

bool Session::owns(const at::Tensor& handle) const {
  const auto& parameters = impl_->parts().parameters;
  return parameters.holds(parameters.of(handle));
}

std::vector<at::Tensor> Session::owned_parameters() const {
  std::vector<at::Tensor> owned;
  for (const auto& tensor : impl_->parts().parameters.tensors()) {
    if (tensor.is_parameter && impl_->parts().parameters.holds(tensor)) owned.push_back(tensor.handle);
  }
  return owned;
}

std::int64_t Session::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& tensor : impl_->parts().parameters.tensors()) {
    if (!tensor.is_parameter) continue;
    std::int64_t elements = 1;
    for (const auto size : tensor.sizes) elements *= size;
    count += elements;
  }
  return count;
}

ParameterShard Session::shard(const at::Tensor& handle) const {
  const auto& parameters = impl_->deployed_parts("shard").parameters;
  return parameters::shard_here(parameters, parameters.of(handle));
}
void Session::for_whole_parameters(const std::vector<at::Tensor>& handles,
                                   const std::vector<std::vector<at::Tensor>>& locals,
                                   const std::function<void(std::size_t, std::vector<at::Tensor>&)>& function,
                                   std::size_t written) {
  const auto inside = impl_->parts().ranks->enter("for_whole_parameters");
  impl_->deployed_parts("for_whole_parameters").wholes.run(handles, locals, function, written);
}
void Session::for_whole_parameters(const WholeParameterFunction& function) {
  const auto inside = impl_->parts().ranks->enter("for_whole_parameters");
  impl_->deployed_parts("for_whole_parameters").wholes.run(function);
}
at::Tensor Session::gather(const at::Tensor& handle) {
  const auto inside = impl_->parts().ranks->enter("gather");
  const parameters::PartAccess access;
  return impl_->deployed_parts("gather").checkpoints.gather(handle);
}
std::vector<std::pair<std::string, at::Tensor>> Session::gather_state() {
  const auto inside = impl_->parts().ranks->enter("gather_state");
  const parameters::PartAccess access;
  return impl_->deployed_parts("gather_state").checkpoints.gather_state();
}
std::unique_ptr<torch::optim::Optimizer> Session::gather_optimizer(torch::optim::Optimizer& optimizer) {
  const auto inside = impl_->parts().ranks->enter("gather_optimizer");
  const parameters::PartAccess access;
  return impl_->deployed_parts("gather_optimizer").checkpoints.gather_optimizer(optimizer);
}
void Session::attach(torch::optim::Optimizer& optimizer) {
  const auto inside = impl_->parts().ranks->enter("attach");
  static_cast<void>(parameters::descriptor_of(optimizer));  // refuses what has a state that is not known
  const parameters::PartAccess access;
  impl_->attach(optimizer);
}
at::Tensor Session::norm(const std::vector<at::Tensor>& tensors, double ord) {
  const auto inside = impl_->parts().ranks->enter("norm");
  return impl_->deployed_parts("norm").sums.norm(tensors, ord);
}
at::Tensor Session::dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  const auto inside = impl_->parts().ranks->enter("dot");
  return impl_->deployed_parts("dot").sums.dot(a, b);
}
at::Tensor Session::clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                   bool error_if_nonfinite) {
  const auto inside = impl_->parts().ranks->enter("clip_grad_norm_");
  return impl_->deployed_parts("clip_grad_norm_").sums.clip_grad_norm(handles, max_norm, norm_type, error_if_nonfinite);
}
void Session::set_accumulating(bool accumulating) { impl_->parts().gradients.set_accumulating(accumulating); }
bool Session::accumulating() const { return impl_->parts().gradients.accumulating(); }
void Session::sync_gradients() {
  const auto inside = impl_->parts().ranks->enter("sync_gradients");
  const parameters::PartAccess access;
  impl_->sync_gradients();
}
void Session::drop_accumulated() { impl_->parts().gradients.drop(); }
void Session::keep(const std::string& name, detail::KeptObject object, KeptScope scope) {
  impl_->parts().checkpoints.kept().add(name, std::move(object), scope);
}
void Session::save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                   const SaveOptions& options) {
  const auto inside = impl_->parts().ranks->enter("save");
  const parameters::PartAccess access;
  impl_->deployed_parts("save").checkpoints.save(folder, optimizers, options);
}
SavedParts Session::save_parts(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                               const AcceptParts& accept) {
  const auto inside = impl_->parts().ranks->enter("save");
  const parameters::PartAccess access;
  return impl_->deployed_parts("save_parts").checkpoints.save_parts(folder, optimizers, accept);
}
void Session::wait() {
  const auto inside = impl_->parts().ranks->enter("wait");
  impl_->parts().checkpoints.wait();
}
void Session::export_weights(const std::string& file, std::optional<c10::ScalarType> dtype) {
  const auto inside = impl_->parts().ranks->enter("export_weights");
  const parameters::PartAccess access;
  impl_->deployed_parts("export_weights").checkpoints.export_weights(file, dtype);
}
LoadReport Session::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                         const LoadOptions& options) {
  const auto inside = impl_->parts().ranks->enter("load");
  const parameters::PartAccess access;
  return impl_->load(folder, optimizers, options);
}

}  // namespace autopar
