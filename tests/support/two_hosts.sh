#!/usr/bin/env bash
# two_hosts.sh NAME NAME MBIT LINES DONE MARKS MPIEXEC COMMAND...: runs COMMAND as a job of 4 ranks on two hosts of these
# names, 2 on each, joined by a wire of MBIT megabits a second; 0: as fast as it is. The hosts are Linux namespaces: a network,
# a name and a shared memory of their own. They need root, or user namespaces, and vanish with the script.
# Exit code 77, with the reason, where this machine cannot do that.
#
# MPICH 4.0.2 over UCX and TCP may hang in MPI_Finalize, of any program (examples/launch/README.md). So a job that does not end
# for 5 s after all ranks have entered it, as MARKS (finalize_marks.cpp) lets them note, is ended. It has done well if it wrote
# the regular expression DONE in LINES places (lines of ranks may mix), and if those that still run are in MPI_Finalize. A job
# that hangs before is left to the test's time limit.
set -euo pipefail
readonly kNamespaces=(--net --uts --ipc --mount)

if [ "${1:-}" = --as-ssh ]; then # PID [-x] HOST COMMAND...: what ssh would do on the second host, in a fresh environment
  pid=$2
  shift 2
  [ "$1" != -x ] || shift
  shift
  exec nsenter --target "$pid" "${kNamespaces[@]}" env -i "PATH=$PATH" sh -c "cd / && $*"
fi

skip() {
  echo "skipped: $1"
  exit 77
}

if [ "${1:-}" != --inside ]; then
  for tool in ip tc unshare nsenter; do
    command -v "$tool" >/dev/null || skip "there is no '$tool' (Debian: iproute2, util-linux)"
  done
  [[ $("$7" --version 2>&1) == *HYDRA* ]] || skip "$7 is not MPICH's Hydra"
  user=()
  [ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
  first=("${user[@]}" "${kNamespaces[@]}" --pid --mount-proc --kill-child) # with it end all that it started
  unshare "${first[@]}" mount -t sysfs sysfs /sys 2>/dev/null || skip "namespaces are not allowed here"
  exec unshare "${first[@]}" "$0" --inside "$@"
fi
first_name=$2 second_name=$3 mbit=$4 lines=$5 done=$6 marks=$7 mpiexec=$8
shift 8
readonly kRanks=4

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unshare "${kNamespaces[@]}" sleep infinity &
second=$!
until [ "$(readlink "/proc/$second/exe")" = "$(readlink -f "$(command -v sleep)")" ]; do sleep 0.01; done
there() { nsenter --target "$second" "${kNamespaces[@]}" "$@"; }

# set_up PREFIX NAME ADDRESS: one end of the wire. UCX finds networks in /sys, which is that of the mount.
set_up() {
  local here=$1 name=$2 address=$3
  $here hostname "$name"
  $here mount -t sysfs sysfs /sys
  $here mount -t tmpfs tmpfs /dev/shm
  $here ip link set lo up
  $here ip address add "$address/24" dev wire
  $here ip link set wire up
  [ "$mbit" -eq 0 ] || $here tc qdisc add dev wire root tbf rate "${mbit}mbit" burst 256kb latency 50ms 2>/dev/null ||
    skip "this kernel cannot limit a network's rate (CONFIG_NET_SCH_TBF)"
}
ip link add wire type veth peer name wire netns "$second"
set_up "" "$first_name" 10.77.0.1
set_up there "$second_name" 10.77.0.2
until [ "$(cat /sys/class/net/wire/carrier)" = 1 ] && [ "$(there cat /sys/class/net/wire/carrier)" = 1 ]; do sleep 0.01; done

printf '%s:2\n' 10.77.0.1 10.77.0.2 >"$folder/hosts"
printf '#!/bin/sh\nexec "%s" --as-ssh %s "$@"\n' "$(realpath "$0")" "$second" >"$folder/ssh"
chmod +x "$folder/ssh"
: >"$folder/log"
: >"$folder/marks"
marked() { grep -c "^$1 " "$folder/marks" || true; }
export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$folder/ssh
"$mpiexec" -f "$folder/hosts" -n "$kRanks" -genv LD_PRELOAD "$marks" -genv FINALIZE_MARKS "$folder/marks" "$@" >"$folder/log" 2>&1 &
job=$!
for ((tenths = 0; tenths < 50;)); do
  kill -0 "$job" 2>/dev/null || break
  [ "$(marked enters)" -lt "$kRanks" ] || ((++tenths))
  sleep 0.1
done
cat "$folder/log"
if ((tenths < 50)); then
  wait "$job"
  [ "$(marked leaves)" -eq "$kRanks" ] || { echo "two_hosts.sh: not all ranks came out of MPI_Finalize"; exit 1; }
  exit
fi
while read -r _ pid; do
  ! kill -0 "$pid" 2>/dev/null || { echo "two_hosts.sh: a rank hangs after MPI_Finalize"; exit 1; }
done < <(grep "^leaves " "$folder/marks" || true)
[ "$(grep -oE -- "$done" "$folder/log" | wc -l)" -ge "$lines" ] || { echo "two_hosts.sh: '$done' is not there $lines times"; exit 1; }
echo "two_hosts.sh: all is done, but $((kRanks - $(marked leaves))) ranks hung in MPI_Finalize and were ended"
