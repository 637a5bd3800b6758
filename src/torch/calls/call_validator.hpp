#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/schedule/batch_split.hpp>

#include "torch/calls/call_arguments.hpp"
#include "torch/calls/handshake.hpp"
#include "torch/calls/late_failure.hpp"
#include "torch/calls/local_indices.hpp"
#include "torch/calls/progress.hpp"
#include "torch/calls/step_watches.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/planning/model_program.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::calls {

/// Gradients of this rank that are not in `.grad` yet.
class PendingGradients {
 public:
  PendingGradients() = default;
  PendingGradients(const PendingGradients&) = delete;
  PendingGradients& operator=(const PendingGradients&) = delete;
  virtual ~PendingGradients() = default;

  [[nodiscard]] virtual bool accumulating() const = 0;     ///< inside no_sync
  [[nodiscard]] virtual bool has_accumulated() const = 0;  ///< gradients that are not summed over ranks
  [[nodiscard]] virtual double loss_scale() const = 0;     ///< of the next call
};

/// What a rank knows of the program that a call runs.
struct KnownProgram {
  bool is_new = true;            ///< it was called a few times at most
  bool is_stale = false;         ///< it must be captured again
  bool members_changed = false;  ///< since it was last found to be what forward does
  std::size_t common_ends = 0;   ///< results that all ranks have, behind the arguments (OwnRegion)
  /// To a replay on this rank (graphs/obstacle.hpp); asked for when the watches hold nothing of the last step.
  std::function<std::uint8_t()> obstacles{};
};

/// A call that all ranks make alike.
struct AgreedCall {
  std::vector<CallHeader> headers;                                      ///< by rank
  BatchLayout layout;                                                   ///< without micro-batches
  std::int64_t batch = 0;                                               ///< samples of all ranks
  bool is_stale = false, members_changed = false, has_pending = false;  ///< on some rank
  std::uint8_t obstacles = 0;                                           ///< of some rank
};

/// Checks what the user asks before anything begins: arguments on this rank, then, in one all-gather, that all ranks
/// ask for the same. Where they do not, each of them throws, naming two ranks and both values.
///
///   const auto error = validator.inspect(flattened, arguments);
///   const auto agreed = validator.agree_on_call(arguments, key, known, error, /*deployed=*/true);
///   …
///   validator.agree(CallKind::kSave, folder);
class CallValidator {
 public:
  /// @param number  of the model among the World's models, from 1
  /// @pre what is referred to outlives this
  CallValidator(ranks::Ranks& ranks, torch::nn::Module& module, std::int32_t number, const Options& options,
                const parameters::ParameterStore& parameters, StepWatches& watches, const PendingGradients& gradients,
                const Progress& progress, LateFailure& late_failure);

  // ---- arguments

  /// Takes arguments apart. @return what is wrong with them, or null
  [[nodiscard]] std::exception_ptr inspect(const Flattened& flattened, CallArguments& arguments) const;
  /// What distinguishes programs: arguments, modes of modules, requires_grad, gradients, autocast. Memory formats come
  /// with `agree_on_call`.
  [[nodiscard]] std::string key_of(const CallArguments& arguments) const;

  // ---- handshake; all collective

  /// @throws InvalidArgument within a function of for_whole_parameters
  [[nodiscard]] CallHeader header(CallKind kind) const;
  std::vector<CallHeader> agree(const CallHeader& header, const std::string& details,
                                const std::exception_ptr& error = nullptr);
  std::vector<CallHeader> agree(CallKind kind, const std::string& details, const std::exception_ptr& error = nullptr) {
    return agree(header(kind), details, error);
  }
  /// Before forward. Arguments get the memory formats of all ranks, and local indices count in the global batch.
  [[nodiscard]] AgreedCall agree_on_call(CallArguments& arguments, const std::string& key, const KnownProgram& known,
                                         const std::exception_ptr& error, bool deployed);
  /// Before a preparation: compares less, since nothing runs.
  [[nodiscard]] AgreedCall agree_on_preparation(CallArguments& arguments, const std::string& key, bool is_stale,
                                                const std::exception_ptr& error);

  // ---- what ranks compare at the next call

  /// Autograd asked for the gradients of the model's own loss. @param factor  of these
  void note_loss_gradient(const at::Tensor& factor);
  void warn_of_local_indices(const AgreedCall& agreed, const CallArguments& arguments,
                             const planning::ModelProgram& program);

  /// While it lives, this rank runs a user's function that other ranks do not run: `header` throws.
  class Alone {
   public:
    explicit Alone(bool& flag) : flag_(flag) { flag_ = true; }
    ~Alone() { flag_ = false; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    bool& flag_;
  };
  [[nodiscard]] Alone alone() { return Alone(alone_); }

 private:
  [[nodiscard]] std::vector<CallWord> words_of(const CallArguments& arguments) const;
  [[nodiscard]] CallHeader header_of(CallKind kind, const CallArguments& arguments) const;
  [[nodiscard]] AgreedCall opened(std::vector<CallHeader> headers) const;
  void add_watched(CallHeader& header);
  [[nodiscard]] std::vector<CallHeader> exchanged(const CallHeader& mine, const std::string& details,
                                                  const std::exception_ptr& error,
                                                  const std::function<std::vector<CallWord>()>& words = {});
  void warn_of_unattached(const std::vector<CallHeader>& headers);

  ranks::Ranks& ranks_;
  torch::nn::Module& module_;
  std::vector<torch::nn::Module*> modules_;  ///< all, for their modes
  std::int32_t number_;
  const Options& options_;
  const parameters::ParameterStore& parameters_;
  StepWatches& watches_;
  const PendingGradients& gradients_;
  const Progress& progress_;
  LateFailure& late_failure_;
  LocalIndexWatch local_indices_;
  std::pair<std::int64_t, double> loss_gradients_{};  ///< since the last call: number, sum of factors
  bool alone_ = false;
  bool warned_of_unattached_ = false;
};

}  // namespace autopar::calls
