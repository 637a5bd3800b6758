#!/usr/bin/env bash
# Heads of many classes, `class_head` and PyTorch's (dtensor.py) beside it in one call: a JSON line for each head,
# number of classes and number of ranks, to standard output, and to $OUT/class_head.jsonl where OUT is a folder.
#
#   beside.sh [CLASS_HEAD]     the program, default the one on the PATH
#
# CLASSES="1000 100000 1000000", RANKS="2 4", BATCH=64, WIDTH=256, STEPS=10, HEADS="dense row column chunked",
# PYTHON=python3 (one that has torch), DEVICE=cpu or cuda, DATA=noise (see class_head), LIMIT=300 seconds a row. Each row is a run of its own: no peak holds what another
# one left.
set -uo pipefail
program=${1:-class_head}
classes=${CLASSES:-1000 100000 1000000} ranks=${RANKS:-2 4} heads=${HEADS:-dense row column chunked}
batch=${BATCH:-64} width=${WIDTH:-256} steps=${STEPS:-10} python=${PYTHON:-python3} limit=${LIMIT:-300}
device=${DEVICE:-cpu} data=${DATA:+--data $DATA}
log=${OUT:+$OUT/class_head.jsonl}; log=${log:-/dev/null}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OMP_NUM_THREADS=1 AUTOPAR_DEVICE=$device

failed=0
say() { echo "$1" | tee -a "$log"; }
# as_json RANKS: of the lines of class_head's table
as_json() {
  awk -v ranks="$1" -v batch="$batch" -v width="$width" '$1 ~ /^[0-9]+$/ && NF == 5 {
    printf "{\"program\": \"autopar\", \"head\": \"%s\", \"ranks\": %d, \"classes\": %d, \"batch\": %d, \"width\": %d, ", \
           $2, ranks, $1, batch, width
    printf "\"step_ms\": %s, \"peak_mib\": %s, \"loss\": %s}\n", $3, $4, $5 }'
}
# row PROGRAM HEAD RANKS CLASSES COMMAND...: the JSON lines of a command, or one that says what became of it
row() {
  local what="\"program\": \"$1\", \"head\": \"$2\", \"ranks\": $3, \"classes\": $4" number=$3 filter=cat lines status
  [ "$1" = autopar ] && filter="as_json $number"
  shift 4
  lines=$(timeout --kill-after=5 "$limit" "$@" | $filter); status=$?
  if [ "$status" -eq 0 ] && [ -n "$lines" ]; then say "$lines"; return; fi
  failed=1
  say "{$what, \"failed\": $status, \"limit_s\": $limit}"
}

for number in $ranks; do
  for count in $classes; do
    for head in $heads; do
      row autopar "$head" "$number" "$count" \
        mpiexec -n "$number" "$program" --sweep "$count" --head "$head" --batch "$batch" --width "$width" --steps "$steps" $data
    done
    "$python" -c 'import torch.distributed.tensor' 2> /dev/null || continue
    for head in dense column; do
      row pytorch "$head" "$number" "$count" \
        "$python" "$here/dtensor.py" --device "$device" --ranks "$number" --classes "$count" --head "$head" --batch "$batch" --width "$width" \
        --steps "$steps"
    done
  done
done
exit $failed
