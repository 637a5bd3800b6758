#!/usr/bin/env bash
# trace.sh PROGRAM MPIEXEC NUMPROC_FLAG PYTHON: traces of jobs of three ranks, one of which is killed with SIGKILL, and of
# ranks without a common disk. Python looks at each file. Exit code 0 if all is as it should be.
set -uo pipefail
program=$1 mpiexec=$2 flag=$3 python=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
worst=0
wrong() { echo "wrong: $*" >&2; worst=1; }

# steps FILE: "rank:first-last" of each rank, after a look at the form of all events.
steps() {
  "$python" - "$1" << 'END'
import json, sys
trace = json.load(open(sys.argv[1]))
assert trace["format"].startswith("autopar trace of model "), trace["format"]
steps, names, threads = {}, {}, {}
for event in trace["traceEvents"]:
    assert event["ph"] in ("X", "M"), event
    for key in ("ts", "pid", "tid"):
        assert isinstance(event[key], (int, float)), event
    if event["ph"] == "M":
        if event["name"] == "process_name": names[event["pid"]] = event["args"]["name"]
        continue
    assert event["dur"] >= 0 and event["name"] and event["cat"], event
    if event["cat"] == "operator": assert set(event["args"]) == {"step", "operator", "module"}, event
    steps.setdefault(event["pid"], set()).add(event["args"]["step"])
    threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
for bars in threads.values():  # nest, or follow one another; to a nanosecond, which is how far digits go
    open_ = []
    for begin, end in bars:
        while open_ and open_[-1] <= begin + 1e-3: open_.pop()
        assert not open_ or end <= open_[-1] + 1e-3, (begin, end, open_)
        open_.append(end)
assert set(names) == set(steps), (names, steps)
assert all(name.startswith(f"rank {rank} (") for rank, name in names.items()), names
print(" ".join(f"{rank}:{min(of)}-{max(of)}" for rank, of in sorted(steps.items())))
END
}
expect() { # FILE PATTERN
  local found
  found=$(steps "$1") || wrong "$1 is no trace"
  [[ $found =~ ^$2$ ]] || wrong "$1 has the steps '$found', not '$2'"
}
job() { AUTOPAR_START_TIMEOUT=20 timeout -k 2 60 "$mpiexec" "$flag" 3 "$program" "$@" > "$work/log" 2>&1; }

for killed in 0 1; do
  folder=$work/killed-$killed
  job "$folder" "$killed" && wrong "a job with a killed rank has the status 0"
  [ -e "$folder/trace.json.parts/rank-$killed.json" ] || wrong "the part of killed rank $killed is gone"
  others=1-[45] # that end before mpiexec ends them write what they have of the fifth
  expect "$folder/trace.json" "$(for rank in 0 1 2; do ((rank == killed)) && echo "$rank:1-4" || echo "$rank:$others"; done | xargs)"
  job "$folder" -1 || { wrong "the job fails:"; cat "$work/log" >&2; }
  "$python" - "$folder/trace.killed.json" << 'END' || wrong "trace.killed.json lacks steps"
import json, sys
steps = {}
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    if event["ph"] == "X": steps.setdefault(event["pid"], set()).add(event["args"]["step"])
assert len(steps) == 3 and all(set(range(1, 5)) <= of for of in steps.values()), steps
END
  expect "$folder/trace.json" "0:1-7 1:1-7 2:1-7"
  [ -e "$folder/trace.json.parts" ] && wrong "parts are left after a whole run"
done

job "$work/apart" apart || { wrong "the job of ranks apart fails:"; cat "$work/log" >&2; }
expect "$work/apart/0/trace.json" "0:1-7 1:1-6 2:1-6"
grep -q "the last steps of the trace lie on this rank's host" "$work/log" || wrong "nothing says where the rest is"
[ -e "$work/apart/2/trace.json.parts/rank-2.json" ] || wrong "a rank apart has no part of its own"
exit "$worst"
