#include "torch/calls/loss_watch.hpp"

#include <bit>
#include <cmath>
#include <string>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace autopar::calls {

void LossWatch::add(const at::Tensor& loss, std::int64_t step) {
  while (!coming_.empty() && coming_.front().arrived.query()) {
    judge(coming_.front().host, coming_.front().step);
    coming_.pop_front();
  }
  const auto value = loss.detach();
  if (value.is_cpu()) return judge(value, step);
  auto host = at::empty({}, at::TensorOptions().dtype(value.scalar_type()).pinned_memory(true));
  host.copy_(value.reshape({}), /*non_blocking=*/true);
  c10::Event arrived(value.device().type());
  arrived.record(c10::impl::VirtualGuardImpl(value.device().type()).getStream(value.device()));
  coming_.push_back({std::move(host), std::move(arrived), step});
}

void LossWatch::judge(const at::Tensor& host, std::int64_t step) {
  const auto loss = host.item<double>();
  if (std::isfinite(loss)) return;
  ++not_finite_;
  if (!std::has_single_bit(static_cast<std::uint64_t>(not_finite_))) return;  // not to flood the log
  const auto name = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
  log_.warn("step " + std::to_string(step) + " (calls of the model, counted from 1): the loss is " + name +
            "; it and its gradients are handed on as they are" +
            (not_finite_ == 1 ? "" : " (" + std::to_string(not_finite_) + " losses so far were not finite)"));
}

}  // namespace autopar::calls
