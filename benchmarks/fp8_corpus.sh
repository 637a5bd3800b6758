#!/usr/bin/env bash
# What 8-bit products cost in loss: a GPT of 31 million parameters on a corpus, bf16-compute beside fp8, three seeds.
#
#   fp8_corpus.sh GPT TOKENS OUT
#
# GPT is examples/gpt, TOKENS a folder that its --write-tokens wrote, OUT a folder for the runs. Runs that are complete
# are not repeated and others go on, so a command that was stopped is called again. SEEDS="0 1 2", STEPS=2000, LIMIT=540
# seconds for all, SIZE of the model in gpt's options. The last lines are the validation losses and their ratios.
set -uo pipefail
gpt=${1:?usage: fp8_corpus.sh GPT TOKENS OUT} tokens=$2 out=$3
steps=${STEPS:-2000} limit=${LIMIT:-540}
size=${SIZE:---layers 7 --width 512 --heads 8 --length 512 --batch 32 --lr 1e-3 --held-out 1024 --validate-every 500}
mkdir -p "$out"
for seed in ${SEEDS:-0 1 2}; do
  for precision in bf16-compute fp8; do
    run=$out/$precision-$seed
    if grep -qs "\"step\": *$steps,.*validation_loss" "$run/metrics.jsonl"; then continue; fi
    left=$((limit - SECONDS))
    [ "$left" -gt 20 ] || { echo "stopped at $precision, seed $seed: call again"; exit 1; }
    # SIGINT saves and ends the run after its step.
    timeout -s INT -k 30 "$left" "$gpt" --tokens "$tokens" --out "$run" --resume --precision "$precision" --seed "$seed" \
      --steps "$steps" --dropout 0 --save-every 500 $size >> "$out/$precision-$seed.log" 2>&1 ||
      { tail -n 5 "$out/$precision-$seed.log"; exit 1; }
  done
done
python3 - "$out" "$steps" ${SEEDS:-0 1 2} << 'END'
import json, statistics, sys
out, steps, seeds = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

def loss(precision, seed):
    lines = [json.loads(line) for line in open(f"{out}/{precision}-{seed}/metrics.jsonl")]
    return next(line["validation_loss"] for line in reversed(lines) if line["step"] == steps and "validation_loss" in line)

ratios = []
for seed in seeds:
    own, eight = loss("bf16-compute", seed), loss("fp8", seed)
    ratios.append(eight / own)
    print(json.dumps({"seed": int(seed), "bf16-compute": own, "fp8": eight, "ratio": eight / own}))
for precision in ("bf16-compute", "fp8"):
    losses = [loss(precision, seed) for seed in seeds]
    print(json.dumps({"precision": precision, "mean": statistics.mean(losses), "sd": statistics.stdev(losses) if len(losses) > 1 else 0}))
print(json.dumps({"ratio_mean": statistics.mean(ratios), "ratio_sd": statistics.stdev(ratios) if len(ratios) > 1 else 0}))
END
