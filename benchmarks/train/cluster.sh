#!/usr/bin/env bash
# Several GPUs of one host: autopar's own choice beside PyTorch's best setting for each work, over three kinds of links,
# and what becomes of a training whose rank is killed. JSON lines to standard output, and to $OUT/train.jsonl where OUT
# is a folder; what the programs say goes to $OUT/log.
#
#   cluster.sh TRAIN PART...
#
# PART is one of: nvlink, shm, socket (NCCL's links: all, without peer to peer, without shared memory too), forced (plans
# for gpt that were not chosen), like (settings of PyTorch that compute as autopar does), trace, kill.
# WORKS="gpt mlp" chooses; GPUS=2 (all that are here), STEPS=6, PYTHON=python3 (one that has torch).
set -uo pipefail
train=${1:?usage: cluster.sh TRAIN PART...}; shift
gpus=${GPUS:-$(nvidia-smi -L | wc -l)} steps=${STEPS:-6} python=${PYTHON:-python3}
out=${OUT:-$(mktemp -d)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
costs=$(mktemp -d) link=nvlink label=
export OMP_NUM_THREADS=${THREADS:-$(nproc)}

say() { echo "{\"link\": \"$link\"${label:+, \"forced\": \"$label\"}, $1" | tee -a "$out/train.jsonl"; }

# row SECONDS NAME COMMAND...: the JSON lines of a command, or one that says what became of it.
row() {
  local limit=$1 name=$2 status line begin=$SECONDS; shift 2
  echo "== $link $label $*" >> "$out/log"
  timeout --kill-after=5 "$limit" "$@" 2>> "$out/log" > "$costs/lines"
  status=$?
  while read -r line; do case $line in "{"*) say "${line#\{}" ;; *) echo "$line" >> "$out/log" ;; esac; done < "$costs/lines"
  [ "$status" -eq 0 ] || say "\"work\": \"$name\", \"failed\": $status, \"limit_s\": $limit}"
  echo "== $((SECONDS - begin)) s" >> "$out/log"
}
chosen() { [[ " ${WORKS:-$1} " == *" $1 "* ]]; }
own() {
  chosen "$1" || return 0
  AUTOPAR_COST_FILE=$costs/$link.json row "${LIMIT:-75}" "$1" mpiexec -n "$gpus" "$train" "$1" --steps "$steps" "${@:2}"
}
peer() {
  chosen "$1" || return 0
  row "${LIMIT:-90}" "$1, PyTorch" "$python" "$here/peers.py" "$1" --ranks "$gpus" --steps "$steps" "${@:2}"
}

best_fsdp=(--mode fsdp --keep --compile --reduce bf16)
nvlink() {
  own gpt;         peer gpt "${best_fsdp[@]}"
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert;        peer bert "${best_fsdp[@]}"
  own resnet50;    peer resnet50 --mode ddp --compile
  own resnet152x4; peer resnet152x4 --mode ddp --compile
  own resnet152x8; peer resnet152x8 --mode ddp --compile
}
shm() {
  own gpt;         peer gpt "${best_fsdp[@]}"
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert;        peer bert --mode pipeline --micro 16
  own resnet50;    peer resnet50 --mode ddp
  own resnet152x4; peer resnet152x4 --mode ddp
  own resnet152x8; peer resnet152x8 --mode ddp
}
socket() {
  own gpt;         peer gpt --mode pipeline --micro 16
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert;        peer bert --mode pipeline --micro 16
  own resnet50;    peer resnet50 --mode ddp
  own resnet152x4; peer resnet152x4 --mode ddp
  own resnet152x8; peer resnet152x8 --mode ddp
}
forced() {
  local zero stages=$gpus
  for zero in 1 2 3; do
    label="ZeRO $zero on $gpus replicas" AUTOPAR_STAGES=1 AUTOPAR_ZERO=$zero AUTOPAR_RECOMPUTE=none own gpt
  done
  if ((gpus == 4)); then label="2 x 2" AUTOPAR_STAGES=2 AUTOPAR_REPLICAS=2,2 own gpt; fi
  for schedule in 1f1b zb-h1; do
    label="$stages stages, $schedule, 8 micro-batches" AUTOPAR_STAGES=$stages AUTOPAR_SCHEDULE=$schedule \
      AUTOPAR_MICROBATCHES=8 own gpt
  done
}
like() {
  peer gpt --mode fsdp --keep
  peer gpt --mode fsdp --keep --compile
  peer gpt --mode ddp
  own bert --written-attention
  peer bert --mode fsdp --keep --compile --written-attention
}
trace() { own gpt --trace; own mlp --trace; own resnet50 --trace; }

# Seconds from kill -9 of the last rank, within a step, until the job's processes are gone; once as the launcher ends
# such jobs, once with a launcher that leaves it to the ranks.
kill_one() {
  local launcher=("$@") job victim begin seconds=0
  echo "== kill -9 under ${launcher[*]}" >> "$out/log"
  AUTOPAR_COST_FILE=$costs/$link.json timeout 120 "${launcher[@]}" -n "$gpus" "$train" gpt --steps 2000 \
    > "$costs/killed" 2>&1 &
  job=$!
  sleep "${KILL_AFTER:-40}"
  victim=$(pgrep -f -- "$train gpt --steps 2000" | while read -r pid; do
    [ "$(tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | sed -n 's/^PMI_RANK=//p')" = $((gpus - 1)) ] && echo "$pid"
  done | tail -n 1)
  begin=$(date +%s%N)
  kill -9 "$victim"
  while pgrep -f -- "$train gpt --steps 2000" > /dev/null && ((seconds < 60)); do
    sleep 0.05; seconds=$((($(date +%s%N) - begin) / 1000000000))
  done
  say "\"work\": \"kill -9\", \"launcher\": \"${launcher[*]}\", \"gone_ms\": $((($(date +%s%N) - begin) / 1000000))}"
  wait "$job"; tail -n 30 "$costs/killed" >> "$out/log"
}
kill_ranks() { kill_one mpiexec; kill_one mpiexec -disable-auto-cleanup; }

for part in "$@"; do
  link=$part
  case $part in
    nvlink) nvlink ;;
    shm) NCCL_P2P_DISABLE=1 shm ;;
    socket) NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 socket ;;
    forced | like | trace) link=nvlink; $part ;;
    kill) link=nvlink; kill_ranks ;;
    *) echo "cluster.sh: no part $part" >&2; exit 1 ;;
  esac
done
