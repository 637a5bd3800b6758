#!/usr/bin/env bash
# soak.sh AUTOPAR MPIEXEC SOAK FOLDER STEPS SAVE_EVERY KILL_EVERY [SNAPSHOT_EVERY]: a training that is killed about every KILL_EVERY
# steps, started again with the same number of ranks, ends bit-equal to one that is left alone. It loses SAVE_EVERY steps at most
# each time; with snapshots in memory SNAPSHOT_EVERY, and nothing is left of them.
set -euo pipefail
autopar=$1 mpiexec=$2 soak=$3 folder=$4 steps=$5 save_every=$6 kill_every=$7 snapshot_every=${8:-0}
readonly kRanks=2 kSlowestRestart=30
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

"$mpiexec" -n $kRanks "$soak" whole "$steps" "$save_every" 0 > whole.txt
export AUTOPAR_SNAPSHOT_EVERY=$snapshot_every
"$autopar" run -n $kRanks --mpiexec "$mpiexec" --max-restarts "$((steps / kill_every))" --folder starts -- \
  "$soak" parts "$steps" "$save_every" "$kill_every" > parts.txt 2> faults.txt || { cat parts.txt faults.txt; exit 1; }

last=$(printf 'step-%08d' "$steps")
for file in whole/"$last"/*.safetensors; do
  cmp "$file" "parts/$last/$(basename "$file")"
done

python3 - "$steps" "$((snapshot_every > 0 ? snapshot_every : save_every))" "$kill_every" $kSlowestRestart <<'PYTHON'
import json, os, re, sys

steps, lost_at_most, kill_every, slowest = map(int, sys.argv[1:])
begun = [(int(start), int(step)) for start, step in re.findall(r'^start (\d+) after step (\d+)$', open('parts.txt').read(), re.M)]
kills = (steps - 1) // kill_every
assert [start for start, step in begun] == list(range(1, kills + 2)), begun
for start, step in begun[1:]:
    killed_at = (start - 1) * kill_every
    assert killed_at - lost_at_most <= step <= killed_at, (start, step, killed_at)
starts = [json.loads(line) for line in open('starts/starts.jsonl')]
gaps = [after['begin'] - before['end'] for before, after in zip(starts, starts[1:])]
print(f'{kills} kills; between starts {max(gaps):.1f} s at most; {max(killed - begun[i + 1][1] for i, killed in enumerate(range(kill_every, steps, kill_every)))} steps lost at most')
assert max(gaps) <= slowest, gaps
left = [each for each in os.listdir('/dev/shm') if each.startswith(f"autopar-{os.geteuid()}-{starts[0]['job']}")]
assert not left, left
PYTHON
tail -n 1 parts.txt
