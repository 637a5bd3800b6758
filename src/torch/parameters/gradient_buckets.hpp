#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <autopar/core/dtype.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/buckets.hpp>

#include "torch/autograd/unwritten_sums.hpp"

namespace autopar::parameters {

/// The form of one gradient. The owner of the layout chooses `key`.
struct GradientForm {
  std::size_t key = 0;
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> strides{};  ///< without gaps; empty: contiguous
};

/// The layout of a reduction group's gradients in flat buckets, as `cut_into_buckets` divides them. Each bucket has one
/// element type. Equal forms give the same layout on every rank.
class BucketLayout {
 public:
  struct Place {
    GradientForm form;
    int bucket = 0;
    std::int64_t offset = 0;  ///< in elements
  };
  struct Bucket {
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::int64_t elements = 0;
  };

  explicit BucketLayout(const std::vector<GradientForm>& forms, Bytes limit = BucketPolicy{}.size);
  /// One bucket with a given layout.
  BucketLayout(Bucket bucket, std::vector<Place> places) : places_(std::move(places)), buckets_{bucket} {}

  /// Makes buckets as long as an equal, aligned part for each of so many ranks needs.
  void divide_among(std::int64_t ranks);
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
};

/// The elements of `flat` from `offset` on, with these sizes. Shares memory, but is not a view for autograd, so that it
/// can become a `.grad`: optimizers detach gradients in place, which fails for views.
/// @param strides  without gaps; empty: contiguous
[[nodiscard]] at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                                 at::IntArrayRef strides = {});

/// Memory for one group's gradients of one call. Gaps between gradients are zeroed; gradients are unwritten sums.
class GradientBuckets {
 public:
  GradientBuckets(const BucketLayout& layout, c10::Device device, std::shared_ptr<autograd::UnwrittenSums> unwritten);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets();

  /// By index in `layout.places()`: a part of its bucket, with the gradient's sizes.
  [[nodiscard]] const std::vector<at::Tensor>& views() const { return views_; }
  /// All of a bucket. Gradients that never came are zero.
  [[nodiscard]] const at::Tensor& flat(int bucket) const;
  /// Zeroes all gradients that have not come yet.
  void complete() const;

 private:
  std::shared_ptr<autograd::UnwrittenSums> unwritten_;
  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> views_;
  std::vector<int> bucket_of_;  ///< by view
};

/// @throws InvalidArgument, with the type, for types that autopar does not support
[[nodiscard]] DType dtype_of(c10::ScalarType dtype);
[[nodiscard]] c10::ScalarType scalar_type_of(DType dtype);

}  // namespace autopar::parameters
