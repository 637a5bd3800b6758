#!/bin/bash
# timeline.sh GPT AUTOPAR: writes timeline.svg beside this file. GPT is examples/gpt, AUTOPAR the tool; needs no GPU.
#
#   bash docs/images/timeline.sh build/quickstart/examples/gpt build/quickstart/bin/autopar
set -euo pipefail
gpt=$(realpath "$1") autopar=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
h100s=$here/../../examples/clusters/h100x8.toml
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"

AUTOPAR_PROFILE_FILE=gpt.json "$gpt" --size 1.3b --batch 64 --precision bf16 --plan-only --cluster "$h100s"
"$autopar" plan gpt.json "$h100s" --world 4 --batch 64 --set precision=bf16 --stages 4 --replicas 1 --tensor-parallel 1 \
  --zero 0 --microbatches 8 --out plan.json
"$autopar" report plan.json gpt.json "$h100s" --quick --out step.html
python3 "$here/timeline.py" step.html > "$here/timeline.svg"
