#include "unreadable_images.hpp"

#include <map>
#include <span>
#include <sstream>

void UnreadableImages::tell(autopar::World& world, const images::ImageLoader& loader, const Say& say) {
  std::string mine;
  for (const auto& [image, reason] : loader.broken()) {
    const auto path = loader.folder().path(image).string();
    if (!known_.contains(path)) mine += path + '\0' + reason + '\0';
  }
  std::map<std::string, std::string> told;
  for (const auto& blob : world.all_gather(std::as_bytes(std::span(mine)), "unreadable images")) {
    std::istringstream text(std::string(reinterpret_cast<const char*>(blob.data()), blob.size()));
    for (std::string path, reason; std::getline(text, path, '\0') && std::getline(text, reason, '\0');)
      told.emplace(path, reason);
  }
  for (const auto& [path, reason] : told) {
    if (known_.insert(path).second && world.rank() == 0)
      say(path + ": " + reason + "; the next image of the folder takes its place");
  }
}
