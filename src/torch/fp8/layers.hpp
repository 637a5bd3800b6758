#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "torch/fused/fp8.hpp"

namespace autopar::fp8 {

class Layers;

/// The scale of a weight in the next training call, for what writes the weight before it: its memory stays the same,
/// and remains when the layers are gone.
struct NextScale {
  fused::Fp8Scale scale;
  std::shared_ptr<const std::int64_t> made;  ///< how often scales were made; another number: maybe another scale
};

/// A linear layer whose products run in 8 bits.
struct Layer {
  std::string weight;  ///< the parameter's name
  const Layers* all;
  std::int64_t first;              ///< of its operands
  bool is_ready = false;           ///< there are scales; until then products run in bf16
  bool has_seen_gradient = false;  ///< a backward has told of a gradient

  /// Of the call under way. What is taken stays as it is in later calls, except for `most`.
  [[nodiscard]] fused::Fp8Scale x() const;
  [[nodiscard]] fused::Fp8Scale of_weight() const;
  [[nodiscard]] fused::Fp8Scale gradient() const;
  [[nodiscard]] NextScale next_of_weight() const;
};

/// The largest magnitudes of a layer's operands in its latest calls, oldest first, 0: none. For checkpoints.
struct History {
  std::vector<float> x, of_weight, gradient;

  friend bool operator==(const History&, const History&) = default;
};

/// Delayed scales of 8-bit products: each is the largest power of two by which the largest magnitude of the last 16
/// training calls still fits the format. The maximum over micro-batches, replicas and tensor shards counts: all ranks
/// have the same scales. On a device nothing waits for the host, and a CUDA graph may record it.
/// @source NVIDIA Transformer Engine, "FP8 delayed scaling"; Micikevicius et al., FP8 Formats for Deep Learning,
/// section 3
class Layers {
 public:
  static constexpr std::int64_t kHistory = 16;

  /// @param weights  names of the layers' weights, the same on all ranks
  void start(const std::vector<std::string>& weights, c10::Device device);
  [[nodiscard]] bool empty() const { return layers_.empty(); }
  /// Of the call under way.
  [[nodiscard]] fused::Fp8Scale scale(std::int64_t operand) const;
  [[nodiscard]] NextScale next_scale(std::int64_t operand) const;
  /// Null: the layer runs in 16 bits. Valid as long as this.
  [[nodiscard]] Layer* find(const std::string& weight);

  /// By layer: whether it has scales.
  [[nodiscard]] std::vector<bool> ready() const;
  /// Whether all have. Until then ranks exchange before each `begin_call` whose gradients they have seen, so that all
  /// have scales from the same call on: gathers send the same bytes.
  [[nodiscard]] bool all_ready() const;
  /// By layer: not 0 if a backward of this rank has told of its gradient.
  [[nodiscard]] std::vector<std::byte> seen_gradients() const;
  /// @param seen  `seen_gradients` of a rank
  void add_seen_gradients(std::span<const std::byte> seen);

  /// Before the forward of a training call: scales from what ranks agreed on.
  void begin_call();
  /// After its backward: what this rank has seen, for `agree`: [ranks, operands] in f64, zero in the rows of others.
  [[nodiscard]] at::Tensor take_seen(std::size_t rank, std::size_t ranks);
  /// Makes the scales of the next call. @param seen  the sum of all ranks' `take_seen`
  void agree(const at::Tensor& seen);
  /// A CUDA graph with an `agree` ran.
  void note_agreed() { ++*made_; }

  /// By name of the weight, of layers of all ranks that have told of a gradient. Waits for the device.
  [[nodiscard]] std::map<std::string, History> histories() const;
  /// Layers that are not in it have no scales until the next training call. Before `start` they wait for it.
  void set_histories(const std::map<std::string, History>& histories);
  /// Operands that were not finite in some call so far. Waits for the device.
  [[nodiscard]] std::int64_t not_finite() const;

 private:
  /// [operands] and [operands, 4], three a layer: x, weight, gradient.
  struct Scales {
    at::Tensor factors, units;
  };
  [[nodiscard]] fused::Fp8Scale scale_in(const Scales& scales, std::int64_t operand) const;
  /// The history with the call that ranks have agreed on.
  [[nodiscard]] at::Tensor with_agreed() const;
  /// Makes the scales of the next call from its history.
  void find_scales();

  std::map<std::string, History> waiting_;  ///< given before `start`
  std::deque<Layer> layers_;
  std::map<std::string, Layer*> by_weight_;
  Scales of_call_;  ///< new ones in each call
  Scales next_;
  at::Tensor seen_, agreed_;  ///< [operands]
  at::Tensor largest_;        ///< [operands]: of the format
  at::Tensor history_;        ///< [kHistory, operands], the newest last; 0: none
  at::Tensor next_history_;   ///< as it is when the next call has begun
  std::shared_ptr<std::int64_t> made_ = std::make_shared<std::int64_t>(0);  ///< how often `next_` was
  at::Tensor not_finite_;                                                   ///< [operands], counts
};

}  // namespace autopar::fp8
