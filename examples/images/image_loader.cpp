#include "image_loader.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <system_error>

namespace images {

namespace {

constexpr std::int64_t kMostBrokenInARow = 100;

void read_file(const std::filesystem::path& path, std::vector<std::byte>& bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw ImageError("cannot be opened: " + std::generic_category().message(errno));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamoff>(0, file.tellg())));
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw ImageError("cannot be read: " + std::generic_category().message(errno));
}

}  // namespace

ImageLoader::ImageLoader(ImageFolder folder, LoaderOptions options)
    : folder_(std::move(folder)), options_(options), order_(static_cast<std::size_t>(folder_.size())) {
  if (batches() == 0) {
    throw std::invalid_argument(folder_.root.string() + " has " + std::to_string(folder_.size()) +
                                " images, which are less than a batch of " + std::to_string(options_.batch));
  }
  next_batch_ = batches();  // until an epoch begins there is nothing to do
  for (int i = 0; i < std::max(1, options_.workers); ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

std::int64_t ImageLoader::batches() const {
  const bool whole = options_.transform.kind == Transform::Kind::kTraining;
  return whole ? folder_.size() / options_.batch : (folder_.size() + options_.batch - 1) / options_.batch;
}

void ImageLoader::start(std::uint64_t epoch, std::int64_t first_batch) {
  {
    const std::lock_guard lock(mutex_);
    slots_.clear();
    epoch_ = epoch;
    next_batch_ = first_batch;
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    if (options_.transform.kind == Transform::Kind::kTraining) {
      std::seed_seq seeds{options_.seed, options_.seed >> 32U, epoch, epoch >> 32U};
      std::shuffle(order_.begin(), order_.end(), std::mt19937_64(seeds));
    }
  }
  work_.notify_all();
}

std::optional<ImageLoader::Batch> ImageLoader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (slots_.empty() && next_batch_ >= batches()) return std::nullopt;
  ready_.wait(lock, [&] { return !slots_.empty() && slots_.front()->done == slots_.front()->images.size(); });
  const auto slot = std::move(slots_.front());
  slots_.pop_front();
  lock.unlock();
  work_.notify_all();
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (slot->error) std::rethrow_exception(slot->error);
  return std::move(slot->batch);
}

std::map<std::int64_t, std::string> ImageLoader::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void ImageLoader::work(const std::stop_token& stop) {
  std::vector<std::byte> file;
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Slot> slot;
    work_.wait(lock, stop, [&] { return (slot = slot_with_work()) != nullptr; });
    if (stop.stop_requested()) return;
    const auto place = slot->begun++;
    lock.unlock();
    std::exception_ptr error;
    try {
      read_place(*slot, place, file);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) slot->error = error;
    if (++slot->done == slot->images.size()) ready_.notify_all();
  }
}

std::shared_ptr<ImageLoader::Slot> ImageLoader::slot_with_work() {
  for (const auto& slot : slots_) {
    if (slot->begun < slot->images.size()) return slot;
  }
  while (next_batch_ < batches() && slots_.size() < static_cast<std::size_t>(options_.prefetch)) {
    slots_.push_back(made_slot(next_batch_++));
    if (!slots_.back()->images.empty()) return slots_.back();
    ready_.notify_all();  // of the last batch this rank has nothing
  }
  return nullptr;
}

std::shared_ptr<ImageLoader::Slot> ImageLoader::made_slot(std::int64_t index) const {
  const auto position = index * options_.batch;
  const auto samples = std::min(options_.batch, folder_.size() - position);
  const auto begin = position + samples * options_.rank / options_.ranks;
  const auto end = position + samples * (options_.rank + 1) / options_.ranks;
  auto slot = std::make_shared<Slot>();
  slot->epoch = epoch_;
  slot->images.assign(order_.begin() + begin, order_.begin() + end);
  const auto sides = std::int64_t{options_.transform.size};
  const auto floats = torch::TensorOptions(torch::kFloat).pinned_memory(options_.pinned);
  slot->batch.images = torch::empty({end - begin, sides, sides, 3}, floats).permute({0, 3, 1, 2});
  slot->batch.labels = torch::empty({end - begin}, torch::TensorOptions(torch::kLong).pinned_memory(options_.pinned));
  slot->batch.global_samples = samples;
  return slot;
}

void ImageLoader::read_place(const Slot& slot, std::size_t place, std::vector<std::byte>& file) {
  const auto wanted = slot.images[place];
  const auto floats = static_cast<std::size_t>(3 * options_.transform.size * options_.transform.size);
  const std::span<float> out(slot.batch.images.data_ptr<float>() + floats * place, floats);
  const Dice dice(options_.seed, slot.epoch, static_cast<std::uint64_t>(wanted));
  std::string reason;
  for (std::int64_t tries = 0; tries < std::min(kMostBrokenInARow, folder_.size()); ++tries) {
    const auto image = (wanted + tries) % folder_.size();
    try {
      read_file(folder_.path(image), file);
      read_image(file, options_.transform, dice, out);
      slot.batch.labels.data_ptr<std::int64_t>()[place] = folder_.labels[static_cast<std::size_t>(image)];
      return;
    } catch (const ImageError& error) {
      reason = error.what();
      const std::lock_guard lock(mutex_);
      broken_.try_emplace(image, reason);
    }
  }
  throw ImageError(folder_.path(wanted).string() + " and all images after it cannot be read; the last one: " + reason);
}

}  // namespace images
