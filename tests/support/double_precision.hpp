#pragma once

#include <torch/torch.h>

/// While it lives, new tensors of no stated type are in double precision.
struct DoublePrecision {
  DoublePrecision() { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~DoublePrecision() { torch::set_default_dtype(caffe2::TypeMeta::Make<float>()); }
  DoublePrecision(const DoublePrecision&) = delete;
  DoublePrecision& operator=(const DoublePrecision&) = delete;
};
