#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

namespace trace {
class Construction;
}

/// When a recorded construction draws its random numbers from the default CPU generator.
enum class Drawing {
  kAtOnce,  ///< the generator is left as eager construction would leave it, at half a nanosecond for each draw
  kAtMaterialisation  ///< the generator is not touched: to plan a model, or to set the state later by rebase()
};

/// A recorded construction of a module: its parameters and buffers are fake tensors until their data is requested.
///
/// Values equal the values of eager construction from the same state of the CPU generator, bit by bit. They do not
/// depend on the choice of materialised tensors or on their order. While the record lives, operators on its fake
/// tensors are recorded too, as in `model->apply(init)`. Afterwards they are errors. Once a tensor was materialised,
/// operators that mix fake and real tensors are errors too, since they would have no effect. Recording and
/// materialising exclude one another between threads, because they share torch's default generator.
class InitRecord {
 public:
  /// Runs `construct`, which makes and keeps the module.
  /// @throws CaptureError if `construct` reads data, passes a generator, or runs a random operator whose number of
  /// draws depends on data
  [[nodiscard]] static InitRecord record(const std::function<void()>& construct, Drawing drawing = Drawing::kAtOnce);

  /// Gives the tensors their data, on the CPU; every other handle to the same tensors sees it. Real tensors are left
  /// alone. @throws InvalidArgument for a fake tensor that the recorded construction did not make
  void materialise(const std::vector<at::Tensor>& tensors);

  /// Elements [begin, end) of each of `blocks` equal blocks of a fake tensor's memory: [blocks, end - begin], on the
  /// CPU. The tensor stays fake. Nullopt if its elements are not made one by one: then materialise it. Libtorch's
  /// layers make them one by one, by uniform_ or normal_ and arithmetic with numbers.
  /// @throws InvalidArgument for a fake tensor that the recorded construction did not make
  [[nodiscard]] std::optional<at::Tensor> part(const at::Tensor& fake, std::int64_t blocks, std::int64_t begin,
                                               std::int64_t end);

  /// From now on the fake tensor has data from outside, for example from a checkpoint. The data need not be known yet.
  /// Operators that are recorded later continue from it. @return the number of this expectation, from 0
  std::size_t expect_data(const at::Tensor& fake);

  /// Whether the recording has changed the fake tensor since it expected these data, or given it other memory.
  [[nodiscard]] bool changed_since(std::size_t expected, const at::Tensor& fake) const;

  /// Expectations whose data may be read when these fake tensors are materialised.
  [[nodiscard]] std::vector<std::size_t> expected_behind(const std::vector<at::Tensor>& fakes) const;

  /// Gives the whole data, on the CPU, before the tensors that depend on it are materialised. An expectation without
  /// data is ignored.
  void give(std::size_t expected, const at::Tensor& data);

  /// State of the default CPU generator when the construction began (at::Generator::get_state).
  [[nodiscard]] const at::Tensor& generator_state() const;

  /// Continues as if construction had begun with this generator state, which is rank 0's. Operators after a manual_seed
  /// inside the construction keep that seed.
  /// @return the state that eager construction would have left
  at::Tensor rebase(const at::Tensor& generator_state);

  /// Frees the saved generator states, five kilobytes for each random operator. Materialising random tensors later
  /// costs half a nanosecond for each draw of the construction, once.
  void forget_states();

 private:
  explicit InitRecord(std::shared_ptr<trace::Construction> construction);

  std::shared_ptr<trace::Construction> construction_;
};

}  // namespace autopar
