#!/bin/bash
# commands.sh ROOT WORK FOLDER...: runs the commands of README.md and docs/*.md, with the folders' programs, and compares.
#
# In a block ```console a line "$ …" is a command and what follows it its output, word for word; a line "…" stands for any lines.
# The blocks of a file are run in one folder, in which examples/ is the repository's.
set -uo pipefail
root=$1 work=$2
shift 2
for folder in "$@"; do PATH=$folder:$PATH; done
commands=0 failures=0

# Runs `command` and compares its output with `expected`.
check() {
  [ -n "$command" ] || return 0
  commands=$((commands + 1))
  local output wanted=() lines=() at=0 any=0 line
  output=$(bash -c "$command" 2>stderr) || { echo "$page: '$command' ended with $?: $(cat stderr)"; failures=$((failures + 1)); return; }
  [ -z "$output" ] || mapfile -t lines <<<"$output"
  [ -z "$expected" ] || mapfile -t wanted <<<"${expected%$'\n'}"
  for line in "${wanted[@]}"; do
    if [ "$line" = "…" ]; then any=1; continue; fi
    while [ $any = 1 ] && [ $at -lt ${#lines[@]} ] && [ "${lines[$at]}" != "$line" ]; do at=$((at + 1)); done
    if [ $at -ge ${#lines[@]} ] || [ "${lines[$at]}" != "$line" ]; then
      printf "%s: '%s' does not say\n  %s\nbut\n%s\n" "$page" "$command" "$line" "$output"
      failures=$((failures + 1))
      return
    fi
    at=$((at + 1)) any=0
  done
  if [ $any = 0 ] && [ $at -lt ${#lines[@]} ]; then
    printf "%s: '%s' says more:\n  %s\n" "$page" "$command" "${lines[$at]}"
    failures=$((failures + 1))
  fi
}

for file in "$root"/README.md "$root"/docs/*.md; do
  page=${file#"$root"/}
  rm -rf "$work/$page" && mkdir -p "$work/$page" && cd "$work/$page" && ln -s "$root/examples" examples || exit 2
  inside=0 command='' expected=''
  while IFS= read -r line; do
    case $inside$line in
      '0```console') inside=1 ;;
      '1```') check; inside=0 command='' expected='' ;;
      '1$ '*) check; command=${line#'$ '} expected='' ;;
      1*) expected+=$line$'\n' ;;
    esac
  done <"$file"
done
echo "$commands commands of the documentation, $failures of which do not say what it shows"
[ $commands -gt 0 ] && [ $failures = 0 ]
