#!/usr/bin/env bash
# two_hosts.sh NAME NAME MBIT LINES DONE MPIEXEC COMMAND...: runs COMMAND as a job of 4 ranks on two hosts of these names, 2
# on each, joined by a wire of MBIT megabits a second; 0: as fast as it is. The hosts are Linux namespaces: a network, a
# name and a shared memory of their own. They need root, or user namespaces, and vanish with the script.
# Exit code 77, with the reason, where this machine cannot do that.
#
# MPICH 4.0.2 over UCX and TCP may hang in MPI_Finalize, of any program (examples/launch/README.md). So a job that has
# written LINES lines with the regular expression DONE and does not end for 5 s is ended, and has done well.
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
  [[ $("$6" --version 2>&1) == *HYDRA* ]] || skip "$6 is not MPICH's Hydra"
  user=()
  [ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
  first=("${user[@]}" "${kNamespaces[@]}" --pid --mount-proc --kill-child) # with it end all that it started
  unshare "${first[@]}" mount -t sysfs sysfs /sys 2>/dev/null || skip "namespaces are not allowed here"
  exec unshare "${first[@]}" "$0" --inside "$@"
fi
first_name=$2 second_name=$3 mbit=$4 lines=$5 done=$6 mpiexec=$7
shift 7

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
export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$folder/ssh
"$mpiexec" -f "$folder/hosts" -n 4 "$@" >"$folder/log" 2>&1 &
job=$!
for ((tenths = 0; tenths < 50;)); do
  kill -0 "$job" 2>/dev/null || break
  [ "$(grep -cE -- "$done" "$folder/log")" -lt "$lines" ] || ((++tenths))
  sleep 0.1
done
cat "$folder/log"
if ((tenths < 50)); then wait "$job"; else echo "two_hosts.sh: done, but it hung in MPI_Finalize and was ended"; fi
