#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

#include <autopar/capture/batch_type.hpp>
#include "capture/ir/tensor_form.hpp"

namespace autopar::engine {

/// The samples `part` of a tensor that holds `samples` samples. A view if these samples are adjacent.
/// @pre type.has_samples() and tensor.size(type.dim) == type.outer * samples * type.inner
[[nodiscard]] at::Tensor samples_of(const at::Tensor& tensor, const BatchType& type, std::int64_t samples,
                                    Interval part);

/// Writes or adds `piece` to the samples `part` of `whole`, which holds `samples` samples.
enum class Into : std::uint8_t { kWrite, kAdd };
void put_samples(at::Tensor& whole, const BatchType& type, std::int64_t samples, Interval part, const at::Tensor& piece,
                 Into mode);

/// Packs several tensors into one row of bytes, in order, each aligned and with the layout of its form. If one tensor
/// already has this layout, the row is its memory. The row is the Buffer's owner.
/// @pre sizes and types of the tensors are those of their forms
[[nodiscard]] Buffer pack_tensors(const std::vector<at::Tensor>& tensors, const std::vector<ir::TensorForm>& forms,
                                  c10::Device device);

/// Allocates memory for a row of tensors of these forms.
[[nodiscard]] Buffer make_receive_buffer(const std::vector<ir::TensorForm>& forms, c10::Device device);

/// The tensors of a row; they share its memory.
/// @pre `buffer` was made by pack_tensors or make_receive_buffer for these forms
[[nodiscard]] std::vector<at::Tensor> unpack_tensors(const Buffer& buffer, const std::vector<ir::TensorForm>& forms);

/// A message of a rank to itself, which holds the tensors without copying them.
[[nodiscard]] Buffer hand_over(std::vector<at::Tensor> tensors);
[[nodiscard]] std::vector<at::Tensor> handed_over(const Buffer& buffer);

/// Assembles a value or a gradient from pieces or addends.
class Assembly {
 public:
  [[nodiscard]] bool empty() const { return !tensor_.defined(); }

  /// Adds a piece of a batched value. Use kWrite for values, whose pieces are disjoint, and kAdd for gradients, which
  /// may come from several readers.
  /// @param whole  form of the complete tensor, with `samples` samples
  void put(const at::Tensor& piece, const BatchType& type, const ir::TensorForm& whole, std::int64_t samples,
           Interval part, Into mode);
  /// Adds a tensor of the whole value's size.
  void add(const at::Tensor& addend);
  /// The assembled tensor; undefined if nothing arrived. The object is empty afterwards.
  [[nodiscard]] at::Tensor take();

 private:
  at::Tensor tensor_;
  bool owned_ = false;  ///< tensor_'s memory has no other readers
};

}  // namespace autopar::engine
