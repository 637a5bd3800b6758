#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace autopar {

/// `data` with what makes it a shard's handle: an operator that takes it together with a tensor of other sizes throws,
/// where libtorch would stretch one over the other (a copy of the whole parameter, made before there were shards), and
/// so does `torch::save`. Views of it are guarded likewise, new tensors made of it are not. The memory is `data`'s.
/// @param share  what it is, for the message: "'fc.weight' is held in shards, of which rank 1 has 12 of 24 elements"
[[nodiscard]] at::Tensor guarded_shard(const at::Tensor& data, const std::string& share);

}  // namespace autopar
