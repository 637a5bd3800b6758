#include "capture/ir/op_table.hpp"

#include <string>
#include <unordered_map>

#include "capture/ir/add_layer_norm.hpp"
#include "capture/ir/batch_norm_relu.hpp"
#include "capture/ir/class_head.hpp"
#include "capture/ir/collectives.hpp"
#include "capture/ir/cross_entropy.hpp"
#include "capture/ir/max_pool.hpp"
#include "capture/ir/pointwise.hpp"
#include "capture/ir/shard_moves.hpp"

namespace autopar {
namespace {

using F = OpFamily;
using C = OpClass;
using S = SavedTensors;

// clang-format off
constexpr OpTraits kTable[] = {
    // element-wise, nothing but the result's gradient needed
    {"add", F::kPointwise}, {"sub", F::kPointwise}, {"subtract", F::kPointwise}, {"rsub", F::kPointwise},
    {"neg", F::kPointwise}, {"negative", F::kPointwise}, {"positive", F::kPointwise}, {"ceil", F::kPointwise},
    {"floor", F::kPointwise}, {"round", F::kPointwise}, {"trunc", F::kPointwise}, {"fix", F::kPointwise},
    {"frac", F::kPointwise}, {"sign", F::kPointwise}, {"sgn", F::kPointwise}, {"eq", F::kPointwise},
    {"ne", F::kPointwise}, {"not_equal", F::kPointwise}, {"lt", F::kPointwise}, {"less", F::kPointwise},
    {"le", F::kPointwise}, {"less_equal", F::kPointwise}, {"gt", F::kPointwise}, {"greater", F::kPointwise},
    {"ge", F::kPointwise}, {"greater_equal", F::kPointwise}, {"isnan", F::kPointwise}, {"isinf", F::kPointwise},
    {"isfinite", F::kPointwise}, {"isclose", F::kPointwise}, {"isposinf", F::kPointwise}, {"isneginf", F::kPointwise},
    {"signbit", F::kPointwise}, {"logical_and", F::kPointwise}, {"logical_or", F::kPointwise},
    {"logical_not", F::kPointwise}, {"logical_xor", F::kPointwise}, {"bitwise_and", F::kPointwise},
    {"bitwise_or", F::kPointwise}, {"bitwise_not", F::kPointwise}, {"bitwise_xor", F::kPointwise},
    {"bitwise_left_shift", F::kPointwise}, {"bitwise_right_shift", F::kPointwise}, {"__and__", F::kPointwise},
    {"__or__", F::kPointwise}, {"__xor__", F::kPointwise}, {"__iand_", F::kPointwise}, {"__ior_", F::kPointwise},
    {"__ixor_", F::kPointwise}, {"__lshift__", F::kPointwise}, {"__rshift__", F::kPointwise},
    {"__ilshift_", F::kPointwise}, {"__irshift_", F::kPointwise},
    {"floor_divide", F::kPointwise}, {"heaviside", F::kPointwise}, {"nextafter", F::kPointwise},
    {"gcd", F::kPointwise}, {"lcm", F::kPointwise}, {"real", F::kPointwise}, {"imag", F::kPointwise},
    {"conj", F::kPointwise}, {"resolve_conj", F::kPointwise}, {"resolve_neg", F::kPointwise},
    {"conj_physical", F::kPointwise}, {"_conj_physical", F::kPointwise}, {"_conj", F::kPointwise, C::kView},
    {"_neg_view", F::kPointwise, C::kView}, {"bucketize", F::kPointwise, C::kMemory, S::kNothing, 1},
    {"isin", F::kPointwise, C::kMemory, S::kNothing, 1},
    // element-wise, saving the input
    {"abs", F::kPointwise, C::kMemory, S::kInput}, {"absolute", F::kPointwise, C::kMemory, S::kInput},
    {"square", F::kPointwise, C::kMemory, S::kInput}, {"pow", F::kPointwise, C::kMemory, S::kInput},
    {"float_power", F::kPointwise, C::kMemory, S::kInput}, {"log", F::kPointwise, C::kMemory, S::kInput},
    {"log2", F::kPointwise, C::kMemory, S::kInput}, {"log10", F::kPointwise, C::kMemory, S::kInput},
    {"log1p", F::kPointwise, C::kMemory, S::kInput}, {"sin", F::kPointwise, C::kMemory, S::kInput},
    {"cos", F::kPointwise, C::kMemory, S::kInput}, {"asin", F::kPointwise, C::kMemory, S::kInput},
    {"arcsin", F::kPointwise, C::kMemory, S::kInput}, {"acos", F::kPointwise, C::kMemory, S::kInput},
    {"arccos", F::kPointwise, C::kMemory, S::kInput}, {"atan", F::kPointwise, C::kMemory, S::kInput},
    {"arctan", F::kPointwise, C::kMemory, S::kInput}, {"sinh", F::kPointwise, C::kMemory, S::kInput},
    {"cosh", F::kPointwise, C::kMemory, S::kInput}, {"asinh", F::kPointwise, C::kMemory, S::kInput},
    {"acosh", F::kPointwise, C::kMemory, S::kInput}, {"atanh", F::kPointwise, C::kMemory, S::kInput},
    {"erf", F::kPointwise, C::kMemory, S::kInput}, {"erfc", F::kPointwise, C::kMemory, S::kInput},
    {"lgamma", F::kPointwise, C::kMemory, S::kInput}, {"digamma", F::kPointwise, C::kMemory, S::kInput},
    {"xlogy", F::kPointwise, C::kMemory, S::kInputs}, {"logit", F::kPointwise, C::kMemory, S::kInput},
    {"sinc", F::kPointwise, C::kMemory, S::kInput}, {"gelu", F::kPointwise, C::kMemory, S::kInput},
    {"silu", F::kPointwise, C::kMemory, S::kInput}, {"mish", F::kPointwise, C::kMemory, S::kInput},
    {"softplus", F::kPointwise, C::kMemory, S::kInput}, {"hardtanh", F::kPointwise, C::kMemory, S::kInput},
    {"relu6", F::kPointwise, C::kMemory, S::kInput}, {"hardswish", F::kPointwise, C::kMemory, S::kInput},
    {"hardsigmoid", F::kPointwise, C::kMemory, S::kInput}, {"leaky_relu", F::kPointwise, C::kMemory, S::kInput},
    {"prelu", F::kPointwise, C::kMemory, S::kInputs, 1}, {"hardshrink", F::kPointwise, C::kMemory, S::kInput},
    {"softshrink", F::kPointwise, C::kMemory, S::kInput}, {"threshold", F::kPointwise, C::kMemory, S::kInput},
    {"log_sigmoid", F::kPointwise, C::kMemory, S::kInputAndResult}, {"clamp", F::kPointwise, C::kMemory, S::kInput},
    {"clip", F::kPointwise, C::kMemory, S::kInput}, {"clamp_min", F::kPointwise, C::kMemory, S::kInput},
    {"clamp_max", F::kPointwise, C::kMemory, S::kInput}, {"nan_to_num", F::kPointwise, C::kMemory, S::kInput},
    {"polar", F::kPointwise, C::kMemory, S::kInputs}, {"complex", F::kPointwise},
    {"celu", F::kPointwise, C::kMemory, S::kResult}, {"selu", F::kPointwise, C::kMemory, S::kResult},
    {"elu", F::kPointwise, C::kMemory, S::kInput},
    // element-wise, saving the result
    {"relu", F::kPointwise, C::kMemory, S::kResult}, {"sigmoid", F::kPointwise, C::kMemory, S::kResult},
    {"tanh", F::kPointwise, C::kMemory, S::kResult}, {"exp", F::kPointwise, C::kMemory, S::kResult},
    {"exp2", F::kPointwise, C::kMemory, S::kResult}, {"expm1", F::kPointwise, C::kMemory, S::kResult},
    {"sqrt", F::kPointwise, C::kMemory, S::kResult}, {"rsqrt", F::kPointwise, C::kMemory, S::kResult},
    {"reciprocal", F::kPointwise, C::kMemory, S::kResult}, {"tan", F::kPointwise, C::kMemory, S::kResult},
    // element-wise, several tensors
    {"mul", F::kPointwise, C::kMemory, S::kInputs}, {"multiply", F::kPointwise, C::kMemory, S::kInputs},
    {"div", F::kPointwise, C::kMemory, S::kInputs}, {"divide", F::kPointwise, C::kMemory, S::kInputs},
    {"true_divide", F::kPointwise, C::kMemory, S::kInputs}, {"remainder", F::kPointwise, C::kMemory, S::kInputs},
    {"fmod", F::kPointwise, C::kMemory, S::kInputs}, {"atan2", F::kPointwise, C::kMemory, S::kInputs},
    {"hypot", F::kPointwise, C::kMemory, S::kInputs}, {"maximum", F::kPointwise, C::kMemory, S::kInputs},
    {"minimum", F::kPointwise, C::kMemory, S::kInputs}, {"fmax", F::kPointwise, C::kMemory, S::kInputs},
    {"fmin", F::kPointwise, C::kMemory, S::kInputs}, {"logaddexp", F::kPointwise, C::kMemory, S::kInputs},
    {"logaddexp2", F::kPointwise, C::kMemory, S::kInputs}, {"addcmul", F::kPointwise, C::kMemory, S::kInputs},
    {"addcdiv", F::kPointwise, C::kMemory, S::kInputs}, {"lerp", F::kPointwise, C::kMemory, S::kInputs},
    {"where", F::kPointwise, C::kMemory, S::kMask}, {"masked_fill", F::kPointwise, C::kMemory, S::kMask},
    {"copysign", F::kPointwise, C::kMemory, S::kInputs}, {"ldexp", F::kPointwise, C::kMemory, S::kInputs},
    // the same values
    {"clone", F::kCopyValue}, {"contiguous", F::kCopyValue}, {"to", F::kCopyValue}, {"_to_copy", F::kCopyValue},
    {"type_as", F::kCopyValue}, {"detach", F::kCopyValue, C::kView}, {"detach_copy", F::kCopyValue},
    {"alias", F::kCopyValue, C::kView}, {"lift", F::kCopyValue, C::kView}, {"lift_fresh", F::kCopyValue, C::kView},
    {"lift_fresh_copy", F::kCopyValue}, {"requires_grad", F::kCopyValue, C::kView}, {"cpu", F::kCopyValue},
    {"cuda", F::kCopyValue}, {"_cast_Float", F::kCopyValue}, {"_cast_Double", F::kCopyValue},
    {"_cast_Long", F::kCopyValue}, {"_cast_Half", F::kCopyValue}, {"pin_memory", F::kCopyValue},
    {"_autocast_to_full_precision", F::kCopyValue}, {"_autocast_to_reduced_precision", F::kCopyValue},
    // new tensors
    {"empty", F::kFactory}, {"zeros", F::kFactory}, {"ones", F::kFactory}, {"full", F::kFactory},
    {"rand", F::kFactory}, {"randn", F::kFactory}, {"randint", F::kFactory}, {"new_empty", F::kFactory},
    {"new_zeros", F::kFactory}, {"new_ones", F::kFactory}, {"new_full", F::kFactory},
    {"scalar_tensor", F::kFactory}, {"arange", F::kArange},
    {"empty_like", F::kLikeFactory}, {"zeros_like", F::kLikeFactory}, {"ones_like", F::kLikeFactory},
    {"full_like", F::kLikeFactory}, {"rand_like", F::kLikeFactory}, {"randn_like", F::kLikeFactory},
    {"randint_like", F::kLikeFactory}, {"zero", F::kFill}, {"fill", F::kFill}, {"normal", F::kFill},
    {"uniform", F::kFill}, {"exponential", F::kFill}, {"log_normal", F::kFill}, {"cauchy", F::kFill},
    {"geometric", F::kFill}, {"random", F::kFill}, {"copy", F::kCopyInto},
    {"bernoulli", F::kPointwise}, {"poisson", F::kPointwise}, {"rrelu", F::kPointwise, C::kMemory, S::kInputAndResult},
    {"binomial", F::kPointwise}, {"_standard_gamma", F::kPointwise, C::kMemory, S::kInputAndResult},
    {"_sample_dirichlet", F::kTrailing, C::kMemory, S::kInputAndResult, 1},
    {"empty_strided", F::kFactory}, {"new_empty_strided", F::kFactory}, {"empty_permuted", F::kFactory},
    {"multinomial", F::kLeading, C::kMemory, S::kNothing, 1},
    // views and other shapes
    {"view", F::kReshape, C::kView}, {"reshape", F::kReshape, C::kView}, {"_unsafe_view", F::kReshape, C::kView},
    {"flatten", F::kReshape, C::kView}, {"unflatten", F::kReshape, C::kView}, {"view_as", F::kReshape, C::kView},
    {"reshape_as", F::kReshape, C::kView}, {"ravel", F::kReshape, C::kView}, {"_reshape_alias", F::kReshape, C::kView},
    {"_reshape_copy", F::kReshape}, {"transpose", F::kPermute, C::kView}, {"permute", F::kPermute, C::kView},
    {"t", F::kPermute, C::kView}, {"numpy_T", F::kPermute, C::kView}, {"mT", F::kPermute, C::kView},
    {"movedim", F::kPermute, C::kView}, {"moveaxis", F::kPermute, C::kView}, {"swapaxes", F::kPermute, C::kView},
    {"swapdims", F::kPermute, C::kView}, {"squeeze", F::kSqueeze, C::kView}, {"unsqueeze", F::kUnsqueeze, C::kView},
    {"expand", F::kExpand, C::kView}, {"expand_as", F::kExpand, C::kView}, {"broadcast_to", F::kExpand, C::kView},
    {"broadcast_tensors", F::kBroadcastTensors, C::kView},
    {"select", F::kSelect, C::kView}, {"slice", F::kSlice, C::kView}, {"narrow", F::kSlice, C::kView},
    {"chunk", F::kSplit, C::kView}, {"split", F::kSplit, C::kView}, {"split_with_sizes", F::kSplit, C::kView},
    {"unsafe_split", F::kSplit, C::kView}, {"unsafe_split_with_sizes", F::kSplit, C::kView},
    {"tensor_split", F::kSplit, C::kView}, {"unbind", F::kSplit, C::kView}, {"repeat", F::kRepeat},
    {"tile", F::kRepeat}, {"repeat_interleave", F::kRepeatInterleave}, {"cat", F::kCat}, {"concat", F::kCat},
    {"concatenate", F::kCat}, {"stack", F::kStack}, {"one_hot", F::kAppendDim}, {"view_as_real", F::kAppendDim, C::kView},
    {"view_as_complex", F::kAppendDim, C::kView}, {"diagonal", F::kDiagonal, C::kView}, {"diag_embed", F::kDiagonal},
    {"select_scatter", F::kReplacePart}, {"slice_scatter", F::kReplacePart}, {"diagonal_scatter", F::kReplacePart},
    // along dims
    {"softmax", F::kAlongDims, C::kMemory, S::kResult}, {"_softmax", F::kAlongDims, C::kMemory, S::kResult},
    {"log_softmax", F::kAlongDims, C::kMemory, S::kResult}, {"_log_softmax", F::kAlongDims, C::kMemory, S::kResult},
    {"_safe_softmax", F::kAlongDims, C::kMemory, S::kResult},
    {"cumsum", F::kAlongDims}, {"cumprod", F::kAlongDims, C::kMemory, S::kInputAndResult},
    {"cummax", F::kAlongDims, C::kMemory, S::kIndices}, {"cummin", F::kAlongDims, C::kMemory, S::kIndices},
    {"logcumsumexp", F::kAlongDims, C::kMemory, S::kInputAndResult}, {"sort", F::kAlongDims, C::kMemory, S::kIndices},
    {"argsort", F::kAlongDims}, {"topk", F::kAlongDims, C::kMemory, S::kIndices}, {"flip", F::kAlongDims},
    {"roll", F::kAlongDims}, {"rot90", F::kAlongDims}, {"glu", F::kAlongDims, C::kMemory, S::kInput}, {"diff", F::kAlongDims}, {"searchsorted", F::kAlongDims},
    {"cross", F::kAlongDims, C::kMemory, S::kInputs}, {"linalg_cross", F::kAlongDims, C::kMemory, S::kInputs},
    {"fft_fft", F::kAlongDims}, {"fft_ifft", F::kAlongDims}, {"fft_rfft", F::kAlongDims}, {"fft_irfft", F::kAlongDims},
    {"fft_fft2", F::kAlongDims}, {"fft_ifft2", F::kAlongDims}, {"fft_rfft2", F::kAlongDims},
    {"fft_irfft2", F::kAlongDims}, {"_fft_c2c", F::kAlongDims}, {"_fft_r2c", F::kAlongDims}, {"_fft_c2r", F::kAlongDims},
    {"unfold", F::kAlongDims, C::kView}, {"renorm", F::kRows, C::kMemory, S::kInput},
    // reductions
    {"sum", F::kReduceSum}, {"nansum", F::kReduceSum, C::kMemory, S::kInput}, {"count_nonzero", F::kReduceSum},
    {"mean", F::kReduceMean}, {"var", F::kReduce, C::kMemory, S::kInput}, {"std", F::kReduce, C::kMemory, S::kInput},
    {"var_mean", F::kReduce, C::kMemory, S::kInput}, {"std_mean", F::kReduce, C::kMemory, S::kInput},
    {"norm", F::kReduce, C::kMemory, S::kInput}, {"linalg_vector_norm", F::kReduce, C::kMemory, S::kInput},
    {"linalg_norm", F::kReduce, C::kMemory, S::kInput},
    {"frobenius_norm", F::kReduce, C::kMemory, S::kInput}, {"amax", F::kReduce, C::kMemory, S::kInput},
    {"amin", F::kReduce, C::kMemory, S::kInput}, {"max", F::kReduce, C::kMemory, S::kInput},
    {"min", F::kReduce, C::kMemory, S::kInput}, {"prod", F::kReduce, C::kMemory, S::kInput},
    {"logsumexp", F::kReduce, C::kMemory, S::kInputAndResult}, {"any", F::kReduce}, {"all", F::kReduce},
    {"argmax", F::kReduce}, {"argmin", F::kReduce}, {"median", F::kReduce, C::kMemory, S::kIndices},
    {"nanmedian", F::kReduce, C::kMemory, S::kIndices}, {"mode", F::kReduce, C::kMemory, S::kIndices},
    {"quantile", F::kReduce, C::kMemory, S::kInput}, {"nanquantile", F::kReduce, C::kMemory, S::kInput},
    {"kthvalue", F::kReduce, C::kMemory, S::kIndices}, {"aminmax", F::kReduce, C::kMemory, S::kInput},
    {"linalg__powsum", F::kReduce, C::kMemory, S::kInput}, {"dist", F::kReduce, C::kMemory, S::kInputs},
    // what is of a sample depends on others, whatever their dims
    {"trace", F::kMixing}, {"histc", F::kMixing}, {"histogram", F::kMixing}, {"masked_scatter", F::kMixing},
    {"put", F::kMixing}, {"nonzero_static", F::kMixing}, {"_pdist_forward", F::kMixing}, {"block_diag", F::kMixing},
    {"segment_reduce", F::kMixing},
    // matrix products
    {"matmul", F::kContraction, C::kMatmul, S::kInputs}, {"linalg_matmul", F::kContraction, C::kMatmul, S::kInputs},
    {"mm", F::kContraction, C::kMatmul, S::kInputs}, {"bmm", F::kContraction, C::kMatmul, S::kInputs},
    {"mv", F::kContraction, C::kMatmul, S::kInputs}, {"dot", F::kContraction, C::kMatmul, S::kInputs},
    {"vdot", F::kContraction, C::kMatmul, S::kInputs},
    {"inner", F::kContraction, C::kMatmul, S::kInputs}, {"outer", F::kContraction, C::kMatmul, S::kInputs},
    {"ger", F::kContraction, C::kMatmul, S::kInputs}, {"addmm", F::kContraction, C::kMatmul, S::kInputs},
    {"addmv", F::kContraction, C::kMatmul, S::kInputs}, {"baddbmm", F::kContraction, C::kMatmul, S::kInputs},
    {"addbmm", F::kContraction, C::kMatmul, S::kInputs}, {"einsum", F::kContraction, C::kMatmul, S::kInputs},
    {"linear", F::kLinear, C::kMatmul, S::kInputs}, {"bilinear", F::kLinear, C::kMatmul, S::kInputs},
    // last dims only
    {"tril", F::kTrailing, C::kMemory, S::kNothing, 2}, {"triu", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"max_pool1d", F::kTrailing, C::kMemory, S::kInputAndResult, 1},
    {"max_pool2d", F::kTrailing, C::kMemory, S::kInputAndResult, 2},
    {"max_pool3d", F::kTrailing, C::kMemory, S::kInputAndResult, 3},
    {"max_pool1d_with_indices", F::kTrailing, C::kMemory, S::kInputAndResult, 1},
    {"max_pool2d_with_indices", F::kTrailing, C::kMemory, S::kInputAndResult, 2},
    {"max_pool3d_with_indices", F::kTrailing, C::kMemory, S::kInputAndResult, 3},
    {"avg_pool1d", F::kTrailing, C::kMemory, S::kInput, 1}, {"avg_pool2d", F::kTrailing, C::kMemory, S::kInput, 2},
    {"avg_pool3d", F::kTrailing, C::kMemory, S::kInput, 3},
    {"adaptive_avg_pool1d", F::kTrailing, C::kMemory, S::kInput, 1},
    {"adaptive_avg_pool2d", F::kTrailing, C::kMemory, S::kInput, 2},
    {"adaptive_avg_pool3d", F::kTrailing, C::kMemory, S::kInput, 3},
    {"adaptive_max_pool1d", F::kTrailing, C::kMemory, S::kInputAndResult, 1},
    {"adaptive_max_pool2d", F::kTrailing, C::kMemory, S::kInputAndResult, 2},
    {"adaptive_max_pool3d", F::kTrailing, C::kMemory, S::kInputAndResult, 3},
    {"pixel_shuffle", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"pixel_unshuffle", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"upsample_nearest1d", F::kTrailing, C::kMemory, S::kNothing, 1},
    {"upsample_nearest2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"upsample_nearest3d", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"upsample_linear1d", F::kTrailing, C::kMemory, S::kNothing, 1},
    {"upsample_bilinear2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"upsample_bicubic2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"upsample_trilinear3d", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"_upsample_nearest_exact1d", F::kTrailing, C::kMemory, S::kNothing, 1},
    {"_upsample_nearest_exact2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"_upsample_nearest_exact3d", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"_upsample_bilinear2d_aa", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"_upsample_bicubic2d_aa", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"reflection_pad1d", F::kTrailing, C::kMemory, S::kNothing, 1},
    {"reflection_pad2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"reflection_pad3d", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"replication_pad1d", F::kTrailing, C::kMemory, S::kNothing, 1},
    {"replication_pad2d", F::kTrailing, C::kMemory, S::kNothing, 2},
    {"replication_pad3d", F::kTrailing, C::kMemory, S::kNothing, 3},
    {"inverse", F::kMatrix, C::kMemory, S::kResult}, {"linalg_inv", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_cholesky", F::kMatrix, C::kMemory, S::kResult},
    {"det", F::kMatrix, C::kMemory, S::kInputAndResult}, {"linalg_det", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"linalg_cholesky_ex", F::kMatrix, C::kMemory, S::kResult}, {"cholesky", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_inv_ex", F::kMatrix, C::kMemory, S::kResult}, {"linalg_qr", F::kMatrix, C::kMemory, S::kResult},
    {"cholesky_inverse", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"cholesky_solve", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"linalg_solve_triangular", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"triangular_solve", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"_linalg_solve_ex", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"_linalg_det", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"_linalg_slogdet", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"_linalg_svd", F::kMatrix, C::kMemory, S::kResult}, {"_linalg_eigh", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_lu_factor_ex", F::kMatrix, C::kMemory, S::kResult}, {"linalg_lu", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_matrix_exp", F::kMatrix, C::kMemory, S::kInput},
    {"linalg_pinv", F::kMatrix, C::kMemory, S::kInputAndResult}, {"linalg_eig", F::kMatrix, C::kMemory, S::kResult},
    {"_linalg_eigvals", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_lu_solve", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"lu_unpack", F::kMatrix, C::kMemory, S::kNothing}, {"linalg_ldl_factor_ex", F::kMatrix, C::kMemory, S::kResult},
    {"linalg_ldl_solve", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"linalg_householder_product", F::kMatrix, C::kMemory, S::kInputAndResult}, {"geqrf", F::kMatrix},
    {"ormqr", F::kMatrix, C::kMemory, S::kInputAndResult}, {"linalg_lstsq", F::kMatrix, C::kMemory, S::kInputAndResult},
    {"max_unpool2d", F::kTrailing, C::kMemory, S::kIndices, 2}, {"max_unpool3d", F::kTrailing, C::kMemory, S::kIndices, 3},
    {"constant_pad_nd", F::kTrailing}, {"pad", F::kTrailing},
    {"layer_norm", F::kLayerNorm, C::kMemory, S::kNormalisation},
    {"native_layer_norm", F::kLayerNorm, C::kMemory, S::kNormalisation},
    {"rms_norm", F::kLayerNorm, C::kMemory, S::kNormalisation},
    // samples are dim 0
    {"conv1d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"conv2d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"conv3d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"convolution", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"conv_transpose1d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"conv_transpose2d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"conv_transpose3d", F::kLeading, C::kConvolution, S::kConvolution, 1},
    {"group_norm", F::kLeading, C::kMemory, S::kNormalisation, 1},
    {"channel_shuffle", F::kLeading, C::kMemory, S::kNothing, 1}, {"istft", F::kLeading, C::kMemory, S::kInput, 1},
    {"im2col", F::kLeading, C::kMemory, S::kNothing, 1}, {"col2im", F::kLeading, C::kMemory, S::kNothing, 1},
    {"grid_sampler", F::kLeading, C::kMemory, S::kInputs, 2},
    {"grid_sampler_2d", F::kLeading, C::kMemory, S::kInputs, 2},
    {"grid_sampler_3d", F::kLeading, C::kMemory, S::kInputs, 2},
    {"affine_grid_generator", F::kLeading, C::kMemory, S::kInput, 1},
    {"lstm_cell", F::kLeading, C::kMatmul, S::kRecurrent, 2}, {"gru_cell", F::kLeading, C::kMatmul, S::kRecurrent, 2},
    {"rnn_tanh_cell", F::kLeading, C::kMatmul, S::kRecurrent, 2},
    {"rnn_relu_cell", F::kLeading, C::kMatmul, S::kRecurrent, 2},
    {"instance_norm", F::kBatchNorm, C::kMemory, S::kNormalisation},
    {"batch_norm", F::kBatchNorm, C::kMemory, S::kNormalisation},
    // attention and sequences
    {"scaled_dot_product_attention", F::kAttention, C::kAttention, S::kAttention},
    {"lstm", F::kRecurrent, C::kMatmul, S::kRecurrent}, {"gru", F::kRecurrent, C::kMatmul, S::kRecurrent},
    {"rnn_tanh", F::kRecurrent, C::kMatmul, S::kRecurrent}, {"rnn_relu", F::kRecurrent, C::kMatmul, S::kRecurrent},
    {"cdist", F::kAttention, C::kMemory, S::kInputAndResult},
    // dropout
    {"dropout", F::kDropout, C::kMemory, S::kMask}, {"native_dropout", F::kDropout, C::kMemory, S::kMask},
    {"alpha_dropout", F::kDropout, C::kMemory, S::kMask}, {"feature_dropout", F::kFeatureDropout, C::kMemory, S::kMask},
    {"feature_alpha_dropout", F::kFeatureDropout, C::kMemory, S::kMask},
    // indexing
    {"embedding", F::kEmbedding, C::kMemory, S::kIndices}, {"embedding_bag", F::kEmbeddingBag, C::kMemory, S::kIndices}, {"index", F::kIndex, C::kMemory, S::kIndices},
    {"index_put", F::kIndexPut, C::kMemory, S::kIndices}, {"index_select", F::kIndexSelect, C::kMemory, S::kIndices},
    {"index_add", F::kIndexAdd, C::kMemory, S::kIndices}, {"index_copy", F::kIndexAdd, C::kMemory, S::kIndices},
    {"index_reduce", F::kIndexAdd, C::kMemory, S::kInputAndResult},
    {"index_fill", F::kIndexAdd, C::kMemory, S::kIndices}, {"gather", F::kGather, C::kMemory, S::kIndices},
    {"take", F::kIndexSelect, C::kMemory, S::kIndices},
    {"take_along_dim", F::kGather, C::kMemory, S::kIndices}, {"scatter", F::kScatter, C::kMemory, S::kIndices},
    {"scatter_add", F::kScatter, C::kMemory, S::kIndices},
    {"scatter_reduce", F::kScatter, C::kMemory, S::kInputAndResult},
    // losses
    {"mse_loss", F::kPointwiseLoss, C::kMemory, S::kInputs}, {"l1_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"smooth_l1_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"huber_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"binary_cross_entropy", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"binary_cross_entropy_with_logits", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"kl_div", F::kPointwiseLoss, C::kMemory, S::kInputs}, {"soft_margin_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"margin_ranking_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"hinge_embedding_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"poisson_nll_loss", F::kPointwiseLoss, C::kMemory, S::kInputs},
    {"cosine_embedding_loss", F::kRowLoss, C::kMemory, S::kInputs},
    {"triplet_margin_loss", F::kRowLoss, C::kMemory, S::kInputs},
    {"multi_margin_loss", F::kRowLoss, C::kMemory, S::kInputs},
    {"multilabel_margin_loss", F::kRowLoss, C::kMemory, S::kInputs},
    {"cross_entropy_loss", F::kClassLoss, C::kMemory, S::kResult}, {"nll_loss", F::kClassLoss, C::kMemory, S::kIndices},
    {"nll_loss_nd", F::kClassLoss, C::kMemory, S::kIndices}, {"nll_loss2d", F::kClassLoss, C::kMemory, S::kIndices},
    {"ctc_loss", F::kSequenceLoss, C::kMemory, S::kInputs},
    // row-wise distances
    {"cosine_similarity", F::kReduce, C::kMemory, S::kInputs}, {"pairwise_distance", F::kReduce, C::kMemory, S::kInputs},
};
// clang-format on

std::unordered_map<std::string_view, const OpTraits*> index_table() {
  std::unordered_map<std::string_view, const OpTraits*> index;
  for (const auto& line : kTable) index.emplace(line.name, &line);
  return index;
}

}  // namespace

std::span<const OpTraits> op_table() { return kTable; }

const OpTraits& traits_of(std::string_view qualified_name) {
  static const auto index = index_table();
  static constexpr OpTraits kUnknown{"", F::kUnknown, C::kMemory, S::kInputAndResult};
  static constexpr OpTraits kCollective{"", F::kCollective};
  constexpr std::string_view kAten = "aten::";
  static constexpr OpTraits kShardMove{"", F::kCopyValue};
  static constexpr OpTraits kHead{"", F::kClassHead, C::kMatmul, S::kInput};
  static constexpr OpTraits kNorm{"", F::kBatchNorm, C::kMemory, S::kNormalisation};
  static constexpr OpTraits kSumNorm{"", F::kLayerNorm, C::kMemory, S::kNormalisation};
  static constexpr OpTraits kLoss{"cross_entropy_loss", F::kClassLoss, C::kMemory, S::kResult};
  static constexpr OpTraits kPool{"max_pool2d", F::kTrailing, C::kMemory, S::kInputAndResult, 2};
  static constexpr OpTraits kJoined{"", F::kPointwise, C::kMemory, S::kJoined};
  if (qualified_name == kLinearCrossEntropy) return kHead;
  if (qualified_name == kBatchNormRelu) return kNorm;
  if (qualified_name == kCrossEntropy) return kLoss;
  if (qualified_name == kAddLayerNorm) return kSumNorm;
  if (qualified_name == kMaxPool) return kPool;
  if (qualified_name == kJoinedPointwise) return kJoined;
  if (collective_named(qualified_name) != nullptr) return kCollective;
  if (is_shard_move(qualified_name)) return kShardMove;
  if (!qualified_name.starts_with(kAten)) return kUnknown;
  auto name = qualified_name.substr(kAten.size());
  if (const auto line = index.find(name); line != index.end()) return *line->second;
  if (name.ends_with('_')) {
    if (const auto line = index.find(name.substr(0, name.size() - 1)); line != index.end()) return *line->second;
  }
  return kUnknown;
}

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  static constexpr OpTraits kTaggedPointwise{"", F::kPointwise, C::kMemory, S::kInputAndResult};
  const auto& known = traits_of(op.schema().name());
  return known.family == F::kUnknown && op.hasTag(at::Tag::pointwise) ? kTaggedPointwise : known;
}

}  // namespace autopar
