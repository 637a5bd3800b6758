#!/usr/bin/env bash
# bash interrupt_test.sh QUICKSTART: runs quickstart.sh with stand-ins for apt, dpkg, python, cmake and mpiexec that keep
# their effects in a folder. Killed (SIGKILL, the whole group) within each of its steps, it must finish when called again,
# without doing again what was done; a second call only runs; a failure names step, log and cure.
set -euo pipefail
quickstart=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

expect() { # expect TEXT CONDITION...
  local text=$1
  shift
  if ! "$@"; then
    echo "NOT SO: $text"
    failures=$((failures + 1))
  fi
}
called() { grep -c -- "^$1" "$state/calls" || true; }
said() { grep -qF -- "$1" "$state/output"; }

# ---------------------------------------------------------------- stand-ins

# Each notes its call; dies_at NAME kills the quickstart's group when STUB_KILL_AT is NAME, and fails when STUB_FAIL_AT is.
make_stubs() {
  mkdir -p "$work/bin"
  cat >"$work/bin/common" <<'STUB'
echo "$(basename "$0") $*" >>"$STATE/calls"
dies_at() {
  if [ "${STUB_KILL_AT:-}" = "$1" ]; then kill -KILL -- -"$(cut -d' ' -f5 /proc/$$/stat)"; fi
  if [ "${STUB_FAIL_AT:-}" = "$1" ]; then echo "${STUB_MESSAGE:-broken}"; exit 1; fi
}
STUB
  cat >"$work/bin/apt-get" <<'STUB'
. "$(dirname "$0")/common"
case "$*" in *install*) echo half >"$STATE/packages"; dies_at packages; echo installed >"$STATE/packages" ;; esac
STUB
  cat >"$work/bin/dpkg-query" <<'STUB'
if [ "$(cat "$STATE/packages" 2>/dev/null)" = installed ]; then echo "install ok installed"; else echo "install ok half-configured"; fi
STUB
  cat >"$work/bin/dpkg" <<'STUB'
. "$(dirname "$0")/common"
STUB
  cat >"$work/bin/sudo" <<'STUB'
exec "$@"
STUB
  cat >"$work/bin/python3" <<'STUB'
. "$(dirname "$0")/common"
mkdir -p "$3/bin"
cp "$(dirname "$0")/pip_stub" "$3/bin/python"
chmod +x "$3/bin/python"
STUB
  cat >"$work/bin/pip_stub" <<'STUB'
#!/usr/bin/env bash
echo "pip $*" >>"$STATE/calls"
. "$STUBS/common"
torch=$(dirname "$0")/../lib/python3.11/site-packages/torch
mkdir -p "$torch/include/ATen" "$torch/lib"
touch "$torch/include/ATen/ATen.h" "$torch/lib/libtorch_cpu.so"
dies_at libtorch
echo "__version__ = '2.11.0+cu130'" >"$torch/version.py"
STUB
  cat >"$work/bin/cmake" <<'STUB'
. "$(dirname "$0")/common"
case "$1" in
  --version) echo "cmake version 3.25.1" ;;
  --build) [ -e "$2/CMakeCache.txt" ] || exit 1; mkdir -p "$2/examples"; echo half >"$2/examples/fashion_mnist.o"; dies_at build; touch "$2/examples/fashion_mnist" ;;
  *) dies_at configure; echo "MPIEXEC_EXECUTABLE:FILEPATH=mpiexec" >"$4/CMakeCache.txt" ;;
esac
STUB
  cat >"$work/bin/mpiexec" <<'STUB'
. "$(dirname "$0")/common"
[ -e "$3" ] || exit 1
dies_at train
echo "test accuracy 0.89"
STUB
  cat >"$work/bin/ctest" <<'STUB'
. "$(dirname "$0")/common"
dies_at test
STUB
  printf '#!/bin/sh\nexit 1\n' >"$work/bin/nvidia-smi" # no GPU, whatever this machine has
  sed -i '1{/^#!/!i #!/usr/bin/env bash
}' "$work"/bin/*
  chmod +x "$work"/bin/*
}

# quickstart_with VARIABLE=VALUE... -- [ARGUMENT]: in a process group of its own; its output in $state/output.
quickstart_with() {
  local -a variables=()
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  local status=0
  setsid --wait env -u LibTorch_ROOT -u Torch_DIR -u CMAKE_PREFIX_PATH PATH="$work/bin:$PATH" STATE="$state" \
    STUBS="$work/bin" AUTOPAR_CACHE="$state/cache" AUTOPAR_BUILD="$state/build" "${variables[@]}" \
    bash "$quickstart" "$@" >"$state/output" 2>&1 || status=$?
  return "$status"
}

new_state() { # an empty machine
  state=$work/$1
  mkdir -p "$state"
  : >"$state/calls"
}

# ---------------------------------------------------------------- cases

killed_at_every_step() {
  local at
  for at in packages libtorch configure build train; do
    new_state "killed_at_$at"
    expect "$at: the call is killed" eval '! quickstart_with STUB_KILL_AT='"$at"' --'
    expect "$at: the next call finishes" quickstart_with X= --
    expect "$at: it trains" said "test accuracy 0.89"
    local installs=1 fetches=1
    if [ "$at" = packages ]; then installs=2; fi
    if [ "$at" = libtorch ]; then fetches=2; fi
    expect "$at: packages are installed no more than needed" test "$(called 'apt-get .*install')" = "$installs"
    expect "$at: libtorch is fetched no more than needed" test "$(called 'pip .*install')" = "$fetches"
    expect "$at: nothing is left aside" test ! -e "$state/cache/venv.partial"
  done
}

second_call_only_runs() {
  new_state twice
  expect "the first call succeeds" quickstart_with X= --
  : >"$state/calls"
  expect "the second call succeeds" quickstart_with X= --
  expect "the second call installs nothing" test "$(called 'apt-get')" = 0
  expect "the second call fetches nothing" test "$(called 'pip')" = 0
  expect "the second call trains" test "$(called 'mpiexec')" = 1
}

failures_name_step_log_and_cure() {
  local at
  for at in packages libtorch configure build train; do
    new_state "fails_at_$at"
    expect "$at: a failure is a failure" eval '! quickstart_with STUB_FAIL_AT='"$at"' --'
    expect "$at: names the step" said "FAILED STEP: $at"
    expect "$at: names the log" said "LOG:         $state/build/logs/$at.log"
    expect "$at: names a cure" said "LIKELY CURE: "
    expect "$at: the log exists" test -s "$state/build/logs/$at.log"
  done
  new_state offline
  expect "offline is a failure" eval '! quickstart_with STUB_FAIL_AT=libtorch STUB_MESSAGE="Temporary failure in name resolution" --'
  expect "offline: the cure is the network" said "the network was not reachable"
  new_state wrong_root
  expect "a wrong LibTorch_ROOT is a failure" eval '! quickstart_with LibTorch_ROOT=/nowhere --'
  expect "a wrong LibTorch_ROOT is named" said "LibTorch_ROOT=/nowhere"
}

own_libtorch_is_used() {
  new_state own
  mkdir -p "$state/own/include/ATen" "$state/own/lib" "$state/own/share/cmake/Torch"
  touch "$state/own/include/ATen/ATen.h" "$state/own/lib/libtorch_cpu.so"
  local variable
  for variable in LibTorch_ROOT="$state/own" Torch_DIR="$state/own/share/cmake/Torch" CMAKE_PREFIX_PATH="$state/own/share/cmake"; do
    expect "$variable: succeeds" quickstart_with "$variable" --
    expect "$variable: is used" said "2. libtorch: yours, $state/own"
    expect "$variable: fetches nothing" test "$(called 'pip')" = 0
    expect "$variable: reaches cmake" test "$(called "cmake .*-DLibTorch_ROOT=$state/own")" -ge 1
  done
}

test_mode_runs_ctest() {
  new_state test_mode
  expect "test: succeeds" quickstart_with X= -- test
  expect "test: runs ctest" test "$(called 'ctest')" = 1
  expect "test: does not train" test "$(called 'mpiexec')" = 0
  expect "test: a failing test is a failure" eval '! quickstart_with STUB_FAIL_AT=test -- test'
  expect "an unknown mode is refused" eval '! quickstart_with X= -- frobnicate'
  expect "an unknown mode is told the usage" said "usage: bash cmake/quickstart.sh [test]"
}

make_stubs
killed_at_every_step
second_call_only_runs
failures_name_step_log_and_cure
own_libtorch_is_used
test_mode_runs_ctest
if [ "$failures" -ne 0 ]; then
  echo "$failures expectations failed"
  exit 1
fi
echo "quickstart: all expectations hold"
