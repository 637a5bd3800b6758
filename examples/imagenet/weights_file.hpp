#pragma once

#include <filesystem>
#include <string>

#include <torch/ordered_dict.h>

/// Writes tensors as a safetensors file, which Python's `safetensors.torch.load_file` gives back as a state_dict.
/// @throws CheckpointError if it cannot be written
void write_weights(const torch::OrderedDict<std::string, at::Tensor>& state, const std::filesystem::path& file);
