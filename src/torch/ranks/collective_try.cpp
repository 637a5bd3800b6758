#include "torch/ranks/collective_try.hpp"

#include <cstddef>
#include <exception>

#include <autopar/core/error.hpp>

#include "torch/ranks/error_message.hpp"

namespace autopar::ranks {

void collective_try(Ranks& ranks, std::string_view action, const std::function<void()>& work) {
  std::exception_ptr error;
  std::string message;
  try {
    work();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& caught) {
    error = without_frames(ranks.logger(LogModule::kSession), action);
    message = to_message(caught);
  }
  const auto messages = ranks.all_gather(blob_of(message), action);
  if (error) std::rethrow_exception(error);
  for (std::size_t r = 0; r < messages.size(); ++r) {
    if (!messages[r].empty()) throw_message(text_of(messages[r]), ranks.rank(), Rank::of(r), std::string(action));
  }
}

void collective_try(World& world, std::string_view action, const std::function<void()>& work) {
  WorldRanks ranks(world);
  collective_try(ranks, action, work);
}

Blob blob_of(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string text_of(const Blob& blob) { return {reinterpret_cast<const char*>(blob.data()), blob.size()}; }

}  // namespace autopar::ranks
