#include "weights_file.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <autopar/core/error.hpp>
#include <autopar/io/safetensors.hpp>

namespace ap = autopar;

namespace {

ap::DType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat:
      return ap::DType::kF32;
    case torch::kDouble:
      return ap::DType::kF64;
    case torch::kLong:
      return ap::DType::kI64;
    default:
      throw ap::InvalidArgument("weights of this type cannot be written: " + tensor.toString());
  }
}

}  // namespace

void write_weights(const torch::OrderedDict<std::string, at::Tensor>& state, const std::filesystem::path& file) {
  std::vector<std::pair<ap::TensorEntry, at::Tensor>> rows;
  for (const auto& item : state) {
    const auto tensor = item.value().detach().cpu().contiguous();
    rows.push_back({{item.key(), type_of(tensor), tensor.sizes().vec()}, tensor});
  }
  // Longest elements first, so that all data are aligned.
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return ap::size_of(a.first.dtype) > ap::size_of(b.first.dtype);
  });
  std::vector<ap::TensorEntry> entries;
  for (const auto& [entry, tensor] : rows) entries.push_back(entry);
  ap::SafetensorsWriter writer(file, entries, {{"format", "pt"}});
  for (const auto& [entry, tensor] : rows)
    writer.write({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  writer.commit();
}
