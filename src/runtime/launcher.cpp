#include "launcher.hpp"

#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>

namespace autopar::detail {
namespace {

/// Hydra (mpich, Intel MPI, MVAPICH), Open MPI, Slurm with or without a PMI plugin, Cray PALS.
constexpr const char* kSizes[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                  "PALS_NRANKS"};
/// Which process this is.
constexpr const char* kRanks[] = {"PMI_RANK",    "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK",
                                  "PALS_RANKID", "SLURM_PROCID"};
/// Of those, what says that there is a launcher where no size does.
constexpr const char* kWithoutSize[] = {"PMI_RANK", "PMIX_RANK", "PALS_RANKID"};
constexpr const char* kLocalSizes[] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE",
                                       "PALS_LOCAL_SIZE"};

std::optional<int> number(const char* text) {
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{} || end != view.data() + view.size()) return std::nullopt;
  return value;
}

std::optional<int> first_number(std::span<const char* const> variables) {
  for (const char* variable : variables) {
    const char* text = std::getenv(variable);
    if (const auto value = text == nullptr ? std::nullopt : number(text)) return value;
  }
  return std::nullopt;
}

/// The process at the other end of a socket, as the kernel says; 0 if it is none.
pid_t peer_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

void find_connection(Launcher& launcher) {
  // Hydra starts the processes of a host from one proxy, which is in no variable, but at the other end of PMI_FD.
  const int connection = first_number(std::array{"PMI_FD"}).value_or(-1);
  if (const pid_t proxy = connection < 0 ? 0 : peer_of(connection); proxy > 0) {
    launcher.lifeline = connection;
    launcher.job = "hydra-" + std::to_string(proxy);
    return;
  }
  if (const char* name = std::getenv("PMIX_NAMESPACE")) launcher.job = std::string("pmix-") + name;
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* step = std::getenv("SLURM_STEP_ID");
  if (job != nullptr && step != nullptr) launcher.job = std::string("slurm-") + job + "." + step;
}

/// Which variable says that there is a launcher, and how many processes it started if it says so.
std::optional<Launcher> find_variable() {
  const auto named = [](const char* variable, int size) {
    Launcher launcher;
    launcher.variable = variable;
    launcher.size = size;
    return launcher;
  };
  for (const char* variable : kSizes) {
    const char* text = std::getenv(variable);
    if (const auto size = text == nullptr ? std::nullopt : number(text)) return named(variable, *size);
  }
  for (const char* variable : kWithoutSize) {
    if (std::getenv(variable)) return named(variable, 0);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Launcher> find_launcher() {
  auto launcher = find_variable();
  if (!launcher) return std::nullopt;
  launcher->rank = first_number(kRanks).value_or(-1);
  launcher->local_size = first_number(kLocalSizes).value_or(0);
  find_connection(*launcher);
  return launcher;
}

}  // namespace autopar::detail
