#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace autopar::tool {

/// How a rank failed.
enum class FaultKind : std::uint8_t {
  kEnded,    ///< its process was gone
  kStalled,  ///< another rank waited for it in vain
  kTold,     ///< it failed by an error or an exception, and said so
};

/// What a rank said of the rank that failed.
struct Fault {
  FaultKind kind = FaultKind::kTold;
  std::optional<int> rank;  ///< none: it cannot be told
  std::string action;       ///< what it, or a rank that waited for it, was doing; may be empty
  std::string message;

  friend bool operator==(const Fault&, const Fault&) = default;
};

/// The fault that a line of a program's output tells of. Only the words of autopar's World count, since a program may
/// print what it likes.
[[nodiscard]] std::optional<Fault> fault_in(std::string_view line);

/// Reads a job's output and keeps who failed first: as a rank says, or else as the launcher does, which may end all
/// ranks before one has spoken.
class FaultReport {
 public:
  void read(std::string_view line);

  [[nodiscard]] const std::optional<Fault>& fault() const { return fault_ ? fault_ : launchers_; }
  /// The launcher has lost this rank, which counts where no rank has spoken.
  void blame(int rank);
  /// The signal that ended a process, as the launcher says.
  [[nodiscard]] std::optional<int> signal() const { return signal_; }
  /// Whether the job cannot go on: a rank has said who failed, or the launcher that a process has ended badly.
  [[nodiscard]] bool is_lost() const { return fault() || is_lost_; }

  /// The exit status of the program.
  /// @param launcher_status  of mpiexec, 128 + the signal if it was killed; nothing if that was not by itself
  [[nodiscard]] int status(std::optional<int> launcher_status) const;

 private:
  void read_hydra(std::string_view line);
  void read_open_mpi(std::string_view line);

  std::optional<Fault> fault_, launchers_;
  std::optional<int> signal_, abort_;
  bool is_lost_ = false;
};

/// "rank 2 failed in 'step 12': its process has ended without leaving the World"
[[nodiscard]] std::string described(const Fault& fault);

}  // namespace autopar::tool
