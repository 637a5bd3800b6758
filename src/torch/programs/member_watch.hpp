#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace autopar::programs {

/// What a program was last compared with, byte by byte.
struct MembersSeen {
  std::vector<std::byte> bytes;
  std::vector<bool> ignored;  ///< by block of 4 bytes: changed once, and the program did not
};

/// Tells that members of modules have changed (a temperature, a dropout rate), by the bytes of the objects: those of
/// the model itself, whose size its caller knows, and of libtorch's own modules, whose sizes are known here. A pointer
/// or a statistic changes bytes as well, so a change is a reason to look and no more. Members of other classes, and
/// what is behind pointers, it does not see. A look costs what comparing the bytes does.
class MemberWatch {
 public:
  /// @param own  the bytes of `model`, or none
  MemberWatch(const torch::nn::Module& model, std::span<const std::byte> own);

  /// @param beside  bytes of what else the program's code holds: of a loss function
  [[nodiscard]] MembersSeen look(std::string_view beside) const;
  /// Whether anything that is not ignored is otherwise than `seen`.
  [[nodiscard]] bool changed(const MembersSeen& seen, std::string_view beside) const;
  /// Ignores from now on what is otherwise than `seen`: for its program.
  void ignore_changes(MembersSeen& seen, std::string_view beside) const;
  /// The same for all programs: what a forward that was run to be captured wrote itself.
  void ignore_changes_for_all(const MembersSeen& before);

 private:
  void watch(const torch::nn::Module& module, std::span<const std::byte> object);
  template <class Visit>
  void for_each_change(const MembersSeen& seen, std::string_view beside, Visit&& visit) const;

  std::vector<std::span<const std::byte>> members_;
  std::vector<bool> ignored_;  ///< by block, of members alone
};

}  // namespace autopar::programs
