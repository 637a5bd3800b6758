#pragma once

#include <string_view>

/// Names of libtorch operators that passes, fused operators and custom autograd functions find in programs or insert
/// into them.
namespace autopar::ops {

inline constexpr std::string_view kAbs = "aten::abs";
inline constexpr std::string_view kAdd = "aten::add";
inline constexpr std::string_view kAddInPlace = "aten::add_";
inline constexpr std::string_view kAddcdiv = "aten::addcdiv";
inline constexpr std::string_view kAddcmul = "aten::addcmul";
inline constexpr std::string_view kAddmm = "aten::addmm";
inline constexpr std::string_view kAsStrided = "aten::as_strided";
inline constexpr std::string_view kAttention = "aten::scaled_dot_product_attention";
inline constexpr std::string_view kBatchNorm = "aten::batch_norm";
inline constexpr std::string_view kChunk = "aten::chunk";
inline constexpr std::string_view kClamp = "aten::clamp";
inline constexpr std::string_view kClampMax = "aten::clamp_max";
inline constexpr std::string_view kClampMin = "aten::clamp_min";
inline constexpr std::string_view kConv1d = "aten::conv1d";
inline constexpr std::string_view kConv2d = "aten::conv2d";
inline constexpr std::string_view kConv3d = "aten::conv3d";
inline constexpr std::string_view kConvTranspose1d = "aten::conv_transpose1d";
inline constexpr std::string_view kConvTranspose2d = "aten::conv_transpose2d";
inline constexpr std::string_view kConvTranspose3d = "aten::conv_transpose3d";
inline constexpr std::string_view kConvolution = "aten::convolution";
inline constexpr std::string_view kConvolutionImpl = "aten::_convolution";
inline constexpr std::string_view kConvolutionOverrideable = "aten::convolution_overrideable";
inline constexpr std::string_view kCrossEntropyLoss = "aten::cross_entropy_loss";
inline constexpr std::string_view kDiv = "aten::div";
inline constexpr std::string_view kDropout = "aten::dropout";
inline constexpr std::string_view kDropoutInPlace = "aten::dropout_";
inline constexpr std::string_view kElu = "aten::elu";
inline constexpr std::string_view kEmbedding = "aten::embedding";
inline constexpr std::string_view kErf = "aten::erf";
inline constexpr std::string_view kExp = "aten::exp";
inline constexpr std::string_view kExpand = "aten::expand";
inline constexpr std::string_view kExpm1 = "aten::expm1";
inline constexpr std::string_view kGelu = "aten::gelu";
inline constexpr std::string_view kHardsigmoid = "aten::hardsigmoid";
inline constexpr std::string_view kHardswish = "aten::hardswish";
inline constexpr std::string_view kHardtanh = "aten::hardtanh";
inline constexpr std::string_view kHasCompatibleShallowCopyType = "aten::_has_compatible_shallow_copy_type";
inline constexpr std::string_view kLayerNorm = "aten::layer_norm";
inline constexpr std::string_view kLeakyRelu = "aten::leaky_relu";
inline constexpr std::string_view kLerp = "aten::lerp";
inline constexpr std::string_view kLinear = "aten::linear";
inline constexpr std::string_view kLog = "aten::log";
inline constexpr std::string_view kLog1p = "aten::log1p";
inline constexpr std::string_view kLogSoftmax = "aten::log_softmax";
inline constexpr std::string_view kMaskedFill = "aten::masked_fill";
inline constexpr std::string_view kMatmul = "aten::matmul";
inline constexpr std::string_view kMaxPool2d = "aten::max_pool2d";
inline constexpr std::string_view kMaximum = "aten::maximum";
inline constexpr std::string_view kMinimum = "aten::minimum";
inline constexpr std::string_view kMish = "aten::mish";
inline constexpr std::string_view kMul = "aten::mul";
inline constexpr std::string_view kNeg = "aten::neg";
inline constexpr std::string_view kNllLoss = "aten::nll_loss";
inline constexpr std::string_view kNllLoss2d = "aten::nll_loss2d";
inline constexpr std::string_view kNllLossNd = "aten::nll_loss_nd";
inline constexpr std::string_view kPow = "aten::pow";
inline constexpr std::string_view kReciprocal = "aten::reciprocal";
inline constexpr std::string_view kRelu = "aten::relu";
inline constexpr std::string_view kRelu6 = "aten::relu6";
inline constexpr std::string_view kReluInPlace = "aten::relu_";
inline constexpr std::string_view kReshape = "aten::reshape";
inline constexpr std::string_view kResize = "aten::resize";
inline constexpr std::string_view kRsqrt = "aten::rsqrt";
inline constexpr std::string_view kRsub = "aten::rsub";
inline constexpr std::string_view kSelect = "aten::select";
inline constexpr std::string_view kSet = "aten::set_";
inline constexpr std::string_view kSigmoid = "aten::sigmoid";
inline constexpr std::string_view kSilu = "aten::silu";
inline constexpr std::string_view kSoftplus = "aten::softplus";
inline constexpr std::string_view kSplit = "aten::split";
inline constexpr std::string_view kSplitWithSizes = "aten::split_with_sizes";
inline constexpr std::string_view kSqrt = "aten::sqrt";
inline constexpr std::string_view kSquare = "aten::square";
inline constexpr std::string_view kSub = "aten::sub";
inline constexpr std::string_view kTanh = "aten::tanh";
inline constexpr std::string_view kTensorSplit = "aten::tensor_split";
inline constexpr std::string_view kTo = "aten::to";
inline constexpr std::string_view kToCopy = "aten::_to_copy";
inline constexpr std::string_view kTransposed = "aten::t";
inline constexpr std::string_view kUnbind = "aten::unbind";
inline constexpr std::string_view kWhere = "aten::where";

}  // namespace autopar::ops
