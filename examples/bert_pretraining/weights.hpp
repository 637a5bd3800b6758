#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/safetensors.hpp>

#include "training/from_first.hpp"

/// A folder with a link to a file of weights, under the name that a checkpoint has.
class LinkedWeights {
 public:
  /// Collective: rank 0 makes it. @throws autopar::InvalidArgument on every rank if there is no such file
  LinkedWeights(autopar::World& world, const std::filesystem::path& weights) : is_mine_(world.rank() == 0) {
    namespace fs = std::filesystem;
    folder_ = training::from_first(world, "file of weights", [&] {
      if (!fs::is_regular_file(weights))
        throw std::runtime_error(weights.string() + ": there is no such file of weights");
      auto pattern = (fs::temp_directory_path() / "bert_weights_XXXXXX").string();
      if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error(pattern + ": cannot make the folder");
      fs::create_symlink(fs::absolute(weights), fs::path(pattern) / "model.safetensors");
      return pattern;
    });
  }
  LinkedWeights(const LinkedWeights&) = delete;
  LinkedWeights& operator=(const LinkedWeights&) = delete;
  ~LinkedWeights() {
    std::error_code ignored;
    if (is_mine_) std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  bool is_mine_;
  std::string folder_;
};

/// Writes parameters in fp32 under their own names, which Hugging Face's models read. Of rank 0.
inline void write_weights(const torch::OrderedDict<std::string, at::Tensor>& state, const std::string& file) {
  std::vector<autopar::TensorEntry> entries;
  for (const auto& item : state) {
    entries.push_back({item.key(), autopar::DType::kF32, item.value().sizes().vec()});
  }
  autopar::SafetensorsWriter writer(file, entries, {{"format", "pt"}});
  for (const auto& item : state) {
    const auto values = item.value().detach().to(torch::kCPU, torch::kFloat).contiguous();
    const auto count = static_cast<std::size_t>(values.numel());
    writer.write(std::as_bytes(std::span(values.data_ptr<float>(), count)));
  }
  writer.commit();
}
