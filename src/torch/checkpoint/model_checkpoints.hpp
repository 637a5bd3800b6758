#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/torch/load_options.hpp>
#include <autopar/torch/saved_parts.hpp>

#include "torch/calls/call_validator.hpp"
#include "torch/calls/late_failure.hpp"
#include "torch/calls/progress.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/early_loads.hpp"
#include "torch/checkpoint/kept_values.hpp"
#include "torch/checkpoint/saver.hpp"
#include "torch/gradients/gradient_applier.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::checkpoint {

/// Gathers, saves and loads a model: its parameters and buffers, optimizers, progress and loss scale. Collective.
class ModelCheckpoints {
 public:
  struct Parts {
    ranks::WorldRanks& ranks;
    const parameters::ParameterStore& parameters;
    calls::StepWatches& watches;
    calls::CallValidator& validator;
    gradients::GradientApplier& gradients;
    fp8::Layers& fp8;
    calls::Progress& progress;
    calls::LateFailure& late_failure;
    InitRecord* init;  ///< null if parameters have values
  };

  /// @pre what is referred to outlives this
  explicit ModelCheckpoints(const Parts& parts) : parts_(parts), saver_(parts.ranks, parts.late_failure) {}

  // ---- @pre the model is deployed
  [[nodiscard]] at::Tensor gather(const at::Tensor& handle);
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> gather_state();
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer);
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const SaveOptions& options);
  [[nodiscard]] SavedParts save_parts(const std::string& folder,
                                      const std::vector<torch::optim::Optimizer*>& optimizers,
                                      const AcceptParts& accept);
  /// See Saver::wait.
  void wait();

  void export_weights(const std::string& file, std::optional<c10::ScalarType> dtype);

  /// @param deployed   else what is read takes effect when the model is deployed
  /// @param plan_only  nobody asks for values
  LoadReport load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                  const LoadOptions& options, bool deployed, bool plan_only);

  /// What the user registers for save and load.
  [[nodiscard]] KeptValues& kept() { return kept_; }

  // ---- loads before deployment
  void attach(torch::optim::Optimizer& optimizer) const { early_.require_same_groups(optimizer); }
  /// Called when places are known and values are not made. @return whether there were loads
  bool bring();
  /// Called when values are made, if there were loads.
  void take_over();

 private:
  [[nodiscard]] std::vector<ShardedTensorMetadata> placed() const;
  [[nodiscard]] ShardedTensorMetadata placed(const parameters::ManagedTensor& tensor) const;
  /// Says of 8-bit products what was not finite since the last time.
  [[nodiscard]] CheckpointInfo info();
  void take_info(const std::optional<CheckpointInfo>& info);

  Parts parts_;
  Saver saver_;
  EarlyLoads early_;
  KeptValues kept_;
  std::int64_t not_finite_ = 0;  ///< operands of 8-bit products, of which the log has told
};

}  // namespace autopar::checkpoint
