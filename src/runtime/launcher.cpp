#include "launcher.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace autopar::detail {
namespace {

/// Hydra (mpich, Intel MPI, MVAPICH), Open MPI, Slurm with or without a PMI plugin, Cray PALS.
constexpr const char* kSizes[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                  "PALS_NRANKS"};
/// Those say that there is a launcher, but not how many processes it started.
constexpr const char* kRanks[] = {"PMI_RANK", "PMIX_RANK", "PALS_RANKID"};

std::optional<int> number(const char* text) {
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{} || end != view.data() + view.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Launcher> find_launcher() {
  for (const char* variable : kSizes) {
    if (const char* text = std::getenv(variable)) {
      if (const auto size = number(text)) return Launcher{variable, *size};
    }
  }
  for (const char* variable : kRanks) {
    if (std::getenv(variable)) return Launcher{variable, 0};
  }
  return std::nullopt;
}

}  // namespace autopar::detail
