#include "data.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/torch/device.hpp>

#include "images/image_folder.hpp"

namespace ap = autopar;
using Kind = images::Transform::Kind;

namespace {

/// All ranks must list the same files, or they would train on other images than they say.
void require_same(ap::World& world, const images::ImageFolder& folder) {
  const std::array mine{folder.fingerprint(), static_cast<std::uint64_t>(folder.size())};
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "images of all ranks");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::array<std::uint64_t, 2> theirs{};
    std::memcpy(theirs.data(), all[rank].data(), sizeof(theirs));
    if (theirs == mine) continue;
    throw ap::InvalidArgument(folder.root.string() + " has " + std::to_string(mine[1]) + " images for rank " +
                              std::to_string(world.rank()) + " and " + std::to_string(theirs[1]) + " for rank " +
                              std::to_string(rank) + ", or other names: all hosts need the same files");
  }
}

}  // namespace

Data opened(ap::World& world, const Settings& settings) {
  Data data{{},
            {},
            ap::device_of(world, settings.options.device),
            settings.fp64 ? torch::Dtype(torch::kDouble) : torch::Dtype(torch::kFloat)};
  const int cores = static_cast<int>(std::thread::hardware_concurrency()) / world.local_size();
  const int unset = data.device.is_cuda() ? std::clamp(cores, 1, 16) : 1;
  images::LoaderOptions options{.batch = settings.batch,
                                .rank = world.rank(),
                                .ranks = world.size(),
                                .workers = settings.workers > 0 ? settings.workers : unset,
                                .prefetch = settings.prefetch,
                                .seed = settings.seed,
                                .pinned = data.device.is_cuda()};
  const std::filesystem::path root = settings.data;
  const auto loader = [&](const char* part, Kind kind, const std::vector<std::string>& classes) {
    auto folder = images::read_image_folder(root / part, classes);
    require_same(world, folder);
    options.transform = settings.transform(kind);
    return std::make_unique<images::ImageLoader>(std::move(folder), options);
  };
  data.training = loader("train", Kind::kTraining, {});
  if (settings.skips_validation) return data;
  if (!std::filesystem::is_directory(root / "val"))
    throw ap::InvalidArgument("there is no " + (root / "val").string() +
                              " to validate on; --no-validation does without");
  data.validation = loader("val", Kind::kValidation, data.training->folder().classes);
  return data;
}
