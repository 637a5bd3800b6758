#include <autopar/io/config.hpp>

namespace autopar {

const std::vector<RanncAlias>& rannc_aliases() {
  static const std::vector<RanncAlias> table = {
      {"mem_margin", "memory_margin", "now memory_margin"},
      {"save_deployment", "save_plan", "now save_plan"},
      {"load_deployment", "load_plan", "now load_plan"},
      {"deployment_file", "plan_file", "now plan_file (JSON)"},
      {"min_pipeline", "min_microbatches", "now min_microbatches"},
      {"max_pipeline", "max_microbatches", "now max_microbatches"},
      {"pipeline_num", "microbatches", "now microbatches"},
      {"partition_num", "stages", "now stages"},
      {"replica_num", "replicas", "now replicas"},
      {"opt_param_factor", "optimizer_state_factor", "now optimizer_state_factor"},
      {"trace_events", "", "now trace_file"},
      {"event_trace_file", "trace_file", "now trace_file"},
      {"graph_profile_file", "profile_file", "now profile_file"},
      {"save_graph_profile", "", "now profile_file"},
      {"load_graph_profile", "",
       "has no effect: profiles are made again in milliseconds; cost_file keeps measured costs"},
      {"checkpointing", "", "now recompute"},
      {"checkpointing_no_last", "", "has no effect: recompute is chosen for each segment"},
      {"profiling", "", "now log_level = \"info\""},
      {"profiling_iter", "", "has no effect: with costs = \"profiled\" the median of a few runs counts"},
      {"dump_graph", "", "now graph_file"},
      {"dump_graph_prefix", "", "now graph_file"},
      {"validate_comm", "", "has no effect: every program is validated before its first step"},
      {"display_comm_value", "", "now log_level = \"warn,Executor=trace\""},
      {"consolidate_grads", "", "has no effect: gradients are always reduced in buckets"},
      {"auto_parallel", "", "has no effect: always on"},
      {"p2p_comm", "", "has no effect: always on"},
      {"min_partition_num", "", "has no effect: the search needs no block count"},
      {"max_partition_num", "", "has no effect: the search needs no block count"},
      {"do_uncoarsening", "", "has no effect: cuts are always refined"},
      {"coarsen_by_time", "", "has no effect: coarsening looks at time and memory"},
      {"verify_recomp", "verify_capture", "now verify_capture"},
      {"offload_params", "", "now offload = \"optimizer\""},
      {"skip_grad_scaling", "", "has no effect: sums and means are exact for any split"},
  };
  return table;
}

}  // namespace autopar
