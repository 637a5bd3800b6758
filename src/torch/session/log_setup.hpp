#pragma once

#include <autopar/io/config.hpp>
#include <autopar/io/config_search.hpp>

#include "torch/ranks/ranks.hpp"

namespace autopar::session {

/// Sets the log of the World's ranks as rank 0's logging.toml and `log_level` say, and tells on rank 0 which files were
/// read, once a World. Collective.
/// @param sources   of this rank
/// @param log_file  what rank 0 has found; of other ranks it is ignored
/// @throws ConfigError on all ranks if the file is wrong
/// @throws ConfigError on all ranks if a rank cannot open a sink
/// @throws InvalidArgument on all ranks if `log_level` has a part that is no level
void set_up_log(ranks::WorldRanks& ranks, const ConfigSources& sources, const ResolvedOptions& resolved,
                const FoundConfig& log_file);

}  // namespace autopar::session
