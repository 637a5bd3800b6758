#!/usr/bin/env bash
# One rank's share of 8 ranks' head of 1, 2 and 4 million classes on one GPU, beside DTensor's: JSON lines to standard
# output, and to $OUT/one_share.jsonl where OUT is a folder.
#
#   one_share.sh [CLASS_SHARE [OPTION...]]     the program, default the one on the PATH; options as both programs take them
#
# Then the share of 2 million classes on a device of CAP_MIB (12196: a TITAN Xp) beside a backbone of BESIDE_MIB (4141:
# TorchShard's ResNet-50 with 1000 classes), and that of 4 million, which must fail there: else there is no cap.
# CLASSES="1000000 …", PYTHON=python3 (one that has torch), LIMIT=100 seconds a row. Without a GPU:
#   DEVICE=cpu CLASSES=80000 one_share.sh build/quickstart/benchmarks/class_share --batch 64 --width 64
set -uo pipefail
share=${1:-class_share}; shift || true
classes=${CLASSES:-1000000 2000000 4000000} python=${PYTHON:-python3} limit=${LIMIT:-100} device=${DEVICE:-cuda}
cap=${CAP_MIB:-12196} beside=${BESIDE_MIB:-4141}
log=${OUT:+$OUT/one_share.jsonl}; log=${log:-/dev/null}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export AUTOPAR_DEVICE=$device

# row WHAT COMMAND...: its line, or one that says what became of it.
row() {
  local what=$1 status error line; shift
  error=$(mktemp)
  timeout --kill-after=5 "$limit" "$@" 2> "$error" | tee -a "$log"
  status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ]; then
    line="{\"row\": \"$what\", \"failed\": $status, \"out_of_memory\": $(grep -qi 'out of memory' "$error" && echo true || echo false)}"
    echo "$line" | tee -a "$log"
    grep -qi 'out of memory' "$error" || tail -n 20 "$error" >&2
  fi
  rm -f "$error"
}
rows() {  # rows COUNT OPTION...: all three losses
  local count=$1; shift
  row "logits, $count classes" "$share" logits --classes "$count" "$@"
  row "chunked, $count classes" "$share" chunked --classes "$count" "$@"
  row "DTensor, $count classes" "$python" "$here/one_share.py" --device "$device" --classes "$count" "$@"
}

for count in $classes; do rows "$count" "$@"; done
[ "$device" = cpu ] && exit
name=$("$python" -c 'import torch; print(torch.cuda.get_device_name(0))')
fraction=$("$python" -c "import torch; print($cap * 2**20 / torch.cuda.get_device_properties(0).total_memory)")
echo "{\"device\": \"$name\", \"cap_mib\": $cap, \"fraction\": $fraction}" | tee -a "$log"
export PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:$fraction
rows 2000000 --beside "$beside" "$@"
rows 4000000 --beside "$beside" "$@"
