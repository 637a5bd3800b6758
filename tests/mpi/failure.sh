#!/usr/bin/env bash
# failure.sh PROGRAM MPIEXEC NUMPROC_FLAG SCENARIO RANKS: starts PROGRAM's ranks and checks that every process ends in
# time with the right words. Exit code 0 if all is as it must be.
set -uo pipefail
program=$1 mpiexec=$2 flag=$3 scenario=$4 ranks=$5
marker="failure-test-$$-$RANDOM"
culprit=$((ranks - 1))
log=$(mktemp)
command=("$program" "${scenario#unwatched-}" "$marker")
seconds_to_end=1
if [[ $scenario == unwatched-* ]]; then
  # Ranks out of the launcher's reach, as under one that does not end the job when one process dies.
  command=(sh -c "setsid -w $program ${scenario#unwatched-} $marker >> $log 2>&1")
  seconds_to_end=10
fi
launch=("$mpiexec" "$flag" "$ranks")
case $scenario in
  # What Ubuntu 24.04's mpich does: every process a world of one, whatever the launcher said.
  broken-launcher) launch=(env "PMI_SIZE=$ranks") command=("$program" none "$marker") ;;
  no-launcher) launch=(env) command=("$program" none "$marker") ;;
esac
scenario_of_ranks=${scenario#unwatched-}

fail() {
  echo "FAILED ($scenario, $ranks ranks): $1"
  sed 's/^/  | /' "$log"
  rm -f "$log"
  exit 1
}
says() { grep -qE -- "$1" "$log" || fail "the output lacks: $1"; }
silent() { ! grep -qE -- "$1" "$log" || fail "the output must not have: $1"; }

begin=$(date +%s%N)
timeout -k 5 60 "${launch[@]}" "${command[@]}" >> "$log" 2>&1
status=$?
for ((tenth = 0; tenth < 10 * seconds_to_end; ++tenth)); do
  left=$(pgrep -f -- "$marker" | grep -vx "$$" || true)
  [ -z "$left" ] && break
  sleep 0.1
done
milliseconds=$((($(date +%s%N) - begin) / 1000000))
[ -z "$left" ] || fail "processes are left: $left"
[ "$milliseconds" -le 10000 ] || fail "took $milliseconds ms"

others=$((ranks - 1))
case $scenario_of_ranks in
  none)
    [ "$status" -eq 0 ] || fail "exit code $status"
    [ "$(grep -c 'is done' "$log")" -eq "$ranks" ] || fail "not every rank is done"
    silent "error|warning" ;;
  late)
    [ "$status" -eq 0 ] || fail "exit code $status"
    says "warning rank 0/$ranks Transport] has waited 1\.[0-9] s for rank $culprit in 'the end of the World'"
    silent "rror" ;;
  slow)
    [ "$status" -eq 0 ] || fail "exit code $status"
    says "warning rank 0/$ranks Transport] has waited 1\.[0-9] s for rank $culprit in 'agreement on step 0'" ;;
  planned) # every rank is left by an exception that is no failure; the program's own status counts
    [ "$status" -eq 3 ] || fail "exit code $status"
    [ "$(grep -c "error: planned, and not run" "$log")" -eq "$ranks" ] || fail "not every rank went on"
    silent "failed" ;;
  alike|alike-uncaught) # one speaks for all, and the launcher after it
    [ "$status" -ne 0 ] || fail "exit code 0"
    said=$(grep -cE "rank [0-9]+ failed in 'its program'" "$log")
    [ "$said" -eq 1 ] || fail "$said ranks speak"
    words=$(grep -cE "what\(\):  wrong on all ranks|^error: wrong on all ranks" "$log")
    [ "$words" -eq 1 ] || fail "the error is printed $words times"
    banner=$(grep -nE "BAD TERMINATION|MPI_Abort" "$log" | head -1 | cut -d: -f1)
    last=$(grep -n "wrong on all ranks" "$log" | tail -1 | cut -d: -f1)
    [ -z "$banner" ] || [ "$last" -lt "$banner" ] || fail "the launcher speaks first" ;;
  throws)
    [ "$status" -ne 0 ] || fail "exit code 0"
    [ "$(grep -c "TransportError: rank $culprit failed in 'its program'" "$log")" -eq "$others" ] || fail "not every rank was told"
    says "error: no such layer" ;;
  tells)
    [ "$status" -ne 0 ] || fail "exit code 0"
    [ "$(grep -c "TransportError: rank $culprit failed in 'forward of stage 1': out of memory" "$log")" -eq "$others" ] ||
      fail "not every rank was told" ;;
  leaves)
    [ "$status" -ne 0 ] || fail "exit code 0"
    says "TransportError: rank $culprit has left its training loop, but rank [0-9]+ still needs it for 'agreement on step 0'" ;;
  stalls)
    [ "$status" -ne 0 ] || fail "exit code 0"
    says "warning rank 0/$ranks Transport] has waited 1\.[0-9] s for rank $culprit in 'agreement on step 0'"
    says "has waited 3\.[0-9] s for rank $culprit in 'agreement on step 0' and gives up" ;;
  dies|dies-busy)
    [ "$status" -ne 0 ] || fail "exit code 0" ;;
  broken-launcher)
    [ "$status" -eq 3 ] || fail "exit code $status"
    says "error: .*a world of 1 ranks, but PMI_SIZE says $ranks" ;;
  no-launcher)
    [ "$status" -eq 0 ] || fail "exit code $status"
    says "^rank 0 is done" ;;
  exits) # hydra alone would pass on the exit code of the rank that ended the job, which is 0
    [ "$status" -ne 0 ] || fail "exit code 0"
    says "rank $culprit failed: its process has ended without leaving the World" ;;
  wrong-size)
    [ "$status" -ne 0 ] || fail "exit code 0"
    says "error: .*world of $ranks ranks.* 7|error: a world of 7 ranks was asked for" ;;
esac
case $scenario in
  unwatched-dies)
    [ "$(grep -c "TransportError: rank $culprit failed: its process has ended" "$log")" -eq "$others" ] ||
      fail "not every rank was told of the death" ;;
esac
echo "passed: $scenario, $ranks ranks, $milliseconds ms"
rm -f "$log"
