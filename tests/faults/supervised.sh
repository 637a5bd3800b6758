#!/usr/bin/env bash
# supervised.sh AUTOPAR PROGRAM MPIEXEC PYTHON LENGTH: runs PROGRAM (fault_ranks) under `autopar run` with one fault after
# the other, and judges status, words, records and what is left. LENGTH is `short` (a minute) or `long` (each rank, each
# fault, and what takes its time). Exit code 0 if all is well.
set -uo pipefail
autopar=$1 program=$2 mpiexec=$3 python=$4 length=$5
folder=$(mktemp -d)
marker=supervised-$$-
worst=0 cases=0
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
export AUTOPAR_START_TIMEOUT=20

# supervise NAME ARGUMENT...: `autopar run` in the folder NAME; its output goes to NAME.log.
supervise() {
  local name=$1
  shift
  timeout -k 5 120 "$autopar" run --mpiexec "$mpiexec" --folder "$name" "$@" > "$name.log" 2>&1 < /dev/null
}
# begin NAME ARGUMENT...: likewise in the background, as $process. A shell's background jobs ignore SIGINT otherwise.
begin() {
  local name=$1
  shift
  env --default-signal=INT "$autopar" run --mpiexec "$mpiexec" --folder "$name" "$@" > "$name.log" 2>&1 < /dev/null &
  process=$!
  await "$name"
}
wrong() {
  worst=1
  echo "  $1: $2" >&2
  sed 's/^/  | /' "$1.log" >&2
}
# says NAME WORDS...: each is a pattern that the output has.
says() {
  local name=$1 word
  shift
  for word in "$@"; do grep -qE -- "$word" "$name.log" || wrong "$name" "its output lacks: $word"; done
}
# ends NAME STATUS EXPECTED STARTS: what every case is judged by.
ends() {
  local name=$1 left tenth
  ((++cases))
  [[ $2 =~ ^($3)$ ]] || wrong "$name" "its status is $2, not $3"
  [ "$(wc -l < "$name/starts.jsonl")" = "$4" ] || wrong "$name" "starts.jsonl has not $4 lines"
  [ "$(find "$name" -name 'start-*.log' | wc -l)" = "$4" ] || wrong "$name" "there are not $4 logs"
  for ((tenth = 0; tenth < 20; ++tenth)); do
    left=$(pgrep -f -- "$marker$name-" || true)
    [ -z "$left" ] && break
    sleep 0.1
  done
  [ -z "$left" ] || wrong "$name" "processes are left: $left"
  [ -z "$left" ] || kill -9 $left
  "$python" - "$name/starts.jsonl" <<'SCRIPT' || wrong "$name" "starts.jsonl is not as it should be"
import json, os, sys
starts = [json.loads(line) for line in open(sys.argv[1])]
for number, start in enumerate(starts, 1):
    assert start["number"] == number, start
    assert start["begin"] <= start["end"], start
    assert number == 1 or starts[number - 2]["end"] <= start["begin"], "two starts overlap"
    assert (start["status"] == 0) <= (number == len(starts)), start
    assert not os.path.exists(f"/dev/shm/autopar-{os.geteuid()}-{start['job']}"), "snapshots are left"
SCRIPT
}
# await NAME: until its program has done a step.
await() {
  local tenth
  for ((tenth = 0; tenth < 200; ++tenth)); do
    [ -s "$1/step" ] && return
    sleep 0.1
  done
  wrong "$1" "it has done no step in 20 s"
}
# ranks_of NAME RANK: the processes of that rank.
ranks_of() {
  local process
  for process in $(pgrep -f -- "^$program .*$marker$1-"); do
    tr '\0' '\n' < "/proc/$process/environ" 2> /dev/null | grep -qx "PMI_RANK=$2" && echo "$process"
  done
}

fault() { # FAULT RANK WORDS: restarted with as many ranks, and done
  local name=$1-$2
  supervise "$name" -n 3 -- "$program" "$1" "$marker$name-" "$2" 1 40
  ends "$name" $? 0 2
  says "$name" "start 1 of at most 11 has failed at step 3 with status [0-9]+: $3" \
    'restarting with 3 ranks, start 2 of at most 11' 'done, with 2 starts'
  "$python" - "$name/starts.jsonl" "$2" <<'SCRIPT' || wrong "$name" "its first start is not recorded as it was"
import json, sys
start = json.loads(open(sys.argv[1]).readline())
assert start["fault"]["rank"] == int(sys.argv[2]) and start["last_step"] == 3 and start["ranks"] == 3
assert start["end"] - start["begin"] < 12, "the others took longer than 10 s to leave"
SCRIPT
}
faults() {
  local rank
  for rank in "$@"; do
    fault killed "$rank" "rank $rank failed( in 'step [0-9]+')?: its process (has ended|was killed by signal 9)"
    fault throws "$rank" "rank $rank failed in 'its program': left by an exception"
    fault exits "$rank" "rank $rank failed in 'its program': it called exit.0."
    fault stops "$rank" "rank $rank stopped in 'step 3'"
    [ "$length" = long ] || continue
    fault crashes "$rank" "rank $rank failed( in 'step [0-9]+')?: its process (has ended|was killed by signal 11)"
    fault exits-hard "$rank" "rank $rank failed( in 'step [0-9]+')?: its process has ended"
    fault tells "$rank" "rank $rank failed in 'forward of stage 1': out of memory"
  done
}

same_step() {
  supervise same -n 2 -- "$program" again-throws "${marker}same-" 1 9 40
  ends same $? 3 2
  says same 'the same fault at step 3 twice: the run ends with status 3'
  supervise never -n 2 -- sh -c "exit 7; : ${marker}never-"
  ends never $? 7 2
  says never 'has failed before its first step with status 7: no rank has said why' 'the same fault before any step twice'
}

restarts() {
  supervise most -n 2 --max-restarts 1 -- "$program" killed "${marker}most-" 1 9 40
  ends most $? 137 2
  says most 'start 2 of at most 2' '1 restart, as --max-restarts allows: the run ends with status 137'
}

# A rank that the launcher alone knows of, and a process of its own that outlives it; without the launcher's descriptors,
# for which that would wait.
without_world() {
  supervise bare -n 2 -- bash -c 'case $AUTOPAR_RUN in *\"start\":2,*) exit 0 ;; esac
    (for path in /proc/self/fd/*; do ((${path##*/} > 2)) && eval "exec ${path##*/}>&-"; done
    exec setsid sh -c "sleep 300; : '"${marker}bare-"'") > /dev/null 2>&1 < /dev/null &
    sleep 1; [ "$PMI_RANK" = 1 ] && kill -9 $$; sleep 300'
  ends bare $? 0 2
  says bare 'rank 1 failed: its process was killed by signal 9'
}

signals() { # NAME STATUS ...: to the supervisor
  local name=$1 status=$2
  begin "signal-$name" -n 2 -- "$program" none "${marker}signal-$name-" 1 1 100000
  kill "-$name" "$process"
  wait "$process"
  ends "signal-$name" $? "$status" 1
  says "signal-$name" "asked to end: the run ends with status $status"
}

# Not through mpiexec: MPICH 4.0.2 ends with 0 in some of these cases, whatever the ranks say.
to_rank() {
  begin direct -n 2 -- "$program" none "${marker}direct-" 1 1 100000
  kill -TERM $(ranks_of direct 1)
  wait "$process"
  ends direct $? 143 1
}

# hosts_of NAME LINE...: a hostfile, and a launcher for hosts that are all this one. Those that the file `gone` names are
# not reached, as ssh says it.
hosts_of() {
  local name=$1
  shift
  mkdir "at-$name"
  printf '%s\n' "$@" > "at-$name/hosts"
  cat > "at-$name/launch" <<'SCRIPT'
#!/usr/bin/env bash
while [[ ${1:-} == -* ]]; do shift; done
host=$1
shift
if grep -qx "$host" "$(dirname "$0")/gone" 2> /dev/null; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
exec sh -c "$*"
SCRIPT
  chmod +x "at-$name/launch"
  elsewhere=(--hostfile "at-$name/hosts" --mpiexec-arg -launcher --mpiexec-arg ssh --mpiexec-arg -launcher-exec
    --mpiexec-arg "$folder/at-$name/launch")
}
# lost_host NAME STATUS STARTS OPTION...: host nodeb is lost with its rank 2 when a step is done
lost_host() {
  local name=$1 status=$2 starts=$3
  shift 3
  begin "$name" -n 3 "${elsewhere[@]}" "$@" -- "$program" none "$marker$name-" 1 1 300
  echo nodeb > "at-$name/gone"
  kill -9 $(ranks_of "$name" 2)
  wait "$process"
  ends "$name" $? "$status" "$starts"
}
spare() {
  hosts_of spare 'nodea:2 # two' 'nodeb slots=1' nodec
  lost_host spare 0 2 --spares 1
  says spare "rank 2 failed" 'restarting with 3 ranks.*host nodeb does not answer: now on nodea .2., nodec .1.'
  [ "$(cat spare/hosts)" = $'nodea:2\nnodec:1' ] || wrong spare "it wrote other hosts"
}
fewer() {
  hosts_of fewer nodea:2 nodeb:1
  lost_host fewer 0 2 --min-ranks 2
  says fewer 're-planned for 2 ranks; host nodeb does not answer: now on nodea .2.'
}
none() {
  hosts_of none nodea:2 nodeb:1
  # Some versions of Hydra stumble over the lost host, and do not say of what the rank has died.
  lost_host none '1|137' 1
  says none '2 slots left for at least 3 ranks, as host nodeb does not answer: the run ends with status'
}
at_first() {
  hosts_of at-first nodea:2 nodeb:1
  echo nodeb > at-at-first/gone
  supervise at-first -n 3 "${elsewhere[@]}" -- "$program" none "${marker}at-first-" 1 1 40
  [ $? = 2 ] || wrong at-first "its status is not 2"
  says at-first '2 slots left for at least 3 ranks, as host nodeb does not answer'
  supervise at-first -n 3 --min-ranks 2 "${elsewhere[@]}" -- "$program" none "${marker}at-first-" 1 1 40
  ends at-first $? 0 1
  says at-first 'starting with 2 ranks, start 1 .*re-planned for 2 ranks; host nodeb does not answer: now on nodea .2.'
}

locked() {
  local status
  begin lock -n 1 -- "$program" none "${marker}lock-" 0 0 100000
  timeout 20 "$autopar" run --mpiexec "$mpiexec" --folder lock -n 1 -- true > second.log 2>&1
  status=$?
  [ "$status" = 2 ] || wrong second "its status is $status, not 2"
  says second 'another job writes to this folder: process [0-9]+'
  # Killed itself, it takes the ranks with it, and the next one clears what it has left.
  kill -KILL "$process"
  wait "$process" 2> /dev/null
  local tenth left=x
  for ((tenth = 0; tenth < 100; ++tenth)); do
    left=$(pgrep -f -- "$program.*${marker}lock-" || true)
    [ -z "$left" ] && break
    sleep 0.1
  done
  [ -z "$left" ] || wrong lock "ranks outlive the supervisor by 10 s"
  [ -z "$left" ] || kill -9 $left
  find /dev/shm -maxdepth 1 -name "autopar-$(id -u)-*" | sort > stale
  supervise next -n 1 -- true
  ends next $? 0 1
  [ -s stale ] || wrong next "a killed supervisor left no folder"
  while read -r path; do
    process=$(cut -d ' ' -f 1 "$path/supervisor" 2> /dev/null) || continue
    kill -0 "$process" 2> /dev/null || wrong next "$path was left"
  done < stale
}

terminal() { # Ctrl-C, and a terminal for the program
  "$python" - "$autopar" "$mpiexec" "$program" "${marker}terminal-" > terminal.log 2>&1 <<'SCRIPT' || wrong terminal "not as in a terminal"
import fcntl, os, pty, signal, struct, subprocess, sys, termios, time
autopar, mpiexec, program, marker = sys.argv[1:]
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in background jobs of a shell
    os.execv(autopar, ["autopar", "run", "--mpiexec", mpiexec, "--folder", "terminal", "-n", "2", "--", program, "none", marker, "1", "1", "100000"])
for _ in range(200):
    if os.path.exists("terminal/step") and os.path.getsize("terminal/step"):
        break
    time.sleep(0.1)
launcher = subprocess.check_output(["pgrep", "-P", str(child)]).split()[0].decode()
for descriptor in (1, 2):
    target = os.readlink(f"/proc/{launcher}/fd/{descriptor}")
    assert target.startswith("/dev/pts/") and target != os.readlink(f"/proc/{child}/fd/1"), target
size = struct.pack("HHHH", 31, 107, 0, 0)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
seen = os.open(f"/proc/{launcher}/fd/1", os.O_RDWR | os.O_NOCTTY)
for _ in range(50):
    if fcntl.ioctl(seen, termios.TIOCGWINSZ, bytes(8)) == size:
        break
    time.sleep(0.1)
assert fcntl.ioctl(seen, termios.TIOCGWINSZ, bytes(8)) == size, "the terminal's new size did not pass on"
os.close(seen)
os.write(terminal, b"\x03")
text = b""
while True:
    try:
        more = os.read(terminal, 4096)
    except OSError:
        break
    if not more:
        break
    text += more
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(text.decode())
assert status == 130, status
assert text.count(b"Sending Ctrl-C") <= 1, "the launcher was asked twice"
SCRIPT
  ends terminal 0 0 1
}

hanging() { # mpiexec goes on without a rank, as with a host that is lost: killed after 20 s
  cat > hangs <<SCRIPT
#!/usr/bin/env bash
"$mpiexec" "\$@"
status=\$?
case "\$AUTOPAR_RUN" in *'"start":1,'*) [ "\$1" = --version ] || sleep 300 ;; esac
exit \$status
SCRIPT
  chmod +x hangs
  local real=$mpiexec begin=$SECONDS
  mpiexec=$folder/hangs
  supervise hangs-on -n 2 -- "$program" killed "${marker}hangs-on-" 1 1 40
  ends hangs-on $? 0 2
  mpiexec=$real
  says hangs-on "mpiexec did not end and was killed" 'restarting with 2 ranks'
  ((SECONDS - begin < 40)) || wrong hangs-on "took $((SECONDS - begin)) s"
}

output() { # as it comes, unchanged, on both streams
  "$autopar" run --mpiexec "$mpiexec" --folder output -n 1 -- \
    sh -c 'printf "a\0b\r\n\033[1mc"; printf "err\r" >&2; seq 20000' > output.log 2> errors < /dev/null
  ends output $? 0 1
  cmp -s output.log <(printf "a\0b\r\n\033[1mc"; seq 20000) || wrong output "bytes were changed"
  cmp -s errors <(printf "err\r") || wrong output "bytes of the error stream were changed"
  [ "$(wc -l < output/start-0001.log)" = 200 ] || wrong output "the log has not the last 200 lines"
}

devices() { # one of three is lost with rank 2
  mkdir bin
  cat > bin/nvidia-smi <<'SCRIPT'
#!/usr/bin/env bash
for ((i = 0; i < $(cat "$(dirname "$0")/count"); ++i)); do echo "GPU $i: a stand-in"; done
SCRIPT
  chmod +x bin/nvidia-smi
  echo 3 > bin/count
  PATH=$folder/bin:$PATH begin devices -n 3 --min-ranks 1 -- "$program" none "${marker}devices-" 1 1 300
  echo 2 > bin/count
  kill -9 $(ranks_of devices 2)
  wait "$process"
  ends devices $? 0 2
  says devices 'restarting with 2 ranks, .*re-planned for 2 ranks; host .* has 2 of its 3 devices'
}

# Most of their time these wait for hosts that do not answer.
jobs=()
for case in spare fewer none at_first; do
  (
    "$case" 2> "$case.verdict"
    exit "$worst"
  ) &
  jobs+=($!)
done
same_step
restarts
without_world
signals TERM 143
signals INT 130
signals USR1 138
to_rank
locked
terminal
output
devices
for job in "${jobs[@]}"; do wait "$job" || worst=1; done
cat ./*.verdict >&2
if [ "$length" = long ]; then
  faults 0 1 2
  hanging
else
  faults 1
fi
echo "$cases cases, and 4 with hosts"
exit "$worst"
