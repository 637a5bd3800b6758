#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/types.h>

/// Images [n, 1, 28, 28] as bytes and labels [n] as int64, all in memory (47 MB for the training set).
struct Dataset {
  torch::Tensor images;
  torch::Tensor labels;
  int64_t size() const { return labels.size(0); }

  /// Images [samples, 1, 28, 28], normalised, and labels [samples], of the numbered samples.
  std::tuple<torch::Tensor, torch::Tensor> batch(const torch::Tensor& numbers, torch::ScalarType dtype,
                                                 torch::Device device) const;
  std::tuple<torch::Tensor, torch::Tensor> batch(const std::vector<std::size_t>& numbers, torch::Device device) const;
};

/// Reads `PREFIX-images-idx3-ubyte.gz` and `PREFIX-labels-idx1-ubyte.gz` as Debian's dataset-fashion-mnist installs
/// them.
/// @param prefix  "train" or "t10k"
/// @throws std::runtime_error naming the missing or damaged file and the package that brings it
Dataset read_fashion_mnist(const std::filesystem::path& folder, const std::string& prefix);

/// The share of every global batch that one rank trains on.
///
/// All ranks shuffle alike, so a global batch is the same samples in the same order for every number of ranks; rank r
/// of n takes positions [batch*r/n, batch*(r+1)/n) of it. The last batch of an epoch may be smaller.
class ShardedLoader {
 public:
  struct Batch {
    torch::Tensor images;  ///< [samples, 1, 28, 28], normalised
    torch::Tensor labels;  ///< [samples]
    int64_t global_samples;
  };

  ShardedLoader(Dataset data, int64_t global_batch, int rank, int ranks, torch::ScalarType dtype, torch::Device device);

  /// Starts an epoch; with a seed the order is shuffled.
  void start(std::optional<uint64_t> seed);
  /// The next batch, or nothing at the end of the epoch (on all ranks alike).
  std::optional<Batch> next();
  int64_t size() const { return data_.size(); }

 private:
  Dataset data_;
  int64_t global_batch_;
  int rank_, ranks_;
  torch::ScalarType dtype_;
  torch::Device device_;
  torch::Tensor order_;
  int64_t position_ = 0;
};
