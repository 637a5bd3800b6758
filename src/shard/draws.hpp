#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <autopar/shard/group.hpp>

namespace autopar::detail {

/// Random numbers that are the same on all members of a group: drawn from a generator that stands where the first
/// rank's default generator does. At its end, default generators that stood there, too, go on behind what was drawn.
/// Made collectively.
class SharedDraws {
 public:
  explicit SharedDraws(const Group& group);
  SharedDraws(const SharedDraws&) = delete;
  SharedDraws& operator=(const SharedDraws&) = delete;
  ~SharedDraws();

  [[nodiscard]] const at::Generator& generator() const { return generator_; }

 private:
  at::Generator generator_;
  bool follows_ = false;  ///< the default generator
};

/// Fills a tensor, of the blocks that a whole one is drawn in, in place.
using FillBlock = std::function<void(at::Tensor& block, const at::Generator& generator)>;

/// `length` from `begin` along `dim` of what `fill` would make of a whole matrix, which is never there: it is drawn in
/// blocks of rows, whose numbers are those of one draw.
[[nodiscard]] at::Tensor slice_of_draw(std::int64_t rows, std::int64_t columns, int dim, std::int64_t begin,
                                       std::int64_t length, const SharedDraws& draws, const FillBlock& fill);

}  // namespace autopar::detail
