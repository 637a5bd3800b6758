#pragma once

#include <functional>
#include <optional>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/autograd/custom_functions.hpp"
#include "torch/autograd/split_backward.hpp"

namespace autopar::fp8 {
class Layers;
}  // namespace autopar::fp8

namespace autopar::autograd {

/// Conditions under which an operator runs, which decide how its backward may be split.
struct SplitConditions {
  bool defers = false;                     ///< the schedule has separate weight backwards
  bool recomputes = false;                 ///< it runs in a recomputed segment, whose backward is not split
  bool has_side_stream = false;            ///< weight gradients may be computed on a second stream
  std::function<bool(ValueId)> is_summed;  ///< whether a value's gradient is summed over tensor shards
  fp8::Layers* fp8 = nullptr;              ///< layers that run in 8 bits; null: none
};

/// The split backward that an operator runs with, with its flags set; none if libtorch's backward is as good.
[[nodiscard]] std::optional<SplitBackward> chosen_split(const FunctionSite& site, const algebra::BatchSemantics& plan,
                                                        const SplitConditions& conditions);

}  // namespace autopar::autograd
