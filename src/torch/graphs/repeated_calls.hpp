#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "torch/steps/step_call.hpp"

namespace autopar::graphs {

/// Which calls of a model repeat, so that recording their work pays (DeviceRecording). One recording at a time: it
/// keeps the memory of a step.
///
///   eager, eager, warmup, capture, replay, replay, …      calls of one program with one layout of samples
///
/// A warmup call runs on the stream that is recorded next, where libraries then have what they take once a
/// stream.
class RepeatedCalls {
 public:
  /// How a call of `program` is to run.
  /// @param samples  of each rank
  [[nodiscard]] steps::CudaGraphPhase next(const std::shared_ptr<const void>& program,
                                           const std::vector<std::int64_t>& samples);
  /// The latest call was recorded, others are not replayed from now on.
  void recorded();
  /// Calls like the latest run from now on.
  void refuse();
  /// What was recorded is gone, and its calls run from now on.
  void give_up();
  /// What was recorded holds no more, and calls are counted anew.
  void forget();

 private:
  struct Call {
    std::weak_ptr<const void> program;
    std::vector<std::int64_t> samples;

    [[nodiscard]] bool is(const std::shared_ptr<const void>& other, const std::vector<std::int64_t>& theirs) const {
      return program.lock() == other && samples == theirs;
    }
  };

  static constexpr int kRunsBefore = 2;
  static constexpr int kMostRecordings = 8;  ///< of a model whose parameters move ever again it is given up

  Call latest_, recorded_, refused_;
  int calls_ = 0;  ///< like the latest, in a row, since one was replayed
  int recordings_ = 0;
};

}  // namespace autopar::graphs
