#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <autopar/torch/optimizer_descriptor.hpp>

#include "torch/optim/reductions.hpp"
#include "torch/optim/whole_parameters.hpp"

namespace autopar {

namespace {

class OverWholeParameters final : public ParameterCollectives {
 public:
  std::vector<std::int64_t> sizes(const at::Tensor& handle) const override { return handle.sizes().vec(); }

  at::Tensor sum(const Tensors&, const at::Tensor& partial) override { return partial.to(at::kDouble); }

  at::Tensor norms(const Tensors&, const Tensors& tensors, double p) override {
    const at::NoGradGuard no_grad;
    return optim::detail::norms_of(tensors, p);
  }

  at::Tensor dot(const Tensors&, const Tensors& a, const Tensors& b) override {
    const at::NoGradGuard no_grad;
    at::Tensor sum;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!a[i].defined() || !b[i].defined()) continue;
      const auto own = optim::detail::dot_of(a[i], b[i]);
      sum = sum.defined() ? sum.add_(own.to(sum.device())) : own;
    }
    return sum.defined() ? sum : at::zeros({}, at::kDouble);
  }

  std::vector<double> of_ranks(double mine) override { return {mine}; }

  void on_wholes(const Tensors&, const std::vector<Tensors>& tensors, const OnWhole& on_whole,
                 const std::vector<Tensors>&) override {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].empty()) on_whole(i, tensors[i]);
    }
  }
};

}  // namespace

std::shared_ptr<ParameterCollectives> optim::over_whole_parameters() { return std::make_shared<OverWholeParameters>(); }

ParameterCollectives& DescribedOptimizer::collectives() {
  if (attached_ != nullptr) return *attached_;
  if (own_ == nullptr) own_ = optim::over_whole_parameters();
  return *own_;
}

}  // namespace autopar
