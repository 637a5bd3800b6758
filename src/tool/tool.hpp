#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace autopar::tool {

/// Exit statuses of every command, as diff(1) has them.
inline constexpr int kDone = 0;
inline constexpr int kNo = 1;       ///< `check` rejects the plan, `diff` found a difference
inline constexpr int kTrouble = 2;  ///< bad arguments or files, no plan fits: one line on the error stream says why

/// The command-line tool: `arguments` are those after the program's name. Never throws ap::Error.
int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

}  // namespace autopar::tool
