#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/plan/options.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/profile.hpp"
#include "torch/passes/pass_manager.hpp"

namespace autopar::planning {

/// The model's forward in one mode for one argument signature, before anything is divided.
struct ModelProgram {
  OpGraph captured;                           ///< as the forward ran: what later captures are compared with
  OpGraph graph;                              ///< `captured` after all passes: what is planned and run
  std::optional<passes::ProgramAfter> shown;  ///< after `Options::graph_after`
  algebra::BatchSemantics plan;
};

/// How the algebra treats programs under these options.
[[nodiscard]] AlgebraOptions algebra_options(const Options& options);

/// The programs of one model that a plan is made for: the one that it divides, and programs in other modes, which must
/// run on the same placement.
struct ModelPrograms {
  ModelProgram* planned = nullptr;
  std::vector<ModelProgram*> others;
  bool recorded = false;                 ///< whether steps of `planned` are recorded where they repeat
  std::vector<std::string> in_8_bits{};  ///< weights of layers whose products run in 8 bits

  /// Of `planned`, with atoms whose stages run the other modes as well.
  /// @param device   that runs it
  /// @param singles  how tensor shards cut linear layers that are no part of a pair
  [[nodiscard]] cost::GraphProfile profile(
      c10::DeviceType device, tensor_parallel::SingleLayers singles = tensor_parallel::SingleLayers::kByOutputs) const;
  /// Makes class heads compute their logits in chunks, in all programs.
  void chunk_logits(const AlgebraOptions& algebra);
};

}  // namespace autopar::planning
