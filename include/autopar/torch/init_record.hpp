#pragma once

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
