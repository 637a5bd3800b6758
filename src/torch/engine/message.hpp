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

/// The samples `part` of a tensor that holds `samples` of them. A view where the samples are adjacent.
/// @pre type.has_samples() and tensor.size(type.dim) == type.outer * samples * type.inner
[[nodiscard]] at::Tensor samples_of(const at::Tensor& tensor, const BatchType& type, std::int64_t samples,
                                    Interval part);

/// Writes (or adds) `piece` to the samples `part` of `whole`, which holds `samples` of them.
enum class Into : std::uint8_t { kWrite, kAdd };
void put_samples(at::Tensor& whole, const BatchType& type, std::int64_t samples, Interval part, const at::Tensor& piece,
                 Into mode);

/// Several tensors as one row of bytes, each aligned and laid out as its form says, in order. A row of one tensor is
/// that tensor's own memory where it is laid out so. The Buffer's owner is the row.
/// @pre sizes and types of the tensors are those of their forms
[[nodiscard]] Buffer pack_tensors(const std::vector<at::Tensor>& tensors, const std::vector<ir::TensorForm>& forms,
                                  c10::Device device);

/// Memory for a row of tensors of these forms.
[[nodiscard]] Buffer make_receive_buffer(const std::vector<ir::TensorForm>& forms, c10::Device device);

/// The tensors of a row; they share its memory. @pre `buffer` was made by pack_tensors or make_receive_buffer for these
/// forms
[[nodiscard]] std::vector<at::Tensor> unpack_tensors(const Buffer& buffer, const std::vector<ir::TensorForm>& forms);

/// The tensors of a message of a rank to itself: handed over as they are.
[[nodiscard]] Buffer hand_over(std::vector<at::Tensor> tensors);
[[nodiscard]] std::vector<at::Tensor> handed_over(const Buffer& buffer);

/// A value, or a gradient, that arrives in pieces or addends.
class Assembly {
 public:
  [[nodiscard]] bool empty() const { return !tensor_.defined(); }

  /// A piece of a batched value: kWrite for values, whose pieces are disjoint; kAdd for gradients, which may come from
  /// several readers. @param whole  form of the complete tensor, with `samples` samples
  void put(const at::Tensor& piece, const BatchType& type, const ir::TensorForm& whole, std::int64_t samples,
           Interval part, Into mode);
  /// A whole tensor, added to what there is.
  void add(const at::Tensor& addend);
  /// What arrived; undefined if nothing did. Leaves this empty.
  [[nodiscard]] at::Tensor take();

 private:
  at::Tensor tensor_;
  bool owned_ = false;  ///< nobody else reads tensor_'s memory
};

}  // namespace autopar::engine
