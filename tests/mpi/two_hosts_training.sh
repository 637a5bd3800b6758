#!/usr/bin/env bash
# two_hosts_training.sh GPT MPIEXEC TWO_HOSTS MARKS FOLDER: trains examples/gpt in one process and on two hosts of 2 ranks with a
# slow wire between them. Losses are the same, whether gradients or activations cross the wire; and a plan that knows the
# measured links keeps the ranks of each stage on one host. Exit code 77 where there cannot be two hosts.
set -euo pipefail
gpt=$1 mpiexec=$2 two_hosts=$3 marks=$4 folder=$5
readonly kMbit=1000 kSteps=6
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

curve=(--layers 2 --width 96 --heads 2 --length 16 --fp64 --batch 8 --steps "$kSteps" --lr 1e-2 --warmup 2 --held-out 6
  --validate-every "$kSteps" --log-every 1 --data /usr/share/common-licenses/GPL-3)
on_two_hosts() {
  "$two_hosts" one two "$kMbit" 1 "^step $kSteps: validation_loss" "$marks" "$mpiexec" "$gpt" "${curve[@]}" "$@"
}

AUTOPAR_STAGES=1 AUTOPAR_PLAN_FILE=unmeasured.json on_two_hosts --out unmeasured # gradients cross the wire
AUTOPAR_COSTS=profiled AUTOPAR_COST_FILE=costs.json AUTOPAR_PLAN_FILE=plan.json on_two_hosts --out measured
"$gpt" "${curve[@]}" --out one

python3 - <<'PYTHON'
import json

def losses(run):
    lines = [json.loads(line) for line in open(run + '/metrics.jsonl')]
    return [(line['step'], key, line[key]) for line in lines for key in ('loss', 'validation_loss') if key in line]

one = losses('one')
assert len(one) == 6 + 1, one
for run in 'unmeasured', 'measured':
    other = losses(run)
    assert [entry[:2] for entry in one] == [entry[:2] for entry in other], (run, other)
    assert max(abs(a[2] - b[2]) for a, b in zip(one, other)) <= 1e-9, (run, one, other)

links = json.load(open('costs.json'))['links']['messages']
seconds_a_byte = {link['class']: link['seconds'][-1][1] / link['seconds'][-1][0] for link in links}  # of the largest
assert sorted(seconds_a_byte) == [2, 4], links                   # ranks that the innermost joining level spans
assert seconds_a_byte[2] < 0.5 * seconds_a_byte[4], links        # the wire is some 20 times slower

def hosts_of_stages(file):
    return [sorted({rank // 2 for rank in stage['ranks']}) for stage in json.load(open(file))['stages']]

assert all(hosts == [0, 1] for hosts in hosts_of_stages('unmeasured.json')), hosts_of_stages('unmeasured.json')
assert all(len(hosts) == 1 for hosts in hosts_of_stages('plan.json')), hosts_of_stages('plan.json')
PYTHON
