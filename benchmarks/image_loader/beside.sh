#!/usr/bin/env bash
# autopar's reader of images and PyTorch's DataLoader on the same files, in turns: JSON lines, then the ratios of medians,
# of images a second and of images a second of processor time, which a busy machine leaves alone.
#
#   beside.sh BUILD      BUILD: the build folder, with jpeg_folder and image_loader
#
# WORKERS="1 2", ROUNDS=3, FOLDER (400 JPEGs of 500 x 375 are written there), PYTHON with torchvision.
set -euo pipefail
build=$1 python=${PYTHON:-python3} folder=${FOLDER:-/tmp/image_loader_jpegs}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lines=$(mktemp); trap 'rm -f "$lines"' EXIT
export OMP_NUM_THREADS=1
[ -d "$folder/train" ] || "$build/examples/jpeg_folder" "$folder" --train 400 --val 0 --width 500 --height 375 --noise 12 >&2
for _ in $(seq "${ROUNDS:-3}"); do
  for workers in ${WORKERS:-1 2}; do
    for transform in "" --validation; do
      "$build/benchmarks/image_loader" "$folder" --workers "$workers" --epochs 2 $transform | tee -a "$lines"
      "$python" "$here/data_loader.py" "$folder" --workers "$workers" --epochs 2 $transform | tee -a "$lines"
    done
  done
done
"$python" - "$lines" <<'PY'
import collections, json, statistics, sys
found = collections.defaultdict(list)
for line in map(json.loads, open(sys.argv[1])):
    found[line["transform"], line["workers"], line["loader"]].append((line["images_s"], line["images_cpu_s"]))
for transform, workers in sorted({key[:2] for key in found}):
    ours, theirs = (list(map(statistics.median, zip(*found[transform, workers, name]))) for name in ("autopar", "pytorch"))
    print(json.dumps({"transform": transform, "workers": workers, "autopar": ours[0], "pytorch": theirs[0],
                      "ratio": round(ours[0] / theirs[0], 2), "cpu_ratio": round(ours[1] / theirs[1], 2)}))
PY
