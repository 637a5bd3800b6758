#include <autopar/torch/parallel_module.hpp>

#include <autopar/core/error.hpp>
#include <autopar/torch/device.hpp>

namespace autopar {

ParallelModule::ParallelModule(World& world, std::shared_ptr<torch::nn::Module> module, Options&& options,
                               PlanFunction planner, std::shared_ptr<InitRecord> init,
                               std::span<const std::byte> members)
    : torch::nn::Module("AutoParallel"), module_(std::move(module)) {
  expect(module_ != nullptr, "AutoParallel: the module is null; construct it first");
  const torch::nn::Module& base = *module_;
  torch::nn::Module::train(base.is_training());  // set before the children exist, whose mode may differ
  for (const auto& item : base.named_parameters(false)) {
    register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  for (const auto& item : base.named_buffers(false)) register_buffer(item.key(), item.value());
  for (const auto& item : base.named_children()) register_module(item.key(), item.value());
  session_ =
      std::make_shared<Session>(world, module_, std::move(options), std::move(planner), std::move(init), members);
}

std::shared_ptr<InitRecord> ParallelModule::record(const std::function<void()>& construct, const Options& options) {
  const auto drawing = Session::only_plans(options) ? Drawing::kAtMaterialisation : Drawing::kAtOnce;
  return std::make_shared<InitRecord>(InitRecord::record(construct, drawing));
}

std::size_t ParallelModule::number_of(const std::string& function) {
  return functions_.try_emplace(function, functions_.size()).first->second;
}

ParameterHandles ParallelModule::parameters(bool recurse) const {
  return {torch::nn::Module::parameters(recurse),
          [session = session_](const auto&... arguments) { return session->clip_grad_norm(arguments...); }};
}

torch::OrderedDict<std::string, at::Tensor> ParallelModule::gather_state() {
  torch::OrderedDict<std::string, at::Tensor> state;
  for (auto& [name, value] : session_->gather_state()) state.insert(name, value);
  return state;
}

void ParallelModule::zero_grad(bool set_to_none) {
  session_->drop_accumulated();
  torch::nn::Module::zero_grad(set_to_none);
}

void ParallelModule::train(bool on) {
  torch::nn::Module::train(on);
  module_->train(on);
}

std::shared_ptr<torch::nn::Module> ParallelModule::clone(const std::optional<torch::Device>&) const {
  throw InvalidArgument(
      "clone: an AutoParallel model cannot be cloned, its parameters live on several ranks; use "
      "gather_state() and construct another one");
}

void ParallelModule::save(torch::serialize::OutputArchive&) const {
  throw InvalidArgument("torch::save: no rank has all parameters of an AutoParallel model; use model->save(folder)");
}

void ParallelModule::load(torch::serialize::InputArchive&) {
  throw InvalidArgument("torch::load: no rank has all parameters of an AutoParallel model; use model->load(folder)");
}

void ParallelModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  to(dtype, non_blocking);
  to(device, non_blocking);
}

void ParallelModule::to(torch::Dtype dtype, bool non_blocking) {
  if (session_->deployed()) {
    throw InvalidArgument(
        "to(dtype): the model is deployed and its plan depends on its types; convert the module "
        "before the first call");
  }
  torch::nn::Module::to(dtype, non_blocking);
}

void ParallelModule::to(torch::Device device, bool) {
  const auto own = session_->deployed() ? session_->device() : autopar::device(session_->world());
  if (device.type() == own.type() && (!device.has_index() || device == own)) return;
  throw InvalidArgument("to(" + device.str() + "): this rank's device is " + own.str() +
                        "; choose devices with Options::device, the model moves there by itself");
}

void ParallelModule::pretty_print(std::ostream& stream) const {
  stream << "autopar::AutoParallel(" << module_->name() << ")";
}

}  // namespace autopar
