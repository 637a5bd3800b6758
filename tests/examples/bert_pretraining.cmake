# Runs bert_pretraining (PROGRAM) on data that make_pretraining_data makes of Debian's licences: the loss curve of one process is
# that of 4 ranks under the planner's choice and two forced plans, and goes on from a checkpoint; weights come back from files.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")
cmake_path(GET PROGRAM PARENT_PATH programs)

run(output "${programs}/make_pretraining_data" /usr/share/common-licenses --format prose --vocab-size 800 --out data
  --seq-length 32 --max-predictions 5 --duplicates 1 --shard-rows 1000 --validation-share 0.2)
if(NOT output MATCHES "training\\.\\.\\. [0-9]+ instances of [0-9]+ documents in [2-9] shards")
  message(FATAL_ERROR "make_pretraining_data says\n${output}")
endif()
file(WRITE "${WORK}/bert.json" [[
{"vocab_size": 800, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
 "max_position_embeddings": 32, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
 "megatron_residual_connection": true, "scale_query_key": true, "deep_weight_init": true}
]])

# ranks(<number> <argument>...): sets `output`.
macro(ranks number)
  run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" ${number} "${PROGRAM}" ${ARGN})
endmacro()
set(curve --data data --config bert.json --fp64 --steps 20 --batch 16 --accumulate 2 --lr 5e-3 --warmup 5 --log-every 1
  --save-every 10 --validation-samples 50)
run(output "${PROGRAM}" ${curve} --out one)
ranks(4 ${curve} --out chosen)
set(ENV{AUTOPAR_SCHEDULE} 1f1b)
ranks(4 ${curve} --out stages --stages 2 --replicas 2,2)
unset(ENV{AUTOPAR_SCHEDULE})
if(NOT output MATCHES "plan: 2 stages x 2 replicas")
  message(FATAL_ERROR "the forced plan was not used:\n${output}")
endif()
ranks(4 ${curve} --out shards --tensor-parallel 2 --stages 1 --zero 1)
if(NOT output MATCHES "plan: 1 stage x 2 replicas x 2 shards.*ZeRO 1")
  message(FATAL_ERROR "the forced plan was not used:\n${output}")
endif()
file(COPY "${WORK}/one/" DESTINATION "${WORK}/resumed")
file(REMOVE_RECURSE "${WORK}/resumed/step-00000020")
ranks(2 --resume --out resumed --export weights.safetensors)

# New runs from what there is: one step each.
set(first --data data --config bert.json --steps 1 --batch 16 --log-every 1)
run(output "${PROGRAM}" ${first} --optimizer adamw --load-weights weights.safetensors --out loaded)
run(output "${PROGRAM}" ${first} --fp64 --phase2 --init-from one/step-00000020 --out phase2)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
import json
def losses(run, key='loss'):
    return [line[key] for line in map(json.loads, open(run + '/metrics.jsonl')) if key in line]
one = losses('one')
assert len(one) == 20 and one[-1] < one[0], one
for run in ('chosen', 'stages', 'shards', 'resumed'):
    other = losses(run)
    assert len(other) == 20, (run, len(other))
    worst = max(abs(a - b) for a, b in zip(one, other))
    assert worst <= 1e-9, (run, worst)
    for key in ('validation_loss', 'validation_mlm_accuracy', 'validation_nsp_accuracy'):
        worst = max(abs(a - b) for a, b in zip(losses('one', key), losses(run, key)))
        assert worst <= 1e-9, (run, key, worst)
a, b = losses('loaded')[0], losses('phase2')[0]
assert abs(a - b) <= 1e-5 and a < one[0], (a, b)
")
run(output "${Python3_EXECUTABLE}" compare.py)

# refused(<pattern> <argument>...)
function(refused pattern)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${WORK}"
    OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE code)
  if(code EQUAL 0 OR NOT error MATCHES "${pattern}")
    message(FATAL_ERROR "'${ARGN}' ended with ${code}, not with '${pattern}':\n${output}${error}")
  endif()
endfunction()
refused("--data is missing" --steps 1)
refused("--phase2 goes on from a checkpoint" --data data --phase2)
file(WRITE "${WORK}/few_words.json" [[{"vocab_size": 100, "hidden_size": 24}]])
refused("dataset 'input_ids' has the value [0-9]+ in row" --data data --config few_words.json)

run(output "${PROGRAM}" --plan-only --config bert.json --seq-length 32 --cluster "${SOURCE}/examples/clusters/v100-32x8.toml")
if(NOT output MATCHES "8 ranks of V100-32, batch 64")
  message(FATAL_ERROR "no plan in\n${output}")
endif()
