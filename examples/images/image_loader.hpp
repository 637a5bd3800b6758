#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "image_folder.hpp"
#include "transform.hpp"

namespace images {

struct LoaderOptions {
  std::int64_t batch = 256;  ///< images of all ranks together
  int rank = 0, ranks = 1;
  int workers = 1;   ///< threads
  int prefetch = 3;  ///< batches that are read ahead
  std::uint64_t seed = 1;
  Transform transform{};
  bool pinned = false;  ///< batches are in memory that a CUDA device copies from by itself
};

/// The share of every global batch that one rank works on, read ahead by threads.
///
/// All ranks shuffle alike, and what is random about an image is a function of (seed, epoch, image): a global batch is
/// the same numbers in the same order for every number of ranks and threads. Rank r of n takes places [batch*r/n,
/// batch*(r+1)/n) of it. A training's epoch leaves out what is left when no whole batch is; validation does not, keeps
/// the folder's order, and there ranks may have no image of the last batch.
///
/// An image that cannot be read is replaced by the one behind it in the folder (behind the last is the first), with
/// that one's label; `broken` tells of it.
class ImageLoader {
 public:
  struct Batch {
    torch::Tensor images;  ///< [samples, 3, size, size], float, channels last
    torch::Tensor labels;  ///< [samples], int64
    std::int64_t global_samples;
  };

  /// @throws std::invalid_argument if a training's folder has fewer images than a batch
  ImageLoader(ImageFolder folder, LoaderOptions options);

  /// Begins an epoch, or goes on with it at a batch that is not its first. What was read ahead is dropped.
  void start(std::uint64_t epoch, std::int64_t first_batch = 0);
  /// The next batch, or nothing at the end of the epoch (on all ranks alike).
  /// @throws ImageError if a hundred images in a row cannot be read; whatever else stopped a thread
  [[nodiscard]] std::optional<Batch> next();

  [[nodiscard]] std::int64_t batches() const;  ///< of an epoch
  [[nodiscard]] const ImageFolder& folder() const { return folder_; }
  /// Reasons, by place in the folder, of the images that this rank could not read so far.
  [[nodiscard]] std::map<std::int64_t, std::string> broken() const;
  /// Seconds that `next` has waited for images so far: with enough threads none.
  [[nodiscard]] double waited() const { return waited_; }

 private:
  /// A batch that is being read.
  struct Slot {
    Batch batch;
    std::uint64_t epoch = 0;
    std::vector<std::int64_t> images;  ///< places in the folder
    std::size_t begun = 0, done = 0;   ///< of `images`
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop);
  /// The batch with the next image that nobody reads yet; null: there is none now. With the mutex held.
  std::shared_ptr<Slot> slot_with_work();
  std::shared_ptr<Slot> made_slot(std::int64_t index) const;
  void read_place(const Slot& slot, std::size_t place, std::vector<std::byte>& file);

  ImageFolder folder_;
  LoaderOptions options_;
  std::vector<std::int64_t> order_;
  std::uint64_t epoch_ = 0;
  double waited_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable_any work_, ready_;
  std::deque<std::shared_ptr<Slot>> slots_;  ///< batches not yet taken, in order
  std::int64_t next_batch_ = 0;              ///< the first without a slot
  std::map<std::int64_t, std::string> broken_;
  std::vector<std::jthread> threads_;  ///< the last member, ended first: they use the others
};

}  // namespace images
