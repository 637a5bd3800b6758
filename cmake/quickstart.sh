#!/usr/bin/env bash
# bash cmake/quickstart.sh        from a bare Debian 12 or Ubuntu 24.04 to a network trained on 4 MPI ranks
# bash cmake/quickstart.sh test   builds and runs every test that this machine can run
#
# Needs root or sudo for the Debian packages, unless they are installed. Every step can be interrupted at any point: called
# again, the script goes on; when everything is in place, it only runs.
#
# Environment, all optional:
#   LibTorch_ROOT, Torch_DIR, CMAKE_PREFIX_PATH   a libtorch of your own; without one, PyPI's is fetched
#   AUTOPAR_CACHE   where the fetched libtorch goes (~/.cache/autopar)
#   AUTOPAR_BUILD   the build folder (build/quickstart)
#   AUTOPAR_JOBS    compilers at once (cores, but 3 GiB of memory for each)
set -euo pipefail

readonly kTorchVersion=2.11.0
readonly kRanks=4
readonly kMinimumCmake=3.25

mode=${1:-train}
if [ $# -gt 1 ] || { [ "$mode" != train ] && [ "$mode" != test ]; }; then
  echo "usage: bash cmake/quickstart.sh [test]" >&2
  exit 2
fi
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=${AUTOPAR_BUILD:-$source_dir/build/quickstart}
cache_dir=${AUTOPAR_CACHE:-${XDG_CACHE_HOME:-${HOME:-$source_dir/build}/.cache}/autopar}
log_dir=$build_dir/logs
mkdir -p "$log_dir"
export -n AUTOPAR_BUILD AUTOPAR_CACHE AUTOPAR_JOBS # this script's, and no options of the programs that it starts

# ---------------------------------------------------------------- steps

say() { printf '%s\n' "$*"; }

# What the log of a failed step says about its cause; else the cure that the step names.
likely_cure() {
  local log=$1 default=$2
  if grep -qiE 'no space left on device' "$log"; then
    say "free some disk space (a full run needs about 3 GB), then call this script again"
  elif grep -qE 'Killed|cannot allocate memory|virtual memory exhausted|terminated signal' "$log"; then
    say "the machine ran out of memory: AUTOPAR_JOBS=1 bash cmake/quickstart.sh"
  elif grep -qiE 'could not resolve|temporary failure|network is unreachable|connection (refused|timed out|reset)|read timed out|failed to fetch|NewConnectionError' "$log"; then
    say "the network was not reachable: check it (and http_proxy, https_proxy), then call this script again"
  else
    say "$default"
  fi
}

# step NAME CURE COMMAND...: runs the command with its output in the step's log; on failure says what, where and what to do.
step() {
  local name=$1 cure=$2
  shift 2
  local log=$log_dir/$name.log started=$SECONDS status
  : >"$log"
  report_progress "$log" 9>&- &
  local reporter=$!
  set +e # in place of `|| status=$?`, which would switch off `set -e` within the command
  ( set -e; "$@" ) >"$log" 2>&1
  status=$?
  set -e
  kill "$reporter" 2>/dev/null || true
  wait "$reporter" 2>/dev/null || true
  if [ "$status" -ne 0 ]; then fail "$name" "$log" "$cure"; fi
  say "   done in $((SECONDS - started)) s"
}

# live_step NAME CURE COMMAND...: as step, but the output is shown as it comes.
live_step() {
  local name=$1 cure=$2
  shift 2
  local log=$log_dir/$name.log
  if ! "$@" 2>&1 | tee "$log"; then fail "$name" "$log" "$cure"; fi
}

# Every 20 seconds the last line of a log, while this script lives.
report_progress() {
  local log=$1 line
  while ! read -r -t 20 <> <(:) && kill -0 $$ 2>/dev/null; do # waits without a child that could outlive it
    line=$(tail -n 1 "$log" | cut -c 1-110)
    say "   ... ${line:-working}"
  done
}

fail() {
  local name=$1 log=$2 cure=$3
  {
    say ""
    say "The last lines of the log:"
    tail -n 15 "$log" | sed 's/^/   | /'
    say "FAILED STEP: $name"
    say "LOG:         $log"
    say "LIKELY CURE: $(likely_cure "$log" "$cure")"
  } >&2
  exit 1
}

# ---------------------------------------------------------------- 1. Debian packages

distribution() { . /etc/os-release 2>/dev/null && printf '%s' "${ID:-unknown}"; }

# Ubuntu 24.04's mpich starts every process as rank 0 of 1 (launchpad 2072338): Open MPI there.
uses_openmpi() { [ "$(distribution)" = ubuntu ]; }

wanted_packages() {
  printf '%s\n' g++ cmake ninja-build ccache python3-venv zlib1g-dev libjpeg-dev libhdf5-dev dataset-fashion-mnist \
    libfmt-dev libspdlog-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libcli11-dev catch2
  if [ "$mode" = test ]; then printf '%s\n' clang-format-14 iproute2; fi
  # Not on Ubuntu: clang 14 does not compile <chrono> of libstdc++ 13. The test is skipped there.
  if [ "$mode" = test ] && [ "$(distribution)" = debian ]; then printf '%s\n' clang-tidy-14; fi
  if uses_openmpi; then
    printf '%s\n' openmpi-bin libopenmpi-dev
  elif ! command -v mpicxx >/dev/null || ! command -v mpiexec >/dev/null; then
    printf '%s\n' mpich libmpich-dev
  fi
}

missing_packages() {
  local package
  for package in $(wanted_packages); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a # what an interrupted call left half done
  as_root apt-get -o DPkg::Lock::Timeout=300 update
  # shellcheck disable=SC2086 # a list of names
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $1
}

prepare_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "1. Packages: this is no Debian or Ubuntu; I take the tools and libraries of README.md to be installed"
    return
  fi
  local missing
  missing=$(missing_packages)
  if [ -z "$missing" ]; then
    say "1. Packages: all installed"
  else
    say "1. Packages: installing $missing"
    step packages "as root: apt-get update && apt-get install ${missing% }" install_packages "$missing"
  fi
}

# ---------------------------------------------------------------- 2. libtorch

is_libtorch() { [ -e "$1/include/ATen/ATen.h" ] && [ -e "$1/lib/libtorch_cpu.so" ]; }

# The libtorch that the caller's environment names, if any.
libtorch_of_caller() {
  local -a places=()
  local place
  if [ -n "${LibTorch_ROOT:-}" ]; then places+=("$LibTorch_ROOT"); fi
  if [ -n "${Torch_DIR:-}" ]; then places+=("$Torch_DIR/../../.."); fi
  while IFS= read -r place; do
    if [ -n "$place" ]; then places+=("$place" "$place/../.."); fi
  done < <(printf '%s\n' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '\n\n')
  for place in "${places[@]}"; do
    if is_libtorch "$place"; then (cd "$place" && pwd); return; fi
  done
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

libtorch_of_cache() {
  local place
  for place in "$cache_dir"/venv/lib/python3*/site-packages/torch; do
    if is_libtorch "$place" && grep -q "'$kTorchVersion" "$place/version.py"; then
      if ! has_gpu || [ -d "$place/../nvidia/cudnn" ]; then printf '%s' "$place"; fi
    fi
  done
}

# Made aside and renamed when complete: a folder `venv` is a whole one. For C++ on CPUs the wheel needs of NVIDIA's packages
# only cudart and cupti (1.3 GB in place of 4.7 GB); a GPU needs them all.
fetch_libtorch() {
  local aside=$cache_dir/venv.partial
  rm -rf "$aside"
  mkdir -p -m 700 "$cache_dir" # programs refuse a cache that others may write to
  python3 -m venv "$aside"
  local -a pip=("$aside/bin/python" -m pip --disable-pip-version-check install --retries 5 --timeout 60)
  if has_gpu; then
    "${pip[@]}" "torch==$kTorchVersion"
  else
    "${pip[@]}" --no-deps "torch==$kTorchVersion" 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*'
  fi
  rm -rf "$cache_dir/venv"
  mv "$aside" "$cache_dir/venv"
}

prepare_libtorch() {
  libtorch=$(libtorch_of_caller)
  if [ -n "$libtorch" ]; then
    say "2. libtorch: yours, $libtorch"
    return
  fi
  if [ -n "${LibTorch_ROOT:-}" ]; then
    say "LibTorch_ROOT=$LibTorch_ROOT has no include/ATen/ATen.h and lib/libtorch_cpu.so" >"$log_dir/libtorch.log"
    fail libtorch "$log_dir/libtorch.log" "set LibTorch_ROOT to a libtorch folder or <site-packages>/torch, or unset it"
  fi
  libtorch=$(libtorch_of_cache)
  if [ -n "$libtorch" ]; then
    say "2. libtorch: $libtorch"
    return
  fi
  say "2. libtorch: fetching $kTorchVersion from PyPI into $cache_dir/venv"
  step libtorch "set LibTorch_ROOT to a libtorch $kTorchVersion that you have, or free 3 GB under $cache_dir" fetch_libtorch
  libtorch=$(libtorch_of_cache)
}

# ---------------------------------------------------------------- 3. configure and 4. build

cmake_is_new_enough() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n' "$kMinimumCmake" "$version" | sort -V | head -n 1)" = "$kMinimumCmake" ]
}

configure() {
  cmake_is_new_enough || { echo "cmake $kMinimumCmake or later is needed; $(cmake --version | head -n 1) was found"; return 1; }
  local -a options=(-G Ninja -U 'LibTorch_*' -DCMAKE_BUILD_TYPE=Release "-DLibTorch_ROOT=$libtorch" -DAUTOPAR_UNITY=ON)
  if [ "$mode" = test ]; then
    options+=(-DAUTOPAR_BUILD_TESTS=ON -DAUTOPAR_BUILD_BOTTLENECK=ON -DAUTOPAR_PCH=ON)
  else
    options+=(-DAUTOPAR_BUILD_TESTS=OFF)
    # A precompiled header takes longer than one program saves by it.
    if [ ! -e "$build_dir/CMakeCache.txt" ]; then options+=(-DAUTOPAR_PCH=OFF); fi
  fi
  if uses_openmpi; then
    options+=(-DMPI_CXX_COMPILER=/usr/bin/mpicxx.openmpi -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.openmpi)
  fi
  cmake -S "$source_dir" -B "$build_dir" "${options[@]}"
}

# nproc alone would answer 1 where threads are limited for the ranks of a run.
core_count() {
  env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc
}

job_count() {
  if [ -n "${AUTOPAR_JOBS:-}" ]; then
    printf '%s' "$AUTOPAR_JOBS"
    return
  fi
  local cores by_memory
  cores=$(core_count)
  by_memory=$(awk '/MemAvailable/ { print int($2 / 3145728) }' /proc/meminfo)
  if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
  if [ "$cores" -lt "$by_memory" ]; then printf '%s' "$cores"; else printf '%s' "$by_memory"; fi
}

configure_and_build() {
  say "3. Configure: $build_dir"
  step configure "read the log; a package of another version may hide Debian's: check CMAKE_PREFIX_PATH and PATH" configure
  say "4. Build, $(job_count) at once"
  local -a targets=()
  if [ "$mode" = train ]; then targets=(--target autopar_torch autopar_tool fashion_mnist); fi
  step build "read the first error of the log; after an update of the compiler or of libtorch: rm -rf $build_dir" \
    cmake --build "$build_dir" --parallel "$(job_count)" "${targets[@]}"
}

# ---------------------------------------------------------------- 5. train, or test

# Open MPI as root, and with more ranks than cores; mpich ignores these.
launcher_environment() {
  export OMP_NUM_THREADS=1
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
}

train() {
  local mpiexec
  mpiexec=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$build_dir/CMakeCache.txt")
  launcher_environment
  "${mpiexec:-mpiexec}" -n "$kRanks" "$build_dir/examples/fashion_mnist"
}

run_tests() {
  launcher_environment
  ctest --test-dir "$build_dir" --label-exclude nightly --parallel "$(core_count)" --output-on-failure --no-tests=error
}

# ---------------------------------------------------------------- all of it

# One call at a time in a build folder. The lock is inherited: what a killed call left running is waited for, not raced.
exec 9>"$build_dir/.quickstart.lock"
if ! flock --nonblock 9; then
  say "0. Another quickstart, or what an interrupted one left, still works in $build_dir; waiting for it"
  flock 9
fi

prepare_packages
prepare_libtorch
configure_and_build
if [ "$mode" = test ]; then
  say "5. Tests"
  live_step test "read the failed test's output above; one test again: ctest --test-dir $build_dir -R NAME --output-on-failure" \
    run_tests 9>&-
  say "All tests passed (those marked as skipped need what this machine does not have)."
else
  say "5. Train Fashion-MNIST on $kRanks MPI ranks"
  live_step train "read the log; a launcher of another MPI than the library's is the usual cause: check which mpiexec" train 9>&-
  say "Done. Build the other programs of examples/ with: cmake --build $build_dir"
  say "Install with: cmake --install $build_dir --prefix PREFIX"
fi
