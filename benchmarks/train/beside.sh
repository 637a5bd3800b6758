#!/usr/bin/env bash
# All works, each wrapped and unwrapped, on the same device in one call: JSON lines to standard output, and to
# $OUT/train.jsonl where OUT is a folder.
#
#   beside.sh [TRAIN [OPTION...]]     TRAIN: the program, default the one on the PATH; options as `train` takes them
#
# WORKS="gpt mlp" chooses, LIMIT=150 is the seconds that each may take. On two cores without a GPU:
#   beside.sh build/dev/benchmarks/train --small --device cpu
# which adds two ranks beside PyTorch's DDP over gloo where PYTHON has torch.
set -uo pipefail
train=${1:-train}; shift || true
works=${WORKS:-mlp resnet50 resnet152x4 bert24 gpt}
limit=${LIMIT:-150} python=${PYTHON:-python3}
out=${OUT:-}; log=${out:+$out/train.jsonl}; log=${log:-/dev/null}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

failed=0
row() {  # row NAME COMMAND...: its lines, or one that says what became of it
  local name=$1 status; shift
  timeout --kill-after=10 "$limit" "$@" 2> >(tail -n 20 >&2) | tee -a "$log"
  status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] && return
  failed=1
  echo "{\"work\": \"$name\", \"failed\": $status, \"limit_s\": $limit}" | tee -a "$log"
}

for work in $works; do row "$work" "$train" "$work" "$@"; done
case " $* " in *" --device cpu "*)
  for work in $works; do
    row "$work, 2 ranks" mpiexec -n 2 "$train" "$work" "$@"
    "$python" -c 'import torch' 2> /dev/null && row "$work, DDP" "$python" "$here/peers.py" "$work" --mode ddp --ranks 2 "$@"
  done ;;
esac
exit $failed
