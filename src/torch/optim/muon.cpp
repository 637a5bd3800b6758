#include <autopar/torch/optim/muon.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

#include <autopar/core/error.hpp>

#include "torch/optim/tensor_lists.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::optim {

namespace {

void require_matrix(const std::vector<std::int64_t>& sizes, std::size_t parameter) {
  if (sizes.size() >= 2) return;
  std::ostringstream text;
  text << "autopar::optim::Muon takes matrices, but parameter " << parameter << " of its groups has the sizes "
       << at::IntArrayRef(sizes) << "; give biases, norms and other vectors to an optimizer of their own, such as "
       << "autopar::optim::AdamW";
  throw InvalidArgument(text.str());
}

/// Replaces an update by its orthogonalised direction, in place.
void orthogonalise(const at::Tensor& update, std::int64_t iterations) {
  if (update.numel() == 0) return;
  const auto matrix = update.reshape({update.size(0), -1});
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
  const double scale = std::sqrt(std::max(1.0, rows / columns));
  update.copy_(orthogonalised(matrix, iterations).mul_(scale).view_as(update));
}

at::Tensor& momentum_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<MuonParamState>();
  auto& buffer = static_cast<MuonParamState&>(*state).momentum_buffer();
  if (!buffer.defined()) buffer = at::zeros_like(parameter);
  return buffer;
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix, std::int64_t iterations) {
  constexpr double kFirst = 3.4445, kThird = -4.7750, kFifth = 2.0315;
  constexpr double kLeast = 1e-7;  // replaces the norm of zeros
  const bool is_low = at::elementSize(matrix.scalar_type()) < 4;
  auto x = is_low ? matrix.to(at::kFloat) : matrix;
  const bool is_tall = x.size(0) > x.size(1);
  if (is_tall) x = x.t();
  x = x / (x.norm() + kLeast);
  for (std::int64_t k = 0; k < iterations; ++k) {
    const auto square = at::mm(x, x.t());
    const auto factor = at::addmm(square, square, square, kThird, kFifth);
    x = at::addmm(x, factor, x, kFirst, 1);
  }
  return (is_tall ? x.t().contiguous() : x).to(matrix.scalar_type());
}

// ---------------------------------------------------------------- options and state

MuonOptions::MuonOptions(double lr) : lr_(lr) {}
double MuonOptions::get_lr() const { return lr(); }
void MuonOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const MuonOptions& a, const MuonOptions& b) {
  return a.lr() == b.lr() && a.momentum() == b.momentum() && a.nesterov() == b.nesterov() &&
         a.weight_decay() == b.weight_decay() && a.iterations() == b.iterations();
}

void MuonOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(iterations);
}

void MuonOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, iterations);
}

void MuonParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
}

void MuonParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, momentum_buffer);
}

// ---------------------------------------------------------------- Muon

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  TORCH_CHECK(defaults.lr() >= 0, "Invalid learning rate: ", defaults.lr());
  TORCH_CHECK(0 <= defaults.momentum() && defaults.momentum() < 1, "Invalid momentum value: ", defaults.momentum());
  TORCH_CHECK(defaults.weight_decay() >= 0, "Invalid weight_decay value: ", defaults.weight_decay());
  TORCH_CHECK(defaults.iterations() >= 0, "Invalid iterations value: ", defaults.iterations());
}

const OptimizerDescriptor& Muon::descriptor() const {
  using Range = OptimizerDescriptor::Range;
  static const OptimizerDescriptor kDescriptor =
      describe_optimizer<Muon, MuonOptions, MuonParamState>("Muon", StepNeeds::kWholeMatrices)
          .tensor("momentum_buffer", &MuonParamState::momentum_buffer)
          .option("lr", &MuonOptions::lr, Range::kNotNegative)
          .option("momentum", &MuonOptions::momentum, Range::kBelowOne)
          .option("nesterov", &MuonOptions::nesterov, Range::kFlag)
          .option("weight_decay", &MuonOptions::weight_decay, Range::kNotNegative)
          .option("iterations", &MuonOptions::iterations, Range::kCount)
          .temporaries(1);
  return kDescriptor;
}

at::Tensor Muon::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::Muon.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "Muon");
  std::vector<at::Tensor> handles;
  std::vector<std::vector<at::Tensor>> updates;
  std::vector<std::int64_t> iterations;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const MuonOptions&>(group.options());
    for (const auto& parameter : group.params()) {
      require_matrix(collectives().sizes(parameter), handles.size());
      handles.push_back(parameter);
      iterations.push_back(options.iterations());
      auto& update = updates.emplace_back();
      if (!parameter.grad().defined()) continue;
      auto& momentum = momentum_of(*this, parameter);
      momentum.mul_(options.momentum()).add_(parameter.grad());
      update.push_back(options.nesterov() ? parameter.grad().add(momentum, options.momentum()) : momentum.clone());
    }
  }
  collectives().on_wholes(handles, updates, [&](std::size_t i, const std::vector<at::Tensor>& whole) {
    orthogonalise(whole.front(), iterations[i]);
  });
  std::size_t i = 0;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const MuonOptions&>(group.options());
    for (const auto& parameter : group.params()) {
      const auto& update = updates[i++];
      if (update.empty()) continue;
      if (options.weight_decay() != 0) parameter.mul_(1 - options.lr() * options.weight_decay());
      parameter.add_(update.front(), -options.lr());
    }
  }
  return loss;
}

void Muon::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}
void Muon::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

}  // namespace autopar::optim
