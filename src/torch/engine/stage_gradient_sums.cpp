#include "torch/engine/stage_gradient_sums.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "shard/tensor_buffer.hpp"

namespace autopar::engine {

void StageGradientSums::start() {
  const auto groups = runtime_.bucket_layouts().size();
  buckets_.clear();
  buckets_.resize(groups);
  shares_.assign(groups, at::Tensor());
  on_their_way_.clear();
  sums_.assign(runtime_.parameters().size(), at::Tensor());
  for (std::size_t group = 0; group < groups; ++group) {
    const int number = static_cast<int>(group);
    if (!runtime_.in_group(number)) continue;
    const auto& layout = runtime_.bucket_layouts()[group];
    const bool in_computes = runtime_.zero_of(number) >= 2;
    sums_in_some_computes_ = sums_in_some_computes_ || in_computes;
    if (in_computes) {
      const auto& unit = runtime_.shards_of(number)->unit();
      shares_[group] = at::zeros({unit.part()}, at::TensorOptions().dtype(unit.dtype).device(runtime_.device()));
    } else {
      buckets_[group] = make_buckets(group);
    }
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
      const auto& place = layout.places()[i];
      const auto parameter = ValueId::of(place.form.key);
      if (!in_computes) sum_of(parameter) = buckets_[group]->views()[i];
      bucket_of_[parameter] = {number, place.bucket};
      place_of_[parameter] = i;
    }
  }
  for (const auto& stage : runtime_.stages()) {
    for (const auto parameter : stage->parameters()) {
      const auto bucket = bucket_of_.find(parameter);
      if (bucket != bucket_of_.end() && !sums_in_computes(parameter)) ++missing_[bucket->second];
    }
  }
}

void StageGradientSums::unshard(const std::vector<ValueId>& parameters) {
  for (const auto parameter : parameters) {
    const auto bucket = bucket_of_.find(parameter);
    if (bucket != bucket_of_.end()) gate_->unshard(bucket->second.first, bucket->second.second);
  }
}

// ---------------------------------------------------------------- a compute action

bool StageGradientSums::sums_in_computes(ValueId parameter) const {
  if (!sums_in_some_computes_) return false;
  const auto bucket = bucket_of_.find(parameter);
  return bucket != bucket_of_.end() && runtime_.zero_of(bucket->second.first) >= 2;
}

void StageGradientSums::expect(const Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    if (!sums_in_computes(parameter)) continue;
    missing_[bucket_of_.at(parameter)] = 0;
    summed_.erase(bucket_of_.at(parameter).first);
  }
  for (const auto parameter : stage.parameters()) {
    if (sums_in_computes(parameter)) ++missing_[bucket_of_.at(parameter)];
  }
}

void StageGradientSums::report_rest(const Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    if (sums_in_computes(parameter)) move_into_bucket(parameter);
  }
}

void StageGradientSums::take(Stage& stage, ValueId parameter, bool last) {
  if (sums_in_computes(parameter)) sum_of(parameter) = std::move(stage.compute_copy(parameter).mutable_grad());
  complete(parameter, last);
}

void StageGradientSums::complete(ValueId parameter, bool last) {
  const bool in_computes = sums_in_computes(parameter);
  if (in_computes) move_into_bucket(parameter);
  if (last || in_computes) count_down(parameter);
}

void StageGradientSums::move_into_bucket(ValueId parameter) {
  auto& gradient = sum_of(parameter);
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  const auto group = static_cast<std::size_t>(bucket_of_.at(parameter).first);
  if (summed_.count(bucket_of_.at(parameter).first) > 0) {
    throw InvalidArgument(
        "the gradient of parameter '" + runtime_.graph().value(parameter).name +
        "' came later in its backward than the operators that read it say, when its part was summed; set zero = 1");
  }
  auto& buckets = buckets_[group];
  if (buckets == nullptr) buckets = make_buckets(group);
  runtime_.unwritten()->add_to(buckets->views()[place_of_.at(parameter)], gradient);
  gradient.reset();
}

void StageGradientSums::add(const Stage& stage, ValueId parameter, at::Tensor gradient, bool last) {
  if (gradient.defined()) {
    auto& sum = sum_of(parameter);
    const auto& variable = stage.compute_copy(parameter);
    if (gradient.scalar_type() != variable.scalar_type()) gradient = gradient.to(variable.scalar_type());
    if (sum.defined()) {
      runtime_.unwritten()->add_to(sum, gradient);
    } else if (torch::autograd::utils::obeys_layout_contract(gradient, variable)) {
      // A formula may give a view of a product. zero_grad() could not detach it, and its base would hold memory.
      sum = gradient.is_view() ? gradient.detach() : std::move(gradient);
    } else {
      sum = torch::autograd::utils::clone_obey_contract(gradient, variable);
    }
  }
  complete(parameter, last);
}

at::Tensor StageGradientSums::growing_sum(const Stage& stage, ValueId parameter) const {
  const auto& sum = sums_[runtime_.position_of(parameter)];
  const bool takes_more =
      sum.defined() && sum.is_contiguous() && sum.scalar_type() == stage.compute_copy(parameter).scalar_type();
  if (takes_more) runtime_.unwritten()->zero(sum);
  return takes_more ? sum : at::Tensor();
}

void StageGradientSums::count_down(ValueId parameter) {
  const auto found = bucket_of_.find(parameter);
  if (found == bucket_of_.end() || --missing_[found->second] > 0) return;
  const auto [group, bucket] = found->second;
  gate_->reshard(group, bucket);  // all readers of its parameters have run
  gate_->gradients_ready(group, bucket);
}

void StageGradientSums::bind(Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    stage.compute_copy(parameter).mutable_grad() = sum_of(parameter);
  }
}

// Autograd stores the first gradient without copying it. With one sample, the gradient of p in x + p.unsqueeze(0) is a
// view of x's gradient. Further gradients are added in place, so the memory must not be shared: deferred gradients, or
// gradients that are being sent, would change.
void StageGradientSums::unbind(Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    auto& sum = sum_of(parameter);
    const bool is_first = !sum.defined();
    sum = std::move(stage.compute_copy(parameter).mutable_grad());
    if (is_first && sum.defined() && sum.has_storage() && sum.storage().use_count() > 1) sum = sum.clone();
  }
}

// ---------------------------------------------------------------- reductions

at::Tensor StageGradientSums::take_bucket(const Action& action) {
  const auto group = static_cast<std::size_t>(action.group);
  auto& buckets = buckets_[group];
  if (action.microbatch < 0) {
    AUTOPAR_ASSERT(buckets != nullptr, "a rank reduces gradients that it does not have");
    return buckets->flat(action.bucket);
  }
  if (buckets == nullptr) buckets = make_buckets(group);
  summed_.insert(action.group);
  const auto flat = buckets->flat(action.bucket);
  buckets.reset();
  return flat;
}

Buffer StageGradientSums::bucket(const Action& action) {
  return buffer_of(on_their_way_[action.group].emplace_back(Sum{take_bucket(action)}).flat);
}

void StageGradientSums::sum_parts(const Action& action, PartExchange& exchange) {
  const auto group = static_cast<std::size_t>(action.group);
  const auto& stream = *runtime_.summing_stream_of(action);
  auto& sum = on_their_way_[action.group].emplace_back(Sum{take_bucket(action)});
  const RoundedBucket bucket(sum.flat, runtime_.pipeline().groups[group].ranks, runtime_.rank());
  if (action.kind == ActionKind::kAllReduce) {
    sum.done = stream.run([&] { all_reduce(bucket, exchange); });
    return;
  }
  const auto destination = shares_[group].defined() ? fused::Destination::kAdds : fused::Destination::kIsWritten;
  if (!shares_[group].defined()) shares_[group] = at::empty({bucket.part()}, sum.flat.options());
  sum.done = stream.run([&] { reduce_scatter(bucket, shares_[group], destination, exchange); });
}

void StageGradientSums::reduced(const Action& action) {
  const at::NoGradGuard no_grad;
  const auto group = static_cast<std::size_t>(action.group);
  auto& sums = on_their_way_.at(action.group);
  auto sum = std::move(sums.front());
  sums.pop_front();
  const auto* const stream = runtime_.summing_stream_of(action);
  if (stream != nullptr) stream->wait_for(sum.done);
  if (action.kind != ActionKind::kReduceScatter) return;
  const auto own = runtime_.shards_of(action.group)->own();
  const auto part = sum.flat.narrow(0, own.begin, own.size());
  if (action.microbatch >= 0) {
    if (stream == nullptr) shares_[group].add_(part);
    return;
  }
  if (stream == nullptr) shares_[group] = part.clone();
  for (const auto& place : runtime_.bucket_layouts()[group].places()) {
    sums_[runtime_.position_of(ValueId::of(place.form.key))].reset();
  }
  buckets_[group].reset();
}

DType StageGradientSums::bucket_dtype(const Action& action) const {
  const auto& layout = runtime_.bucket_layouts()[static_cast<std::size_t>(action.group)];
  return summed_dtype(layout.buckets()[static_cast<std::size_t>(action.bucket)].dtype);
}

std::unique_ptr<parameters::GradientBuckets> StageGradientSums::make_buckets(std::size_t group) const {
  return std::make_unique<parameters::GradientBuckets>(runtime_.bucket_layouts()[group], runtime_.device(),
                                                       runtime_.unwritten());
}

std::deque<at::Tensor> StageGradientSums::take_all() {
  for (const auto& buckets : buckets_) {
    if (buckets != nullptr) buckets->complete();
  }
  for (std::size_t group = 0; group < shares_.size(); ++group) {
    if (!shares_[group].defined()) continue;
    for (const auto& place : runtime_.bucket_layouts()[group].places()) {
      const auto within = runtime_.within_part(static_cast<int>(group), place);
      sums_[runtime_.position_of(ValueId::of(place.form.key))] =
          parameters::part_of(shares_[group], within.begin, {within.size()});
    }
  }
  shares_.clear();
  return std::move(sums_);
}

}  // namespace autopar::engine
