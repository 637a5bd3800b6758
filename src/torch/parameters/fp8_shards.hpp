#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/fp8/layers.hpp"
#include "torch/parameters/shards.hpp"

namespace autopar::parameters {

/// What a unit gathers under ZeRO 3 once its fp8 layers have scales: their weights in E4M3, the rest in 16 bits. Each
/// rank casts its shard by the scale that all ranks have, so that weights get the bits of a cast of the 16-bit copy.
///
///   auto message = shards.pack();           // this rank's part is in place; gather it
///   shards.unpack(message);                 // parameter(place) has memory until `release`
///
/// A message has an equal part for each rank, as long as the longest one needs: its shard of each parameter, at a
/// multiple of 16 bytes.
class Fp8Shards {
 public:
  /// @param layers  by place of the unit; null: the parameter is gathered in 16 bits
  /// @pre the unit is of level 3 and gathers bf16
  Fp8Shards(std::shared_ptr<ShardMemory> memory, std::vector<fp8::Layer*> layers);

  /// Whether a message has at most two thirds of the bytes of a gather in 16 bits. Otherwise the 16-bit parameters lie
  /// so unevenly, or are so many, that unpacking takes memory that plans do not count.
  [[nodiscard]] bool gains() const;
  /// Whether all layers have scales.
  [[nodiscard]] bool is_ready() const;
  /// By place of the unit, with the parameter's sizes; the same tensor each time.
  [[nodiscard]] const at::Tensor& parameter(std::size_t place) const { return parameters_[place]; }

  /// A new message with this rank's part. Tells the layers how large weights are.
  [[nodiscard]] at::Tensor pack() const;
  void unpack(const at::Tensor& message);
  void release();

 private:
  /// A rank's elements of one parameter.
  struct Piece {
    std::size_t place;
    std::int64_t elements;
    std::int64_t in_message, in_whole;  ///< bytes before it, in the rank's part and in whole_
    std::int64_t bytes;                 ///< rounded up to a multiple of 16, which both have room for
  };
  /// Lays out the parameters one after the other. @return bytes
  std::int64_t lay_out_whole();
  void lay_out_message();
  [[nodiscard]] std::int64_t width(std::size_t place) const { return layers_[place] != nullptr ? 1 : kWide; }

  static constexpr std::int64_t kWide = 2;  ///< bytes of an element in 16 bits

  std::shared_ptr<ShardMemory> memory_;
  std::vector<fp8::Layer*> layers_;
  std::vector<std::int64_t> offsets_;       ///< by place, of whole_
  std::vector<std::vector<Piece>> pieces_;  ///< by position of the rank in the unit
  std::int64_t part_ = 0;                   ///< bytes of a rank's part of the message
  std::int64_t bytes_ = 0;                  ///< of whole_
  at::Tensor whole_;                        ///< bytes; without memory unless it is unpacked
  std::vector<at::Tensor> parameters_;      ///< by place, in whole_
};

}  // namespace autopar::parameters
