#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/testing/law_broken.hpp>

namespace autopar::testing {

/// A call of an operator with example data. Tensors are on the CPU, of float64 or integers. They should be small, since
/// each law runs the operator some dozen times. But they should have some hundred bytes, since 64 saved bytes per
/// tensor may be undeclared.
struct OpExample {
  std::vector<at::Tensor> samples;  ///< arguments with the samples in dim 0, equally many in each (at least 5)
  std::vector<at::Tensor> shared;   ///< arguments that all samples share, such as weights
  /// One or more calls of the operator, perhaps with other torch code around them. A pure function: it draws no random
  /// numbers and writes into no argument.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& samples, const std::vector<at::Tensor>& shared)>
      call;
};

/// The laws that this example could check.
struct OpLaws {
  bool splits = false;           ///< slices of the batch
  bool shards = false;           ///< at least one operand's dim in tensor slices
  bool splits_backward = false;  ///< separate gradients of input and parameters
};

/// Checks the definition of an operator (`ap::register_op`) against the operator's behaviour:
/// - forms: the captured results have the sizes and the element types of the real ones, at two batch sizes
/// - slices: results and gradients of slices, joined or added as `over_samples` and `over_sums` say, equal the whole
///   batch's. Not checked if some operator of the call needs the whole batch
/// - shards: if `sharding` accepts an operand in slices, the shards' results equal the whole call's results
/// - split backward: the formulas of `split_backward` give autograd's gradients, if the weight is a shared argument
/// - costs: flops, bytes and workspace are finite, not negative, and do not decrease with the batch
/// - saved bytes: `saved` or `saved_by` names all memory that autograd keeps, except shared arguments, which exist
///   anyway. 1 % and 64 bytes per tensor may be missing
///
/// Numbers agree if they differ by at most 1e-12 * (1 + magnitude). The call is captured, so register operators before.
/// @param op  "mylib::scale_rows", as `OpDef::name`
/// @return the laws that were checked; a test should expect the laws that apply to the operator
/// @throws LawBroken naming the first law that is broken, and where; its seed is 0
/// @throws InvalidArgument if the example does not call the operator, the operator has no definition, or the arguments
///         break the rules of `OpExample`
/// @throws CaptureError if the call cannot be captured
/// @cost seconds at most for small tensors; not to be called by two threads at once
OpLaws check_op_laws(std::string_view op, const OpExample& example);

}  // namespace autopar::testing
