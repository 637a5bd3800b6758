#include <autopar/torch/session.hpp>

#include <exception>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "torch/checkpoint/format.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar {

namespace {

/// That one of them is of a class whose state is not known.
std::exception_ptr unknown_among(const std::vector<torch::optim::Optimizer*>& optimizers) {
  try {
    for (const auto* optimizer : optimizers) static_cast<void>(parameters::descriptor_of(*optimizer));
    return nullptr;
  } catch (const InvalidArgument&) {
    return std::current_exception();
  }
}

}  // namespace

// ---------------------------------------------------------------- Impl: what needs no file of its own

void Session::Impl::deploy(Plan plan) {
  if (deployment_.has_plan())
    throw InvalidArgument("deploy(plan): the model is deployed already; call it before the first call");
  given_plan_ = std::move(plan);
}

void Session::Impl::recapture() {
  programs_.clear();
  recorded_.reset();
}

const Plan& Session::Impl::plan() const {
  if (!deployment_.has_plan())
    throw InvalidArgument("plan(): there is no plan yet; call the model or prepare(args...) first");
  return deployment_.plan();
}

c10::Device Session::Impl::device() const { return resolved_ ? deployment_.device() : c10::Device(c10::kCPU); }

void Session::Impl::require_deployed(const char* member) const {
  if (!deployed_) {
    throw InvalidArgument(std::string(member) +
                          ": the model is not deployed yet; call the model or prepare(args...) first");
  }
}

std::vector<checkpoint::PlacedTensor> Session::Impl::placed() const {
  std::vector<checkpoint::PlacedTensor> tensors;
  for (const auto& tensor : parameters_.tensors()) tensors.push_back(placed(tensor));
  return tensors;
}

checkpoint::PlacedTensor Session::Impl::placed(const parameters::StateTensor& tensor) const {
  return {tensor.name(), tensor.handle, tensor.holders, tensor.sizes, parameters_.elements_of_holders(tensor)};
}

at::Tensor Session::Impl::gather(const at::Tensor& handle) {
  require_deployed("gather");
  const auto& tensor = parameters_.of(handle);
  exchange(world_, next_header(CallKind::kGather), tensor.name());
  return guarded("gather", [&] { return checkpoint::gather_tensor(world_, placed(tensor)); });
}

std::vector<std::pair<std::string, at::Tensor>> Session::Impl::gather_state() {
  require_deployed("gather_state");
  exchange(world_, next_header(CallKind::kGather), "state");
  const auto values = guarded("gather_state", [&] { return checkpoint::gather_tensors(world_, placed()); });
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const auto& name : parameters_.tensors()[i].names) state.emplace_back(name, values[i]);
  }
  return state;
}

std::unique_ptr<torch::optim::Optimizer> Session::Impl::gather_optimizer(torch::optim::Optimizer& optimizer) {
  require_deployed("gather_optimizer");
  static_cast<void>(parameters::descriptor_of(optimizer));
  exchange(world_, next_header(CallKind::kGather), "optimizer");
  return guarded("gather_optimizer",
                 [&] { return autopar::checkpoint::gather_optimizer(world_, placed(), optimizer); });
}

void Session::Impl::save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers) {
  require_deployed("save");
  exchange(world_, next_header(CallKind::kSave), folder, unknown_among(optimizers));
  const auto scaler = scaler_ ? std::optional(scaler_->state()) : std::nullopt;
  in_step("save", [&] {
    checkpoint::save_checkpoint(world_, checkpoint::single_file(), folder, placed(), optimizers,
                                {seed_, stats_.calls, scaler});
  });
}

void Session::Impl::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                         const LoadOptions& options) {
  if (!deployed_) resolve_once();
  const auto details = folder + (options.optimizer == Missing::kAllowed ? ", without an optimizer that it lacks" : "");
  exchange(world_, next_header(CallKind::kLoad), details, unknown_among(optimizers));
  if (options_.plan_only) return;  // nobody asks for values
  in_step("load", [&] {
    if (deployed_)
      take_info(checkpoint::load_checkpoint(world_, checkpoint::single_file(), folder, placed(), optimizers, options));
    else
      early_loads_.add(world_, checkpoint::single_file(), folder, placed(), optimizers, options, init_.get());
  });
  watch_.forget();
}

void Session::Impl::take_info(const std::optional<checkpoint::CheckpointInfo>& info) {
  if (!info) return;
  seed_ = info->seed;
  stats_.calls = info->calls;
  if (!scaler_ || !info->scaler) return;
  scaler_.emplace(*info->scaler);
  note_scaler();
}

// ---------------------------------------------------------------- Session

// What runs from here on knows what elements handles have.

Session::Session(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
                 std::shared_ptr<InitRecord> init, std::span<const std::byte> members)
    : impl_(std::make_shared<Impl>(world, std::move(module), std::move(code), std::move(planner), std::move(init),
                                   members)) {}
Session::~Session() = default;

bool Session::only_plans(const Options& code) {
  try {
    return resolve_options(code, process_config_sources()).options.plan_only;
  } catch (const Error&) {
    return false;
  }
}

CallResult Session::call(const Flattened& arguments, const ForwardFunction& forward) {
  const auto inside = impl_->world().enter("forward");
  const parameters::PartAccess access;
  return impl_->call(arguments, forward);
}
void Session::prepare(const Flattened& arguments, const ForwardFunction& forward) {
  const auto inside = impl_->world().enter("prepare");
  const parameters::PartAccess access;
  impl_->prepare(arguments, forward);
}
void Session::deploy(Plan plan) { impl_->deploy(std::move(plan)); }
void Session::recapture() {
  const auto inside = impl_->world().enter("recapture");
  impl_->recapture();
}
const Plan& Session::plan() const { return impl_->plan(); }
bool Session::deployed() const { return impl_->deployed(); }
const SessionStats& Session::stats() const { return impl_->stats(); }
c10::Device Session::device() const { return impl_->device(); }
World& Session::world() { return impl_->world(); }

bool Session::owns(const at::Tensor& handle) const { return impl_->parameters().holds(impl_->parameters().of(handle)); }

std::vector<at::Tensor> Session::owned_parameters() const {
  std::vector<at::Tensor> owned;
  for (const auto& tensor : impl_->parameters().tensors()) {
    if (tensor.is_parameter && impl_->parameters().holds(tensor)) owned.push_back(tensor.handle);
  }
  return owned;
}

std::int64_t Session::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& tensor : impl_->parameters().tensors()) {
    if (!tensor.is_parameter) continue;
    std::int64_t elements = 1;
    for (const auto size : tensor.sizes) elements *= size;
    count += elements;
  }
  return count;
}

ParameterShard Session::shard(const at::Tensor& handle) const { return impl_->shard(handle); }
void Session::for_whole_parameters(const std::vector<at::Tensor>& handles,
                                   const std::vector<std::vector<at::Tensor>>& locals,
                                   const std::function<void(std::size_t, std::vector<at::Tensor>&)>& function,
                                   std::size_t written) {
  const auto inside = impl_->world().enter("for_whole_parameters");
  impl_->for_whole_parameters(handles, locals, function, written);
}
void Session::for_whole_parameters(const WholeParameterFunction& function) {
  const auto inside = impl_->world().enter("for_whole_parameters");
  impl_->for_whole_parameters(function);
}
at::Tensor Session::gather(const at::Tensor& handle) {
  const auto inside = impl_->world().enter("gather");
  const parameters::PartAccess access;
  return impl_->gather(handle);
}
std::vector<std::pair<std::string, at::Tensor>> Session::gather_state() {
  const auto inside = impl_->world().enter("gather_state");
  const parameters::PartAccess access;
  return impl_->gather_state();
}
std::unique_ptr<torch::optim::Optimizer> Session::gather_optimizer(torch::optim::Optimizer& optimizer) {
  const auto inside = impl_->world().enter("gather_optimizer");
  const parameters::PartAccess access;
  return impl_->gather_optimizer(optimizer);
}
void Session::attach(torch::optim::Optimizer& optimizer) {
  const auto inside = impl_->world().enter("attach");
  static_cast<void>(parameters::descriptor_of(optimizer));  // refuses what has a state that is not known
  const parameters::PartAccess access;
  impl_->attach(optimizer);
}
at::Tensor Session::norm(const std::vector<at::Tensor>& tensors, double ord) {
  const auto inside = impl_->world().enter("norm");
  return impl_->norm(tensors, ord);
}
at::Tensor Session::dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  const auto inside = impl_->world().enter("dot");
  return impl_->dot(a, b);
}
at::Tensor Session::clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                   bool error_if_nonfinite) {
  const auto inside = impl_->world().enter("clip_grad_norm_");
  return impl_->clip_grad_norm(handles, max_norm, norm_type, error_if_nonfinite);
}
void Session::set_accumulating(bool accumulating) { impl_->set_accumulating(accumulating); }
bool Session::accumulating() const { return impl_->accumulating(); }
void Session::sync_gradients() {
  const auto inside = impl_->world().enter("sync_gradients");
  const parameters::PartAccess access;
  impl_->sync_gradients();
}
void Session::drop_accumulated() { impl_->drop_accumulated(); }
void Session::save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers) {
  const auto inside = impl_->world().enter("save");
  const parameters::PartAccess access;
  impl_->save(folder, optimizers);
}
void Session::load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                   const LoadOptions& options) {
  const auto inside = impl_->world().enter("load");
  const parameters::PartAccess access;
  impl_->load(folder, optimizers, options);
}

}  // namespace autopar
