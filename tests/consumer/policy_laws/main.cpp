// Holds the policies of a user to the laws of their concepts. What is broken ends the program with its name, the seed
// and the input.
#include "../own_policy/halves_staging.hpp"
#include "../own_policy/last_first.hpp"
#include "../own_policy/pairs_coarsening.hpp"

#include <autopar/testing/coarsening_laws.hpp>
#include <autopar/testing/schedule_laws.hpp>
#include <autopar/testing/staging_laws.hpp>

#include <cstdio>

int main() {
  try {
    const auto tally = autopar::testing::check_staging_laws(HalvesStaging{});
    autopar::testing::check_coarsening_laws(PairsCoarsening{});
    autopar::testing::check_schedule_laws(LastFirst{});
    std::printf("%d stagings of %d inputs fit, and all laws hold\n", tally.fitting, tally.searched);
  } catch (const autopar::testing::LawBroken& broken) {
    std::fprintf(stderr, "%s\n", broken.what());
    return 1;
  }
  return 0;
}
