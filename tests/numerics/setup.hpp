#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/cost/profiled.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

namespace numerics {

enum class Optimizer { kSgd, kAdamW, kRmsProp, kAdagrad, kLars, kMuon };

/// One way to run a model.
struct Setup {
  autopar::Options options;
  std::vector<std::vector<std::int64_t>> local;  ///< [step][rank] samples; its size is the number of optimizer steps
  Optimizer optimizer = Optimizer::kSgd;
  int accumulate = 1;            ///< calls for each step; all but the last under no_sync
  double clip_norm = 0;          ///< p of a gradient clipping to 0.5; 0 = none
  int tensor = 1;                ///< ranks that run each rank's part of the plan together
  int chunks = 0;                ///< stages of each position; 0 = one, as the planner chooses them
  bool synthesise = false;       ///< orders made for the stages of the options' schedule, in place of its own
  bool some_recomputed = false;  ///< of what the options recompute, every second segment alone

  std::string describe() const {
    std::ostringstream out;
    out << options.stages << " stages, replicas";
    for (const int r : options.replicas) out << ' ' << r;
    if (tensor > 1) out << ", " << tensor << " tensor shards each";
    out << ", " << options.microbatches << " micro-batches, " << autopar::option_text(options.schedule);
    if (chunks > 0) out << (synthesise ? ", synthesised" : "") << ", stages in " << chunks << " chunks";
    out << ", samples";
    for (const auto& step : local) {
      out << " [";
      for (const auto n : step) out << n << ' ';
      out << ']';
    }
    constexpr const char* kNames[] = {", sgd", ", adamw", ", rmsprop", ", adagrad", ", lars", ", muon and adamw"};
    out << ", accumulate " << accumulate << ", clip " << clip_norm << kNames[static_cast<int>(optimizer)] << ", zero "
        << options.zero << ", recompute " << (some_recomputed ? "half of " : "")
        << autopar::option_text(options.recompute) << ", precision " << autopar::option_text(options.precision)
        << ", reduce_dtype " << autopar::option_text(options.reduce_dtype);
    return out.str();
  }
};

/// The planner's plan; several stages a rank, or backwards in parts, where a setup wants them: on fewer positions where
/// the model has not so many operators that may be separated.
autopar::Plan plan_of(const Setup& setup, const autopar::ModelProfile& profile, const autopar::ProfiledCost& costs,
                      const autopar::Cluster& cluster, const autopar::PlanRequest& request);

}  // namespace numerics
