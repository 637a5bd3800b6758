#include "fashion_mnist.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <zlib.h>

namespace {

/// Content of an IDX file: big-endian magic and sizes, then bytes.
torch::Tensor read_idx(const std::filesystem::path& path, uint32_t dims) {
  const auto fail = [&](const std::string& reason) {
    throw std::runtime_error(path.string() + ": " + reason +
                             "; `apt-get install dataset-fashion-mnist` brings it, or name its folder with --data");
  };
  const auto close = [](gzFile file) { gzclose(file); };
  const std::unique_ptr<gzFile_s, decltype(close)> file(gzopen(path.c_str(), "rb"), close);
  if (file == nullptr) fail("cannot open the data set");
  const auto read_size = [&] {
    unsigned char bytes[4];
    if (gzread(file.get(), bytes, 4) != 4) fail("the file is truncated");
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  };
  if (read_size() != (0x800u | dims)) fail("not an IDX file of bytes with " + std::to_string(dims) + " dimensions");
  std::vector<int64_t> shape(dims);
  std::generate(shape.begin(), shape.end(), read_size);
  auto data = torch::empty(shape, torch::kUInt8);
  if (data.numel() > (1 << 30)) fail("implausibly large");
  if (gzread(file.get(), data.data_ptr(), static_cast<unsigned>(data.numel())) != data.numel())
    fail("the file is truncated");
  return data;
}

}  // namespace

Dataset read_fashion_mnist(const std::filesystem::path& folder, const std::string& prefix) {
  const auto images = read_idx(folder / (prefix + "-images-idx3-ubyte.gz"), 3);
  const auto labels = read_idx(folder / (prefix + "-labels-idx1-ubyte.gz"), 1);
  if (images.size(0) != labels.size(0))
    throw std::runtime_error(folder.string() + ": images and labels differ in number");
  return {images.unsqueeze(1), labels.to(torch::kLong)};
}

std::tuple<torch::Tensor, torch::Tensor> Dataset::batch(const torch::Tensor& numbers, torch::ScalarType dtype,
                                                        torch::Device device) const {
  return {images.index_select(0, numbers).to(device, dtype).div_(255.0).sub_(0.2860).div_(0.3530),
          labels.index_select(0, numbers).to(device)};
}

std::tuple<torch::Tensor, torch::Tensor> Dataset::batch(const std::vector<std::size_t>& numbers,
                                                        torch::Device device) const {
  return batch(torch::tensor(std::vector<int64_t>(numbers.begin(), numbers.end())), torch::kFloat, device);
}

ShardedLoader::ShardedLoader(Dataset data, int64_t global_batch, int rank, int ranks, torch::ScalarType dtype,
                             torch::Device device)
    : data_(std::move(data)), global_batch_(global_batch), rank_(rank), ranks_(ranks), dtype_(dtype), device_(device) {
  start(std::nullopt);
}

void ShardedLoader::start(std::optional<uint64_t> seed) {
  order_ = torch::arange(data_.size());
  if (seed) {
    auto* first = order_.data_ptr<int64_t>();
    std::shuffle(first, first + order_.numel(), std::mt19937_64(*seed));
  }
  position_ = 0;
}

std::optional<ShardedLoader::Batch> ShardedLoader::next() {
  if (position_ >= data_.size()) return std::nullopt;
  const int64_t samples = std::min(global_batch_, data_.size() - position_);
  const int64_t begin = position_ + samples * rank_ / ranks_;
  const int64_t end = position_ + samples * (rank_ + 1) / ranks_;
  position_ += samples;
  auto [images, labels] = data_.batch(order_.slice(0, begin, end), dtype_, device_);
  return Batch{std::move(images), std::move(labels), samples};
}
