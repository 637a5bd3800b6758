#include "torch/engine/rounded_sums.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "shard/tensor_buffer.hpp"
#include "torch/device/device_context.hpp"

namespace autopar::engine {

namespace {

/// What all_to_all exchanges: the bucket in bf16, and as much memory for the members' addends of this rank's part.
/// [2, members, part]
at::Tensor exchanged(const RoundedBucket& bucket, PartExchange& exchange) {
  auto halves = at::empty({2, bucket.members, bucket.part()}, bucket.flat.options().dtype(at::kBFloat16));
  halves[0].copy_(bucket.flat.view({bucket.members, bucket.part()}));
  exchange.all_to_all(buffer_of(halves));
  return halves;
}

}  // namespace

RoundedBucket::RoundedBucket(at::Tensor gradients, const std::vector<Rank>& ranks, Rank self)
    : flat(std::move(gradients)),
      members(static_cast<std::int64_t>(ranks.size())),
      position(std::lower_bound(ranks.begin(), ranks.end(), self) - ranks.begin()) {}

void reduce_scatter(const RoundedBucket& bucket, const at::Tensor& shard, fused::Destination destination,
                    PartExchange& exchange) {
  const at::NoGradGuard no_grad;
  fused::add_up(exchanged(bucket, exchange)[1], shard, destination);
}

void all_reduce(const RoundedBucket& bucket, PartExchange& exchange) {
  const at::NoGradGuard no_grad;
  const auto halves = exchanged(bucket, exchange);
  fused::add_up(halves[1], halves[0][bucket.position], fused::Destination::kIsWritten);
  exchange.all_gather(buffer_of(halves[0]));
  fused::add_up(halves[0].view({1, bucket.flat.numel()}), bucket.flat,
                fused::Destination::kIsWritten);  // a cast in one pass
}

SummingStream::SummingStream(c10::Device device) : device_(device) {
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

SummingStream::Done SummingStream::run(const std::function<void()>& sum) const {
  if (!stream_) {
    sum();
    return std::nullopt;
  }
  Done done(std::in_place, device_.type());
  done->record(devices::current_stream(device_));
  done->block(*stream_);
  const c10::StreamGuard here(*stream_);
  sum();
  done->record(*stream_);
  return done;
}

void SummingStream::wait_for(Done& done) const {
  if (done) done->block(devices::current_stream(device_));
}

}  // namespace autopar::engine
