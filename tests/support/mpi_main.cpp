#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "run_catch.hpp"

extern "C" int autopar_test_visible_gpus();

namespace {

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE
constexpr int kWrongWorld = 78;

/// Ends the test program when the launcher made another world than ctest asked for: Ubuntu 24.04's mpich starts n
/// worlds of one.
void check_world_size(int size) {
  const char* wanted = std::getenv("TEST_RANKS");
  if (wanted != nullptr && std::stoi(wanted) != size) {
    std::fprintf(stderr, "the launcher made a world of %d, not of %s: mpiexec and the MPI library do not match\n", size,
                 wanted);
    std::exit(kWrongWorld);
  }
}

}  // namespace

/// Runs every test case on every rank; the worst result of any rank is the result of all.
int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  check_world_size(size);

  if (const int gpus = autopar_test_visible_gpus(); gpus >= 0 && gpus < size) {
    if (rank == 0) std::fprintf(stderr, "skipped: %d ranks need as many GPUs, %d are visible\n", size, gpus);
    MPI_Finalize();
    return kSkipped;
  }

  // An exception that leaves a test case on one rank only would strand the others: the launcher's timeout ends them.
  const int failed = std::min(run_catch(argc, argv), 255);
  int worst = 0;
  MPI_Allreduce(&failed, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (failed != 0) std::fprintf(stderr, "rank %d: failed\n", rank);
  MPI_Finalize();
  return worst;
}
