#include "torch/parameters/gradient_buckets.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <autopar/core/error.hpp>

namespace autopar::parameters {

namespace {

using c10::ScalarType;

constexpr std::array<std::pair<DType, ScalarType>, 12> kTypes{{{DType::kBool, ScalarType::Bool},
                                                               {DType::kU8, ScalarType::Byte},
                                                               {DType::kI8, ScalarType::Char},
                                                               {DType::kI16, ScalarType::Short},
                                                               {DType::kI32, ScalarType::Int},
                                                               {DType::kI64, ScalarType::Long},
                                                               {DType::kF16, ScalarType::Half},
                                                               {DType::kBF16, ScalarType::BFloat16},
                                                               {DType::kF32, ScalarType::Float},
                                                               {DType::kF64, ScalarType::Double},
                                                               {DType::kC64, ScalarType::ComplexFloat},
                                                               {DType::kC128, ScalarType::ComplexDouble}}};

}  // namespace

at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto part = at::empty({0}, flat.options());
  if (!strides.empty()) return part.set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
  return part.set_(flat.storage(), flat.storage_offset() + offset, sizes, c10::contiguous_strides(sizes));
}

BucketLayout::BucketLayout(const std::vector<GradientForm>& forms, Bytes limit) {
  std::vector<BucketItem> items;
  for (const auto& form : forms) {
    items.push_back(BucketItem::of(c10::multiply_integers(form.sizes),
                                   static_cast<std::int64_t>(c10::elementSize(form.dtype)),
                                   static_cast<int>(form.dtype)));
  }
  const auto cut = cut_into_buckets(items, limit);
  for (const auto& bucket : cut.buckets)
    buckets_.push_back({static_cast<c10::ScalarType>(bucket.kind), bucket.elements});
  for (std::size_t i = 0; i < forms.size(); ++i)
    places_.push_back({forms[i], cut.places[i].bucket, cut.places[i].offset});
}

void BucketLayout::divide_among(std::int64_t ranks) {
  for (auto& bucket : buckets_) bucket.elements = BucketCut::Bucket{bucket.elements}.elements_in_shards(ranks);
}

namespace {

/// Zeroes what lies between the places of each bucket, and behind them.
void zero_gaps(const std::vector<at::Tensor>& flat, const std::vector<BucketLayout::Place>& places) {
  std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> ends;  // by bucket and begin
  for (const auto& place : places) {
    const auto end = place.offset + c10::multiply_integers(place.form.sizes);
    ends[{static_cast<std::size_t>(place.bucket), place.offset}] = end;
  }
  for (std::size_t bucket = 0; bucket < flat.size(); ++bucket)
    ends[{bucket, flat[bucket].numel()}] = flat[bucket].numel();
  std::vector<std::int64_t> written(flat.size(), 0);
  for (const auto& [at, end] : ends) {
    const auto& [bucket, begin] = at;
    if (begin > written[bucket]) flat[bucket].narrow(0, written[bucket], begin - written[bucket]).zero_();
    written[bucket] = std::max(written[bucket], end);
  }
}

}  // namespace

GradientBuckets::GradientBuckets(const BucketLayout& layout, c10::Device device,
                                 std::shared_ptr<autograd::UnwrittenSums> unwritten)
    : unwritten_(std::move(unwritten)) {
  for (const auto& bucket : layout.buckets()) {
    flat_.push_back(at::empty({bucket.elements}, at::TensorOptions().dtype(bucket.dtype).device(device)));
  }
  zero_gaps(flat_, layout.places());
  for (const auto& place : layout.places()) {
    views_.push_back(
        part_of(flat_[static_cast<std::size_t>(place.bucket)], place.offset, place.form.sizes, place.form.strides));
    unwritten_->add(views_.back());
    bucket_of_.push_back(place.bucket);
  }
}

GradientBuckets::~GradientBuckets() {
  for (const auto& view : views_) unwritten_->discard(view);
}

const at::Tensor& GradientBuckets::flat(int bucket) const {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (bucket_of_[i] == bucket) unwritten_->zero(views_[i]);
  }
  return flat_[static_cast<std::size_t>(bucket)];
}

void GradientBuckets::complete() const {
  for (const auto& view : views_) unwritten_->zero(view);
}

DType dtype_of(ScalarType dtype) {
  for (const auto& [own, torch] : kTypes) {
    if (torch == dtype) return own;
  }
  throw InvalidArgument(std::string("tensors of type ") + c10::toString(dtype) + " are not supported");
}

ScalarType scalar_type_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].second; }

}  // namespace autopar::parameters
