#!/usr/bin/env bash
# Several GPUs of one host: autopar's own choice beside PyTorch's best setting for each work, over three kinds of links,
# and what becomes of a training whose rank is killed. JSON lines to standard output, and to $OUT/train.jsonl where OUT
# is a folder; what the programs say goes to $OUT/log.
#
#   cluster.sh TRAIN PART...
#
# PART is one of: nvlink, shm, socket (NCCL's links: all, without peer to peer, without shared memory too), forced (plans
# for gpt that were not chosen), like (settings of PyTorch that compute as autopar does), trace, launched (steps with and
# without CUDA graphs), fp8 (products in 8 bits), largest (the deepest GPT that fits, beside FSDP2's), heads (of 1 to 8
# million classes beside DTensor; needs class_head beside TRAIN), tests (gpu_mpi beside TRAIN), kill, lose (ranks that are
# killed, stopped or throw in many small jobs).
# WORKS="gpt mlp" chooses; GPUS=2 (all that are here), STEPS=6, PYTHON=python3 (one that has torch), COSTS=FOLDER (measured
# costs, LINK.json, from earlier calls). What 8 GPUs are to show: cluster.sh TRAIN tests nvlink forced heads largest lose
set -uo pipefail
train=${1:?usage: cluster.sh TRAIN PART...}; shift
gpus=${GPUS:-$(nvidia-smi -L | wc -l)} steps=${STEPS:-6} python=${PYTHON:-python3}
out=${OUT:-$(mktemp -d)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
costs=${COSTS:-$(mktemp -d)} link=nvlink label=
export OMP_NUM_THREADS=${THREADS:-$(nproc)}

say() { echo "{\"link\": \"$link\"${label:+, \"forced\": \"$label\"}, $1" | tee -a "$out/train.jsonl"; }

# row SECONDS NAME COMMAND...: the JSON lines of a command, or one that says what became of it; `status` is its own.
row() {
  local limit=$1 name=$2 line begin=$SECONDS; shift 2
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
peer() {  # compiling ResNet152 takes two minutes
  chosen "$1" || return 0
  row "${LIMIT:-240}" "$1, PyTorch" "$python" "$here/peers.py" "$1" --ranks "$gpus" --steps "$steps" "${@:2}"
}

low='--precision bf16-compute'  # PyTorch's best settings compute in bf16, too
best_fsdp=(--mode fsdp --keep --compile --reduce bf16)
nvlink() {
  own gpt $low;    peer gpt "${best_fsdp[@]}"
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert $low;   peer bert "${best_fsdp[@]}"
  own resnet50;    peer resnet50 --mode ddp --compile
  own resnet152x4; peer resnet152x4 --mode ddp --compile
  own resnet152x8; peer resnet152x8 --mode ddp --compile
}
shm() {
  own gpt $low;    peer gpt "${best_fsdp[@]}"
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert $low;   peer bert --mode pipeline --micro 16
  own resnet50;    peer resnet50 --mode ddp
  own resnet152x4; peer resnet152x4 --mode ddp
  own resnet152x8; peer resnet152x8 --mode ddp
}
socket() {
  own gpt $low;    peer gpt --mode pipeline --micro 16
  own mlp;         peer mlp --mode pipeline --micro 8
  own bert $low;   peer bert --mode pipeline --micro 16
  own resnet50;    peer resnet50 --mode ddp
  own resnet152x4; peer resnet152x4 --mode ddp
  own resnet152x8; peer resnet152x8 --mode ddp
}
forced() {
  local zero stages=$gpus
  for zero in 1 2 3; do
    label="ZeRO $zero on $gpus replicas" AUTOPAR_STAGES=1 AUTOPAR_ZERO=$zero AUTOPAR_RECOMPUTE=none own gpt
  done
  if ((gpus >= 4)); then
    local half=$((gpus / 2))
    label="2 stages x $half replicas" AUTOPAR_STAGES=2 AUTOPAR_REPLICAS=$half,$half own gpt
  fi
  if ((gpus == 8)); then
    label="2 x 2 x 2" AUTOPAR_STAGES=2 AUTOPAR_REPLICAS=2,2 AUTOPAR_TENSOR_PARALLEL=2 own gpt
    label="4 stages x 2 replicas" AUTOPAR_STAGES=4 AUTOPAR_REPLICAS=2 own gpt
  fi
  label="$gpus tensor shards" AUTOPAR_STAGES=1 AUTOPAR_TENSOR_PARALLEL=$gpus own gpt
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

fp8() {
  local work precision
  for work in gpt bert24; do
    for precision in bf16-compute fp8; do own "$work" --precision "$precision"; done
  done
}
# How many layers of gpt's width fit: at each number, autopar and FSDP2 with recomputed blocks.
largest() {
  local layers
  for layers in ${LAYERS:-$((60 * gpus)) $((80 * gpus)) $((100 * gpus)) $((120 * gpus))}; do
    label="$layers layers"
    own gpt --layers "$layers" --precision bf16-compute
    peer gpt --layers "$layers" --mode fsdp --checkpoint
  done
  label=
}
heads() {
  local program
  program=$(dirname "$(command -v "$train")")/class_head
  [ -x "$program" ] || program=$(command -v class_head)
  OUT='' CLASSES="${CLASSES:-1000000 2000000 4000000 8000000}" RANKS=$gpus HEADS="${HEADS:-column chunked automatic}" \
    DATA=noise DEVICE=cuda BATCH=256 WIDTH=2048 PYTHON=$python LIMIT=${LIMIT:-90} \
    bash "$here/../class_head/beside.sh" "$program" 2>> "$out/log" | tee -a "$out/train.jsonl"
}
# A case at a time: one that hangs or fails says so and costs no other.
tests() {
  local program case
  program=$(command -v gpu_mpi) || program=$(dirname "$(command -v "$train")")/../tests/gpu_mpi
  "$program" --list-test-names-only 2> /dev/null | while read -r case; do
    [ -n "$case" ] || continue
    row "${LIMIT:-250}" "$case" mpiexec -n "$gpus" "$program" "${case//,/\\,}" < /dev/null
    [ "$status" -ne 0 ] || say "\"work\": \"$case\", \"passed\": true}"
  done
}

# Running processes of a job, by its number.
processes() {
  local folder
  for folder in /proc/[0-9]*; do
    [ "$(cat "$folder/comm" 2> /dev/null)" = "$(basename "$train")" ] || continue
    [ "$(sed 's/.*) //' "$folder/stat" 2> /dev/null | cut -c 1)" = Z ] && continue
    tr '\0' '\n' 2> /dev/null < "$folder/environ" | grep -qx "CLUSTER_JOB=$1" && echo "${folder#/proc/}"
  done
}
# lose SIGNAL SECONDS LAUNCHER... -- ARGUMENT...: milliseconds from the signal to the last rank, so many seconds after the
# start and within a step, until the other ranks are gone. THROW is no signal: that rank's program throws between steps.
lose() {
  local signal=$1 after=$2 launcher=() number=$BASHPID job victim='' pid begin; shift 2
  while [ "$1" != -- ]; do launcher+=("$1"); shift; done; shift
  CLUSTER_JOB=$number AUTOPAR_COST_FILE=$costs/$link.json timeout 120 "${launcher[@]}" -n "$gpus" "$train" "$@" \
    $([ "$signal" != THROW ] || echo --throw-after "$after") > "$costs/lost$number" 2>&1 &
  job=$!
  if [ "$signal" = THROW ]; then
    until grep -qs "throws as it was asked to" "$costs/lost$number" || ! kill -0 "$job" 2> /dev/null; do sleep 0.05; done
    begin=$(date +%s%N)
  else
    sleep "$after"
    victim=$(for pid in $(processes "$number"); do
      tr '\0' '\n' < "/proc/$pid/environ" | grep -qx "PMI_RANK=$((gpus - 1))" && echo "$pid"
    done | tail -n 1)
    begin=$(date +%s%N)
    kill -"$signal" "$victim"
  fi
  while [ -n "$(processes "$number" | grep -vx "${victim:-none}")" ] && (($(date +%s%N) - begin < 60000000000)); do
    sleep 0.05
  done
  say "\"work\": \"$signal\", \"launcher\": \"${launcher[*]}\", \"gone_ms\": $((($(date +%s%N) - begin) / 1000000))}"
  [ -z "$victim" ] || kill -KILL "$victim" 2> /dev/null
  wait "$job"
  { echo "== $signal under ${launcher[*]}: $*"; tail -n 30 "$costs/lost$number"; } >> "$out/log"
}
# Once as the launcher ends such jobs, once with a launcher that leaves it to the ranks.
kill_ranks() {
  lose KILL "${KILL_AFTER:-40}" mpiexec -- gpt --steps 2000
  lose KILL "${KILL_AFTER:-40}" mpiexec -disable-auto-cleanup -- gpt --steps 2000
}
# TRIES=10 of each fault, JOBS=1 at a time, with a small net that starts quickly and whose steps are recorded by then.
lose_ranks() {
  local try signal
  export AUTOPAR_STALL_WARNING=1 AUTOPAR_STALL_TIMEOUT=2 AUTOPAR_COSTS=roofline
  for ((try = 0; try < ${TRIES:-10}; ++try)); do
    for signal in KILL STOP THROW; do
      while (($(jobs -r | wc -l) >= ${JOBS:-1})); do wait -n; done
      lose $signal "${KILL_AFTER:-8}" mpiexec -disable-auto-cleanup -- mlp --small --steps 1000000 "$@" &
    done
  done
  wait
}
# What recording steps is worth.
launched() {
  local work
  for work in gpt resnet50 resnet152x4; do
    label=recorded own "$work"
    label="launched kernel by kernel" AUTOPAR_CUDA_GRAPHS=off own "$work"
  done
}

for part in "$@"; do
  link=$part
  case $part in
    nvlink) nvlink ;;
    shm) NCCL_P2P_DISABLE=1 shm ;;
    socket) NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 socket ;;
    forced | like | trace | fp8 | largest | heads | tests) link=nvlink; $part ;;
    launched) link=nvlink; launched ;;
    kill) link=nvlink; kill_ranks ;;
    lose) link=nvlink; (lose_ranks ${LOSE_ARGUMENTS:-}) ;;
    *) echo "cluster.sh: no part $part" >&2; exit 1 ;;
  esac
done
