#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <autopar/core/error.hpp>
#include <autopar/io/safetensors.hpp>

namespace training {

namespace detail {

inline autopar::DType type_of_weights(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat:
      return autopar::DType::kF32;
    case torch::kDouble:
      return autopar::DType::kF64;
    case torch::kLong:
      return autopar::DType::kI64;
    default:
      throw autopar::InvalidArgument("weights of this type cannot be written: " + tensor.toString());
  }
}

}  // namespace detail

/// Writes tensors as a safetensors file, which Python's `safetensors.torch.load_file` gives back as a state_dict, and
/// `model->load` reads. Of one rank.
/// @throws CheckpointError if it cannot be written
inline void write_weights(const torch::OrderedDict<std::string, at::Tensor>& state, const std::filesystem::path& file) {
  std::vector<std::pair<autopar::TensorEntry, at::Tensor>> rows;
  for (const auto& item : state) {
    const auto tensor = item.value().detach().cpu().contiguous();
    rows.push_back({{item.key(), detail::type_of_weights(tensor), tensor.sizes().vec()}, tensor});
  }
  // Longest elements first, so that all data are aligned.
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return autopar::size_of(a.first.dtype) > autopar::size_of(b.first.dtype);
  });
  std::vector<autopar::TensorEntry> entries;
  for (const auto& [entry, tensor] : rows) entries.push_back(entry);
  autopar::SafetensorsWriter writer(file, entries, {{"format", "pt"}});
  for (const auto& [entry, tensor] : rows)
    writer.write({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  writer.commit();
}

}  // namespace training
