// A library to preload into the ranks of a job (two_hosts.sh): they note in the file FINALIZE_MARKS when they enter
// MPI_Finalize and when they leave it, so that a hang of the MPI library's is told from one of ours before or after it.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

void note(const char* what) {
  const char* const path = std::getenv("FINALIZE_MARKS");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s %d\n", what, static_cast<int>(getpid()));
  std::fclose(file);
}

}  // namespace

extern "C" int MPI_Finalize() {
  using Function = int (*)();
  const auto finalize = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "MPI_Finalize"));
  note("enters");
  const int status = finalize();
  note("leaves");
  return status;
}
