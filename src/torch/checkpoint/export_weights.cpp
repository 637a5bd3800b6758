#include "torch/checkpoint/export_weights.hpp"

#include <map>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/safetensors.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::checkpoint {

namespace {

constexpr const char* kExport = "export of weights";

/// Metadata of the file: transformers asks for the format; aliases are as safetensors.torch.save_model writes them.
std::map<std::string, std::string> exported_metadata(const std::vector<ShardedTensorMetadata>& tensors) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& tensor : tensors) {
    for (const auto& alias : tensor.aliases) metadata[alias] = tensor.name;
  }
  return metadata;
}

}  // namespace

std::exception_ptr no_type_of_weights(std::optional<c10::ScalarType> dtype) {
  if (!dtype || *dtype == at::kDouble || *dtype == at::kFloat || *dtype == at::kHalf || *dtype == at::kBFloat16)
    return nullptr;
  return std::make_exception_ptr(InvalidArgument("export_weights: weights cannot be exported as " +
                                                 std::string(c10::toString(*dtype)) +
                                                 "; pass torch::kDouble, kFloat, kHalf or kBFloat16, or no type"));
}

void write_weights(World& world, const std::filesystem::path& file, const std::vector<ShardedTensorMetadata>& tensors,
                   std::optional<c10::ScalarType> dtype) {
  const auto subject = "cannot export weights to " + file.string();
  auto written = model_items(tensors);
  for (auto& item : written) {
    item.entry.name = item.tensor->name;
    if (dtype && item.tensor->handle.is_floating_point()) item.entry.dtype = parameters::dtype_of(*dtype);
  }
  written = in_file_order(std::move(written), {});
  require_same_items(world, written, subject);
  std::optional<SafetensorsWriter> writer;  // on rank 0
  all_or_none(world, kExport, subject, [&] {
    if (world.rank() != 0) return;
    std::vector<TensorEntry> entries;
    for (const auto& item : written) entries.push_back(item.entry);
    static_cast<void>(remove_partial_files(file));
    writer.emplace(file, std::move(entries), exported_metadata(tensors));
  });
  std::exception_ptr failure;  // rank 0 continues, so that all ranks stay in step
  for (const auto& item : written) {
    auto gathered = item;
    gathered.entry.dtype = parameters::dtype_of(item.tensor->handle.scalar_type());
    const auto data = to_root(world, gathered);
    if (world.rank() != 0 || failure) continue;
    try {
      writer->write(memory_of(data.to(parameters::scalar_type_of(item.entry.dtype))));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }
  all_or_none(world, kExport, subject, [&] {
    if (failure) std::rethrow_exception(failure);
    if (writer) writer->commit();
  });
}

}  // namespace autopar::checkpoint
