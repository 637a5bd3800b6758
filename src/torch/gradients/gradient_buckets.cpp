#include "torch/gradients/gradient_buckets.hpp"

#include <array>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <autopar/core/error.hpp>

namespace autopar {

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

// Views start where vector loads like it.
constexpr std::int64_t kAlignedElements = 16;

}  // namespace

at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto part = at::empty({0}, flat.options());
  if (!strides.empty()) return part.set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
  return part.set_(flat.storage(), flat.storage_offset() + offset, sizes, c10::contiguous_strides(sizes));
}

std::int64_t BucketLayout::aligned(std::int64_t elements) {
  return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

BucketLayout::BucketLayout(const std::vector<GradientForm>& forms, Bytes limit, Fill fill) {
  std::int64_t used = 0;
  for (const auto& form : forms) {
    const auto elements = aligned(c10::multiply_integers(form.sizes));
    const auto bytes = elements * static_cast<std::int64_t>(c10::elementSize(form.dtype));
    const bool full = fill == Fill::kUntilFull ? used >= limit.value() : used > 0 && used + bytes > limit.value();
    if (buckets_.empty() || buckets_.back().dtype != form.dtype || full) {
      buckets_.push_back({form.dtype, 0});
      used = 0;
    }
    places_.push_back({form, static_cast<int>(buckets_.size()) - 1, buckets_.back().elements});
    buckets_.back().elements += elements;
    used += bytes;
  }
}

GradientBuckets::GradientBuckets(const BucketLayout& layout, c10::Device device) {
  for (const auto& bucket : layout.buckets()) {
    flat_.push_back(at::zeros({bucket.elements}, at::TensorOptions().dtype(bucket.dtype).device(device)));
  }
  for (const auto& place : layout.places()) {
    views_.push_back(
        part_of(flat_[static_cast<std::size_t>(place.bucket)], place.offset, place.form.sizes, place.form.strides));
  }
}

DType dtype_of(ScalarType dtype) {
  for (const auto& [own, torch] : kTypes) {
    if (torch == dtype) return own;
  }
  throw InvalidArgument(std::string("tensors of type ") + c10::toString(dtype) + " are not supported");
}

ScalarType scalar_type_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].second; }

DType reduction_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::ComplexFloat:
      return DType::kF32;
    case ScalarType::ComplexDouble:
      return DType::kF64;
    default:
      return dtype_of(dtype);
  }
}

}  // namespace autopar
