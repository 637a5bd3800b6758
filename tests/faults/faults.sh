#!/usr/bin/env bash
# faults.sh PROGRAM MPIEXEC NUMPROC_FLAG TRIES SIZE...: starts jobs of SIZE ranks, one of which has a fault, TRIES times
# each with the first and with the last rank, and prints a table. A job survives when all its processes end in time, its
# status is not 0 and its output says what happened. Exit code 0 if every job survived. "named": jobs whose output names
# the rank. Of a rank that dies of a signal the launcher says so, and ends the others so soon that they may not.
set -uo pipefail
program=$1 mpiexec=$2 flag=$3 tries=$4
shift 4
sizes=("$@")
start_timeout=2
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
worst=0

# The seconds that a job may take, and what must be among its output; RANK stands for the faulty rank.
declare -A limit=() words=()
expect() { limit[$1]=$2 words[$1]=$3; }
dead="rank RANK failed: its process has ended without leaving the World"
expect killed 10 "$dead|[Kk]illed .*9"
expect crashes 10 "$dead|[Ss]egmentation fault"
expect exits-hard 10 "$dead"
expect exits 10 "rank RANK failed in 'its program': it called exit\(0\) after 'step [0-9]+'"
expect throws 10 "error: no such layer;rank RANK failed in 'its program': left by an exception after 'step [0-9]+'"
expect throws-uncaught 10 "rank RANK failed in 'its program': no such layer"
expect tells 10 "rank RANK failed in 'forward of stage 1': out of memory"
in_step="s for rank RANK in 'step"
expect stops 12 "has waited 1\.[0-9] $in_step [0-9]+';has waited 2\.[0-9] $in_step [0-9]+' and gives up .stall_timeout"
expect stops-first 12 "has waited 1\.[0-9] $in_step 0';has waited 2\.[0-9] $in_step 0' and gives up .AUTOPAR_START"
not_begun="rank RANK has not begun to make a World"
expect absent 12 "has waited 1 s for MPI to start: $not_begun;gives up .AUTOPAR_START_TIMEOUT.: $not_begun"
expect ends-early 12 "${words[absent]}"
order=(killed crashes exits exits-hard throws throws-uncaught tells stops stops-first absent ends-early)

# job FAULT RANK SIZE: one job; its output goes to the rank's log, what is wrong with its end to the rank's verdict.
job() {
  local fault=$1 rank=$2 size=$3 marker="fault-test-$$-of-$2-" log=$logs/$2 command=() status begin left word
  ((rank > 0)) && command+=("$flag" "$rank" "$program" none "$marker" :)
  command+=("$flag" 1 "$program" "$fault" "$marker")
  ((rank + 1 < size)) && command+=(: "$flag" "$((size - rank - 1))" "$program" none "$marker")
  begin=$SECONDS
  AUTOPAR_START_TIMEOUT=$start_timeout timeout -k 2 "${limit[$fault]}" "$mpiexec" "${command[@]}" > "$log" 2>&1
  status=$?
  ((status == 124 || status == 137 && SECONDS - begin >= limit[$fault])) && echo "took more than ${limit[$fault]} s"
  ((status == 0)) && echo "its status is 0"
  for ((tenth = 0; tenth < 10; ++tenth)); do
    left=$(pgrep -f -- "$marker" || true)
    [ -z "$left" ] && break
    sleep 0.1
  done
  [ -z "$left" ] || echo "processes are left: $left"
  [ -z "$left" ] || kill -9 $left
  while read -r word; do
    word=${word//RANK/$rank}
    [ -z "$word" ] || grep -qE -- "$word" "$log" || echo "its output lacks: $word"
  done < <(tr ';' '\n' <<< "${words[$fault]}")
}

printf '%-16s %6s %9s %6s %8s\n' fault tried survived named seconds
for fault in "${order[@]}"; do
  tried=0 survived=0 named=0 begin=$(date +%s%N)
  for size in "${sizes[@]}"; do
    for ((try = 0; try < tries; ++try)); do
      for rank in 0 $((size - 1)); do # both at once: they wait more than they compute
        job "$fault" "$rank" "$size" > "$logs/$rank.verdict" &
      done
      wait
      for rank in 0 $((size - 1)); do
        log=$logs/$rank wrong=$(< "$logs/$rank.verdict")
        ((++tried))
        grep -qE "(for|MPI to start.*) rank $rank\b|rank $rank failed" "$log" && ((++named))
        [ -z "$wrong" ] && ((++survived)) && continue
        worst=1
        printf '  rank %s of %s %s: %s\n' "$rank" "$size" "$fault" "$wrong" >&2
        sed 's/^/  | /' "$log" >&2
      done
    done
  done
  milliseconds=$((($(date +%s%N) - begin) / 1000000))
  printf '%-16s %6d %9d %6d %6d.%d\n' "$fault" "$tried" "$survived" "$named" \
    $((milliseconds / 1000)) $((milliseconds % 1000 / 100))
done
exit "$worst"
