#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/core/error.hpp>
#include <autopar/plan/model/bucket_choice.hpp>
#include <autopar/plan/model/reduce_choice.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

[[noreturn]] inline void refuse(const std::string& what) { throw InvalidArgument(what); }
inline void refuse_if(bool contradicts, const std::string& what) {
  if (contradicts) refuse(what);
}

/// "stages = 4", as a message names an option.
template <class T>
[[nodiscard]] std::string setting(const std::string& key, const T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    return key + " = " + std::to_string(value);
  else
    return key + " = " + option_text(value);
}

[[nodiscard]] inline std::string listed(const std::vector<int>& values) {
  std::string out;
  for (const int value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return "{" + out + "}";
}

inline void check_not_run_yet(const Options& options, const Capabilities& runtime) {
  const auto check = [](bool runs, const std::string& asked, const std::string& instead) {
    refuse_if(!runs, asked + " is not run by this version" + instead);
  };
  const auto at_most = [](int most) { return ", which has at most " + std::to_string(most); };
  const std::string shards = setting("tensor_parallel", options.tensor_parallel), zero = setting("zero", options.zero);
  refuse_if(options.tensor_parallel < 0, shards + " is negative; use 0 or 1");
  check(options.tensor_parallel <= runtime.max_tensor_parallel, shards,
        at_most(runtime.max_tensor_parallel) + "; leave it at 0");
  refuse_if(options.zero < -1 || options.zero > 3, zero + " is not a level; use -1 or 0");
  check(options.zero <= runtime.max_zero, zero, at_most(runtime.max_zero) + "; leave it at -1");
  check(options.recompute.when() != Recompute::kAlways || runtime.recompute, setting("recompute", options.recompute),
        "; use 'auto' or 'none'");
  check(options.offload != Offload::kOptimizer || runtime.offload, setting("offload", options.offload),
        "; use 'auto' or 'none'");
  check(options.precision == Precision::kModule || runtime.precision, setting("precision", options.precision),
        "; use 'module'");
  check(options.reduce_dtype != ReduceDtype::kBf16 || runtime.precision, setting("reduce_dtype", options.reduce_dtype),
        "; use 'auto' or 'fp32'");
}

[[nodiscard]] inline std::vector<ScheduleKind> allowed_schedules(const Options& options, const Capabilities& runtime) {
  const auto runs = [&](ScheduleKind kind) {
    return std::ranges::find(runtime.schedules, kind) != runtime.schedules.end();
  };
  auto all = kScheduleKinds;
  std::stable_partition(all.begin(), all.end(), [](ScheduleKind kind) { return kind == kDefaultSchedule; });
  std::vector<ScheduleKind> kinds;
  for (const ScheduleKind kind : all) {
    if (options.schedule.value_or(kind) == kind && runs(kind)) kinds.push_back(kind);
  }
  if (kinds.empty()) {
    std::string known = "'auto'";
    for (const ScheduleKind kind : runtime.schedules) known += ", '" + name_of(kind) + "'";
    refuse(setting("schedule", options.schedule) + " is not run by this runtime; use one of " + known);
  }
  return kinds;
}

/// The tensor degrees up to `most` that divide the world and that some region of the model admits.
[[nodiscard]] inline std::vector<int> possible_degrees(const std::vector<TensorRegion>& regions, int most, int world) {
  std::vector<int> degrees{1};
  for (int degree = 2; degree <= std::min(most, world); ++degree) {
    const bool admitted =
        std::ranges::any_of(regions, [&](const auto& region) { return region.follows < 0 && region.admits(degree); });
    if (world % degree == 0 && admitted) degrees.push_back(degree);
  }
  return degrees;
}

/// The least number of stages that options ask for.
[[nodiscard]] inline int least_stages(const Options& options) {
  const int listed = options.replicas.size() > 1 ? static_cast<int>(options.replicas.size()) : 1;
  return std::max(options.stages, listed);
}
/// The number of replicas that options ask for, over all stages.
[[nodiscard]] inline int asked_replicas(const Options& options) {
  const int same_for_all = options.replicas.size() == 1 ? std::max(options.stages, 1) : 1;
  return same_for_all * std::accumulate(options.replicas.begin(), options.replicas.end(), 0);
}

[[nodiscard]] inline std::vector<int> allowed_degrees(const Options& options, const Capabilities& runtime,
                                                      const Workload& work, int world) {
  const int asked = options.tensor_parallel;
  if (asked == 1) return {1};
  std::vector<int> degrees = possible_degrees(work.regions, runtime.max_tensor_parallel, world);
  if (asked == 0) {
    const int least = std::max(least_stages(options), asked_replicas(options));
    std::erase_if(degrees, [&](int degree) { return degree > 1 && least > world / degree; });
    return degrees;
  }
  if (std::ranges::find(degrees, asked) != degrees.end()) return {asked};
  const std::string shards = setting("tensor_parallel", asked);
  refuse_if(degrees.size() == 1 && work.regions.empty(),
            shards + ", but the model has nothing that tensor shards can compute together; use 1");
  const int nearest = *std::ranges::min_element(degrees, {}, [&](int degree) { return std::abs(degree - asked); });
  refuse(shards +
         (world % asked != 0 ? " does not divide the world of " + std::to_string(world) + " ranks"
                             : ", but no part of the model can be computed by so many shards together") +
         "; the nearest that can be is " + std::to_string(nearest));
}

[[nodiscard]] inline std::vector<int> allowed_zero(const Options& options, const Capabilities& runtime) {
  if (options.zero >= 0) return {options.zero};
  std::vector<int> levels(static_cast<std::size_t>(runtime.max_zero) + 1);
  std::iota(levels.begin(), levels.end(), 0);
  return levels;
}

/// A program computes its class heads in one way, which a plan cannot change.
inline void check_class_heads(const Options& options, const Workload& work) {
  refuse_if(
      options.class_head == ClassHead::kChunked && !work.chunked_heads,
      "class_head = chunked, but no linear layer of this program is followed by a cross entropy of class indices that "
      "alone reads its result, or the profile was written without that setting; leave it at 'auto', or write the "
      "profile with it");
  refuse_if(options.class_head == ClassHead::kWhole && work.chunked_heads,
            "class_head = whole, but the profile is of the program with logits in chunks; write it with that setting");
}

/// Whether sequence parallelism is used. Both values, if the user leaves it open and some region follows another.
[[nodiscard]] inline std::vector<bool> allowed_sequences(const Options& options, const Workload& work) {
  const bool any = std::ranges::any_of(work.regions, [](const TensorRegion& region) { return region.follows >= 0; });
  if (options.sequence_parallel == Switch::kOff || !any) return {false};
  return options.sequence_parallel == Switch::kOn ? std::vector{true} : std::vector{false, true};
}

/// What the margin leaves.
[[nodiscard]] inline Bytes without_margin(Bytes memory, const Options& options) {
  return Bytes(
      static_cast<std::int64_t>(std::floor(static_cast<double>(memory.value()) * (1 - options.memory_margin))));
}

/// Sets where the optimizer may be. Without separate host memory offloading gains nothing, so it must be asked for.
inline void apply_offload(const Options& options, const Capabilities& runtime, const Workload& work,
                          const Cluster& cluster, Constraints& constraints) {
  if (cluster.host) {
    refuse_if(cluster.host->memory <= Bytes(0), "the host memory of cluster '" + cluster.name + "' is " +
                                                    std::to_string(cluster.host->memory.value()) +
                                                    " bytes a device; state it, or leave the host out");
    constraints.host_memory = without_margin(cluster.host->memory, options);
  }
  const bool asked = options.offload == Offload::kOptimizer;
  refuse_if(asked && !work.offloaded_update,
            "offload = optimizer, but the cost model does not say what an update on the host takes; use 'none'");
  if (asked) constraints.offloads = {Offload::kOptimizer};
  const bool may = !options.offload && runtime.offload && work.offloaded_update;
  if (may && cluster.host) constraints.offloads.push_back(Offload::kOptimizer);
}

/// What snapshots take of a rank's share of host memory, in mean over the ranks: two generations of parameters and
/// optimizer state, and as much again of another host's where there are several.
[[nodiscard]] inline Bytes snapshot_memory(const Options& options, const Workload& work, const Cluster& cluster,
                                           int world) {
  constexpr double kGenerations = 2;
  double bytes = 0;
  for (const ParameterProfile& parameter : work.parameters) {
    const double state = parameter.trainable ? options.optimizer_state_factor : 0;
    bytes += static_cast<double>(parameter.bytes.value()) * (1 + state);
  }
  const auto& levels = cluster.levels;  // the innermost is a host, unless each host has one rank
  const bool are_several = !levels.empty() && (world > levels.front().span || levels.front().name == "network");
  return Bytes(static_cast<std::int64_t>(std::ceil(kGenerations * (are_several ? 2 : 1) * bytes / world)));
}

/// Takes them off the memory that they are in: that of hosts, or of devices that are CPUs. Where they do not fit, the
/// run goes on without them.
inline void apply_snapshots(const Options& options, const Workload& work, const Cluster& cluster,
                            Constraints& constraints) {
  if (options.snapshot_every <= 0) return;
  const Bytes taken = snapshot_memory(options, work, cluster, constraints.ranks());
  Bytes& memory = constraints.host_memory ? *constraints.host_memory : constraints.memory;
  const bool fits = taken < memory;
  if (fits) memory -= taken;
  constraints.notes.push_back(setting("snapshot_every", options.snapshot_every) + ": snapshots take " +
                              std::to_string(taken.value()) + " bytes of host memory a rank" +
                              (fits ? "" : ", which are not there, so that there will be none"));
}

/// Sets what is recomputed.
inline void apply_recompute(const Options& options, const Capabilities& runtime, const Workload& work,
                            Constraints& constraints) {
  constraints.recompute = runtime.recompute ? options.recompute.when() : Recompute::kNever;
  for (const std::string& module : options.recompute.modules()) {
    const auto inside = [&](NodeId node) { return is_within(work.graph[node].path, module); };
    refuse_if(std::ranges::none_of(work.graph.nodes(), inside),
              setting("recompute", options.recompute) + " names '" + module +
                  "', but no operator of the model belongs to such a module; use 'auto', 'none', 'full' or modules' "
                  "names");
  }
  constraints.recomputed_modules = options.recompute.modules();
}

inline void check_shape(const Options& options, int ranks, std::size_t nodes) {
  const int shards = std::max(1, options.tensor_parallel), world = ranks / shards;
  const std::string of_shards = shards == 1 ? "" : " of " + setting("tensor_parallel", shards);
  const std::string stages = setting("stages", options.stages), replicas = "replicas = " + listed(options.replicas);
  const std::string of_ranks =
      " ranks, but the world has " + std::to_string(ranks) + "; start more ranks or ask for fewer ";
  refuse_if(options.stages < 0, stages + " is negative; 0 lets the planner choose");
  refuse_if(std::ranges::any_of(options.replicas, [](int each) { return each < 1; }),
            replicas + ": every stage needs at least one replica");
  const std::size_t listed_stages = options.replicas.size();
  refuse_if(options.stages > 0 && listed_stages > 1 && listed_stages != std::size_t(options.stages),
            stages + " contradicts " + replicas + ", which names " + std::to_string(listed_stages) +
                " stages; give one number a stage, or a single one for all of them");
  const int used = asked_replicas(options);
  refuse_if(used > world, replicas + (listed_stages == 1 && options.stages > 1 ? " for each of " + stages : "") +
                              of_shards + " need " + std::to_string(used * shards) + of_ranks + "replicas");
  const int least = least_stages(options);
  const std::string asked = setting("stages", least);
  refuse_if(least > world, asked + of_shards + " need " + (shards == 1 ? "as many" : std::to_string(least * shards)) +
                               of_ranks + "stages");
  refuse_if(std::size_t(least) > nodes, asked + ", but the model has only " + std::to_string(nodes) +
                                            " operators that can be separated; ask for fewer stages");
}

/// Numbers of micro-batches to try: 1, 2, 3, 4, 6, 8, 12, 16, 24, … within the limits, the limits themselves, and the
/// divisors of the largest local batch.
[[nodiscard]] inline std::vector<int> microbatch_candidates(int low, int high, std::int64_t largest_local) {
  std::vector<int> out{low, high};
  for (int m = low; m <= high; ++m) {
    if (largest_local % m == 0) out.push_back(m);
  }
  for (int power = 1; power > 0 && power <= high; power *= 2) {
    for (const int m : {power, power + power / 2}) {
      if (m >= low && m <= high) out.push_back(m);
    }
  }
  make_set(out);
  return out;
}

/// Numbers of micro-batches to try; none is above `largest_count` unless options ask for it.
[[nodiscard]] inline std::vector<int> allowed_microbatches(const Options& options, std::int64_t largest_count,
                                                           std::int64_t largest_local) {
  const std::string asked = setting("microbatches", options.microbatches);
  const std::string least = setting("min_microbatches", options.min_microbatches);
  const std::string most = setting("max_microbatches", options.max_microbatches);
  refuse_if(options.microbatches < 0, asked + " is negative");
  refuse_if(options.min_microbatches < 1, least + " is below 1");
  refuse_if(options.max_microbatches < options.min_microbatches, least + " is above " + most);
  if (options.microbatches > 0) {
    const Options defaults;
    const bool below = options.microbatches < options.min_microbatches;
    const bool above = options.microbatches > options.max_microbatches;
    refuse_if(below && options.min_microbatches != defaults.min_microbatches, asked + " is below " + least);
    refuse_if(above && options.max_microbatches != defaults.max_microbatches, asked + " is above " + most);
    return {options.microbatches};
  }
  const auto high =
      std::max<std::int64_t>(options.min_microbatches, std::min<std::int64_t>(options.max_microbatches, largest_count));
  return microbatch_candidates(options.min_microbatches, static_cast<int>(high), largest_local);
}

/// The most micro-batches that are tried: one for each sample of the batch, since more would be empty. With batch
/// statistics one for each sample of the largest local batch, as smaller slices change the statistics.
[[nodiscard]] inline std::int64_t most_microbatches(const Workload& work, const Constraints& constraints) {
  const auto is_statistic = [&](NodeId node) { return work.graph[node].batch_statistic; };
  return std::ranges::any_of(work.graph.nodes(), is_statistic) ? constraints.largest_local_batch() : constraints.batch;
}

/// Memory of one device, margin included.
[[nodiscard]] inline Bytes device_memory(const Options& options, const Cluster& cluster) {
  return options.device_memory > Bytes(0) ? options.device_memory : cluster.device.memory;
}
[[nodiscard]] inline Bytes usable_memory(const Options& options, const Cluster& cluster) {
  refuse_if(options.device_memory < Bytes(0),
            setting("device_memory", options.device_memory.value()) + " bytes is negative");
  refuse_if(!(options.memory_margin >= 0 && options.memory_margin < 1),
            setting("memory_margin", options.memory_margin) + " is not a share; use 0 <= memory_margin < 1");
  const Bytes whole = device_memory(options, cluster);
  refuse_if(whole <= Bytes(0), "the memory of device '" + cluster.device.name + "' is not known; set device_memory");
  return without_margin(whole, options);
}

/// Operators that need the whole batch at once allow one micro-batch only. Their stage has one replica, unless replicas
/// can add up what the operators need.
inline void apply_whole_batch(const Workload& work, const Options& options, Constraints& constraints) {
  bool noted = false;
  for (const NodeId node : work.graph.nodes()) {
    const WorkNode& unit = work.graph[node];
    if (!unit.whole_batch && unit.totals == Bytes(0)) continue;
    const std::string needs =
        unit.whole_batch ? "mixes the samples of a batch" : "takes sums over the whole batch (batch_norm = exact)";
    const std::string with = unit.whole_batch ? "one micro-batch and one replica" : "one micro-batch";
    const auto impossible = [&](const std::string& option) {
      throw CaptureError(
          unit.name, unit.path,
          needs + ", so it is exact only with " + with + ", but " + option + "; leave that to the planner");
    };
    if (constraints.microbatches.front() > 1) {
      impossible(options.microbatches > 1 ? setting("microbatches", options.microbatches)
                                          : setting("min_microbatches", options.min_microbatches));
    }
    const auto& replicas = constraints.replicas;
    const bool none_single = !replicas.empty() && std::find(replicas.begin(), replicas.end(), 1) == replicas.end();
    if (unit.whole_batch && (none_single || constraints.replicas_of_each > 1)) {
      impossible("replicas = " + listed(options.replicas) + " give no stage a single replica");
    }
    if (!noted) {
      constraints.notes.push_back(unit.name + (unit.path.empty() ? "" : " (near " + unit.path + ")") + " " + needs +
                                  ": " + with +
                                  (unit.whole_batch ? " for its stage" : ", and replicas wait for one another"));
    }
    noted = true;
  }
  if (noted) constraints.microbatches = {1};
}

}  // namespace detail

/// Checks a request against the work and the cluster.
/// @throws InvalidArgument if options contradict one another, the world, the work or the runtime, naming both values
/// @throws CaptureError if a forced number of micro-batches or replicas cannot run an operator that mixes samples
[[nodiscard]] inline Constraints resolve(const PlanRequest& request, const Workload& work, const Cluster& cluster) {
  const Options& options = request.options;
  Constraints out;
  detail::refuse_if(cluster.devices < 1,
                    "cluster '" + cluster.name + "' has " + std::to_string(cluster.devices) + " devices");
  out.world = request.world == 0 ? cluster.devices : request.world;
  const std::string world = "a world of " + std::to_string(out.world) + " ranks";
  detail::refuse_if(out.world < 1, world + "; at least 1 is needed");
  detail::refuse_if(out.world > cluster.devices, world + " does not fit cluster '" + cluster.name + "' with " +
                                                     std::to_string(cluster.devices) + " devices");
  detail::refuse_if(request.batch < 1,
                    "a batch of " + std::to_string(request.batch) + " samples; at least 1 is needed");
  out.batch = request.batch;
  detail::check_not_run_yet(options, request.runtime);
  out.tensor_degrees = detail::allowed_degrees(options, request.runtime, work, out.world);
  detail::check_shape(options, out.world, work.graph.node_count());
  const bool same_for_all = options.replicas.size() == 1;
  if (same_for_all && options.stages == 0)
    out.replicas_of_each = options.replicas.front();
  else
    out.replicas = same_for_all ? std::vector(std::size_t(options.stages), options.replicas.front()) : options.replicas;
  out.stages = std::max(options.stages, static_cast<int>(out.replicas.size()));
  out.schedules = detail::allowed_schedules(options, request.runtime);
  out.microbatches =
      detail::allowed_microbatches(options, detail::most_microbatches(work, out), out.largest_local_batch());
  out.memory = detail::usable_memory(options, cluster);
  detail::refuse_if(!(options.optimizer_state_factor >= 0 && options.optimizer_state_factor < 1e6),
                    detail::setting("optimizer_state_factor", options.optimizer_state_factor) +
                        " is not a size ratio; use 0 for plain SGD, 2 for Adam");
  out.optimizer_state_factor = options.optimizer_state_factor;
  // Backwards add to one sum that becomes `.grad`; a second copy exists only if there is a `.grad` already.
  out.gradient_copies = options.gradient_accumulation ? 2 : 1;
  if (!work.loss_mode) {
    if (!options.schedule) {
      // Without a mix of forwards and backwards, schedules differ by where stages lie.
      std::erase_if(out.schedules, [](ScheduleKind kind) {
        return kind != kForwardsFirst && traits_of(kind).layout != StageLayout::kLooped;
      });
    } else if (*options.schedule != kForwardsFirst) {
      out.notes.push_back(
          "results leave the call before its backwards start: " + detail::setting("schedule", options.schedule) +
          " orders the forwards among themselves, and the backwards; train_step(loss, inputs, targets), "
          "or a loss that forward returns, lets it mix them");
    }
  }
  out.budget = request.budget;
  out.buckets.reduce_dtype = chosen_reduce_dtype(options, cluster);
  out.buckets.size = request.buckets ? request.buckets->size : chosen_bucket_size(work, cluster, out);
  detail::refuse_if(!out.buckets.is_valid(),
                    "buckets of " + std::to_string(out.buckets.size.value()) + " bytes; use 1 byte to 1 TiB");
  detail::check_class_heads(options, work);
  out.sequences = detail::allowed_sequences(options, work);
  out.zero_levels = detail::allowed_zero(options, request.runtime);
  detail::apply_offload(options, request.runtime, work, cluster, out);
  detail::apply_snapshots(options, work, cluster, out);
  detail::apply_recompute(options, request.runtime, work, out);
  detail::apply_whole_batch(work, options, out);
  return out;
}

/// A contradiction between a request and itself, the world, the work or the runtime.
struct Contradiction {
  std::variant<InvalidArgument, CaptureError> error;

  [[noreturn]] void raise() const {
    std::visit([](const auto& each) { throw each; }, error);
    std::abort();  // not reached
  }
};

using Resolved = std::variant<Constraints, Contradiction>;

/// `resolve` with a contradiction as a value, for callers that go on with another request.
[[nodiscard]] inline Resolved try_resolve(const PlanRequest& request, const Workload& work, const Cluster& cluster) {
  try {
    return resolve(request, work, cluster);
  } catch (const InvalidArgument& error) {
    return Contradiction{error};
  } catch (const CaptureError& error) {
    return Contradiction{error};
  }
}

}  // namespace autopar
