#!/usr/bin/env bash
# hosts.sh HOSTFILE RANKS_PER_HOST PROGRAM ARGUMENT...: starts PROGRAM on all hosts of a file, with MPICH's mpiexec or Open
# MPI's. On hosts with GPUs start one rank a GPU; without, one a socket, or a few.
#
#   AUTOPAR_LOG_LEVEL=info bash hosts.sh hostfile 8 gpt --size 1.3b --precision bf16 --out /shared/run
#
# Needs: ssh to every host without a password; PROGRAM, its libraries and the data under the same path on all (a shared
# file system, where --out is, too); ports between the hosts open, as MPI, NCCL and autopar each choose some.
set -euo pipefail
if [ $# -lt 3 ]; then
  echo "usage: bash hosts.sh HOSTFILE RANKS_PER_HOST PROGRAM ARGUMENT..." >&2
  exit 2
fi
hostfile=$1 ranks=$2
shift 2
mpiexec=${MPIEXEC:-mpiexec}
mapfile -t hosts < <(grep -vE '^[[:space:]]*(#|$)' "$hostfile")

# CPU ranks share the cores. GPU ranks compute elsewhere, but read data and step offloaded optimizers with these.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) > ranks ? $(nproc) / ranks : 1))}

# Which network: without a word MPI and NCCL may choose one that does not lead to the others (docker0, a management network).
# export UCX_NET_DEVICES=mlx5_0:1        # MPI over UCX: an InfiniBand port; or eth0
# export NCCL_SOCKET_IFNAME=eth0         # NCCL's start, and all of it where there is no InfiniBand; ^docker0,lo excludes
# export NCCL_IB_HCA=mlx5                # NCCL's InfiniBand ports, by prefix
# export NCCL_DEBUG=INFO                 # says what it has chosen

if [[ $("$mpiexec" --version 2>&1) == *HYDRA* ]]; then
  # MPICH: every environment variable goes to all ranks. -ppn numbers the ranks of a host one after the other.
  exec "$mpiexec" -hosts "$(IFS=,; echo "${hosts[*]}")" -ppn "$ranks" -n $((ranks * ${#hosts[@]})) "$@"
fi
# Open MPI: only variables that -x names go to other hosts.
passed=()
while read -r name; do passed+=(-x "$name"); done < <(compgen -e | grep -E '^(AUTOPAR|NCCL|UCX|OMP|CUDA)_|^(LD_LIBRARY_PATH|XDG_CACHE_HOME)$')
exec "$mpiexec" --host "$(printf "%s:$ranks," "${hosts[@]}" | sed 's/,$//')" --map-by "ppr:$ranks:node" --bind-to none \
  "${passed[@]}" "$@"
