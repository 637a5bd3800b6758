#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

namespace detail {
class Construction;
}

/// When a recorded construction takes its numbers from the default CPU generator.
enum class Drawing {
  kAtOnce,  ///< the generator is left as eager construction would leave it, at half a nanosecond for each draw
  kAtMaterialisation  ///< the generator is not touched: to plan a model, or for rebase() to say where to draw from
};

/// The construction of a module as a recording: its parameters and buffers are phantoms until somebody asks for their
/// data.
///
/// Values are those of eager construction from the same state of the CPU generator, bit by bit, whichever tensors are
/// materialised and in whatever order. As long as the record lives, operators on its phantoms are recorded too, as
/// in `model->apply(init)`; afterwards they are errors, and so are, once something was materialised, those that have
/// data among their operands as well: nothing would come of them. Recording and materialising exclude one another
/// between threads, because they share torch's default generator.
class InitRecord {
 public:
  /// Runs `construct`, which makes and keeps the module.
  /// @throws CaptureError  reading data, explicit generators, and random operators whose number of draws depends on
  /// data
  [[nodiscard]] static InitRecord record(const std::function<void()>& construct, Drawing drawing = Drawing::kAtOnce);

  /// Puts data behind the handles, on the CPU; every other handle to the same tensors sees it. Tensors that are no
  /// phantoms are left alone. @throws InvalidArgument for a phantom that the recorded construction did not make
  void materialise(const std::vector<at::Tensor>& tensors);

  /// Elements [begin, end) of each of so many equal blocks of a phantom's memory: [blocks, end - begin], on the CPU;
  /// the phantom stays one. Nothing if its elements are not made one by one (by uniform_ or normal_ and arithmetic with
  /// numbers, as libtorch's layers do): materialise it then.
  /// @throws InvalidArgument for a phantom that the recorded construction did not make
  [[nodiscard]] std::optional<at::Tensor> part(const at::Tensor& phantom, std::int64_t blocks, std::int64_t begin,
                                               std::int64_t end);

  /// From now on the phantom has data from outside, as a checkpoint's, which need not be known yet: operators that are
  /// recorded later go on from it. @return the number of this expectation, from 0
  std::size_t expect_data(const at::Tensor& phantom);

  /// Whether the recording has changed the phantom since it expected these data, or given it other memory.
  [[nodiscard]] bool changed_since(std::size_t expected, const at::Tensor& phantom) const;

  /// The expectations whose data materialising these phantoms may read.
  [[nodiscard]] std::vector<std::size_t> expected_behind(const std::vector<at::Tensor>& phantoms) const;

  /// Brings the data, whole, on the CPU: before what reads them is materialised. An expectation that has none is passed
  /// over, as if it had not been there.
  void give(std::size_t expected, const at::Tensor& data);

  /// State of the default CPU generator when the construction began (at::Generator::get_state).
  [[nodiscard]] const at::Tensor& generator_state() const;

  /// As if construction had begun with this state: rank 0's. Operators after a manual_seed of their own keep it.
  /// @return the state that eager construction would have left
  at::Tensor rebase(const at::Tensor& generator_state);

  /// Frees the generator's states, five kilobytes for each random operator. Whatever draws and is materialised later
  /// costs half a nanosecond for each draw of the construction, once.
  void forget_states();

 private:
  explicit InitRecord(std::shared_ptr<detail::Construction> construction);

  std::shared_ptr<detail::Construction> construction_;
};

}  // namespace autopar
