#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/testing/law_broken.hpp>

namespace autopar::testing {

/// A call of an operator with data to try it on. Tensors are on the CPU, of float64 or integers. They should be small,
/// since each law runs the operator some dozen times, but of some hundred bytes, of which 64 may be saved unsaid.
struct OpExample {
  std::vector<at::Tensor> samples;  ///< arguments with the samples in dim 0, all of as many (at least 5)
  std::vector<at::Tensor> shared;   ///< arguments that all samples share, such as weights
  /// One or more calls of the operator, perhaps with other torch code around them. A function of its arguments: it
  /// draws no random numbers and writes into none of them.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& samples, const std::vector<at::Tensor>& shared)>
      call;
};

/// What the laws could be held to with this example.
struct OpLaws {
  bool splits = false;           ///< slices of the batch
  bool shards = false;           ///< at least one operand's dim in tensor slices
  bool splits_backward = false;  ///< the gradients of input and parameters, made apart
};

/// Holds the definition of an operator (`ap::register_op`) to what the operator does:
/// - forms: the captured results have the sizes and the element types of the real ones, at two batch sizes
/// - slices: results and gradients of slices of the batch, joined or added as `over_samples` and `over_sums` say, are
///   those of the whole batch; unless some operator of the call needs the whole batch
/// - shards: where `sharding` runs it with an operand in slices, the shards' results are the whole call's
/// - split backward: the formulas of `split_backward` give autograd's gradients, where its weight is a shared argument
/// - costs: flops, bytes and workspace are finite, not negative, and do not fall with the batch
/// - saved bytes: `saved` or `saved_by` names all that autograd keeps, but for shared arguments, which exist anyway;
///   1 % and 64 bytes a tensor may be missing
///
/// Numbers are compared to 1e-12 of one plus their size. This captures the call: register operators before.
/// @param op  "mylib::scale_rows", as `OpDef::name`
/// @return what there was to check; a test should expect the members that it knows to hold
/// @throws LawBroken naming the first law that is broken, and where; its seed is 0
/// @throws InvalidArgument if the example does not call the operator, the operator has no definition, or the arguments
///         are not those of `OpExample`
/// @throws CaptureError if the call cannot be captured
/// @cost seconds at most for small tensors; not to be called by two threads at once
OpLaws check_op_laws(std::string_view op, const OpExample& example);

}  // namespace autopar::testing
