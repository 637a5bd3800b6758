#include "torch/kernels/adam.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "torch/kernels/adam_source.hpp"
#include "torch/kernels/launch.hpp"

namespace autopar {

namespace {

AdamNumbers numbers_of(const AdamUpdate& update) {
  const auto steps = static_cast<double>(update.steps);
  const auto single = [](double number) { return static_cast<float>(number); };
  // As libtorch has them: the step's corrections are powers of the rounded betas.
  const double beta1 = single(update.beta1), beta2 = single(update.beta2);
  return {single(update.lr),
          single(beta1),
          single(beta2),
          single(update.weight_decay),
          single(update.eps),
          single(1 - std::pow(beta1, steps)),
          single(std::sqrt(1 - std::pow(beta2, steps))),
          update.is_decay_decoupled ? 1 : 0};
}

/// Launches as many kernels as the tensors need.
class Launches {
 public:
  Launches(const char* kernel, const AdamUpdate& update)
      : kernel_(kernel), update_(update), numbers_(numbers_of(update)) {}

  void add(std::size_t tensor) {
    const auto elements = update_.parameters[tensor].numel();
    if (elements == 0) return;
    const auto place = static_cast<std::size_t>(table_.count);
    table_.parameter[place] = update_.parameters[tensor].data_ptr();
    table_.gradient[place] = update_.gradients[tensor].const_data_ptr();
    table_.exp_avg[place] = update_.exp_avgs[tensor].data_ptr();
    table_.exp_avg_sq[place] = update_.exp_avg_sqs[tensor].data_ptr();
    const auto& copy = update_.copies[tensor];
    table_.copy[place] = copy.defined() ? copy.data_ptr() : nullptr;
    table_.size[place] = elements;
    table_.first_block[place] = static_cast<int>(blocks_);
    blocks_ += static_cast<unsigned>((elements + AdamTable::kElementsOfBlock - 1) / AdamTable::kElementsOfBlock);
    if (static_cast<std::size_t>(++table_.count) == AdamTable::kMost) launch();
  }

  void launch() {
    if (table_.count == 0) return;
    detail::launch(update_.parameters.front(), kAdamKernels, kernel_, {blocks_, 1, AdamTable::kThreads, 1}, table_,
                   numbers_);
    table_ = {};
    blocks_ = 0;
  }

 private:
  const char* kernel_;
  const AdamUpdate& update_;
  AdamNumbers numbers_;
  AdamTable table_{};
  unsigned blocks_ = 0;
};

}  // namespace

bool step_adam_in_kernels(const AdamUpdate& update) {
  if (update.parameters.empty() || update.parameters.front().scalar_type() != at::kFloat) return false;
  const bool takes_copies = std::ranges::all_of(update.copies, [](const at::Tensor& copy) {
    return !copy.defined() || copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf;
  });
  const auto device = update.parameters.front().device();
  if (!takes_copies || !context_of(device.type()).has_kernels(kAdamKernels, device.index())) return false;
  Launches with_bf16("adam_bf16", update), with_f16("adam_f16", update);
  for (std::size_t i = 0; i < update.parameters.size(); ++i) {
    const auto& copy = update.copies[i];
    (copy.defined() && copy.scalar_type() == at::kHalf ? with_f16 : with_bf16).add(i);
  }
  with_bf16.launch();
  with_f16.launch();
  return true;
}

}  // namespace autopar
