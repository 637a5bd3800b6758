#include "torch/engine/message.hpp"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <autopar/core/assert.hpp>

#include "shard/tensor_buffer.hpp"

namespace autopar::engine {

namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t bytes_of(const ir::TensorForm& form) {
  return c10::multiply_integers(form.sizes) * static_cast<std::int64_t>(c10::elementSize(form.dtype));
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor make_row(std::int64_t bytes, c10::Device device) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

at::Tensor region(const at::Tensor& row, std::int64_t offset, const ir::TensorForm& form) {
  const auto flat = row.narrow(0, offset, bytes_of(form)).view(form.dtype);
  return form.strides.empty() ? flat.view(form.sizes) : flat.as_strided(form.sizes, form.strides);
}

std::vector<std::int64_t> split_sizes(const at::Tensor& tensor, const BatchType& type, std::int64_t samples) {
  auto sizes = tensor.sizes().vec();
  AUTOPAR_ASSERT(sizes[static_cast<std::size_t>(type.dim)] == type.outer * samples * type.inner,
                 "a batched tensor is not of its captured size");
  sizes[static_cast<std::size_t>(type.dim)] = type.outer;
  sizes.insert(sizes.begin() + type.dim + 1, {samples, type.inner});
  return sizes;
}

}  // namespace

at::Tensor samples_of(const at::Tensor& tensor, const BatchType& type, std::int64_t samples, Interval part) {
  if (part.begin == 0 && part.end == samples) return tensor;
  if (type.outer == 1) return tensor.narrow(type.dim, part.begin * type.inner, part.size() * type.inner);
  auto sizes = tensor.sizes().vec();
  sizes[static_cast<std::size_t>(type.dim)] = type.outer * part.size() * type.inner;
  return tensor.reshape(split_sizes(tensor, type, samples))
      .narrow(type.dim + 1, part.begin, part.size())
      .reshape(sizes);
}

void put_samples(at::Tensor& whole, const BatchType& type, std::int64_t samples, Interval part, const at::Tensor& piece,
                 Into mode) {
  auto target = whole.view(split_sizes(whole, type, samples)).narrow(type.dim + 1, part.begin, part.size());
  const auto source = piece.reshape(split_sizes(piece, type, part.size()));
  if (mode == Into::kAdd) {
    target.add_(source);
  } else {
    target.copy_(source);
  }
}

Buffer pack_tensors(const std::vector<at::Tensor>& tensors, const std::vector<ir::TensorForm>& forms,
                    c10::Device device) {
  const at::NoGradGuard no_grad;
  if (tensors.size() == 1) {
    // A flat view works for any strides of dims of size one, which a view as bytes refuses.
    const auto dense = ir::in_form(tensors[0].detach().resolve_conj().resolve_neg(), forms[0]);
    return buffer_of(dense.as_strided({dense.numel()}, {1}).view(at::kByte));
  }
  std::int64_t bytes = 0;
  for (const auto& form : forms) bytes += aligned(bytes_of(form));
  const auto row = make_row(bytes, device);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    region(row, offset, forms[i]).copy_(tensors[i]);
    offset += aligned(bytes_of(forms[i]));
  }
  return buffer_of(row);
}

Buffer make_receive_buffer(const std::vector<ir::TensorForm>& forms, c10::Device device) {
  if (forms.size() == 1) return buffer_of(make_row(bytes_of(forms[0]), device));
  std::int64_t bytes = 0;
  for (const auto& form : forms) bytes += aligned(bytes_of(form));
  return buffer_of(make_row(bytes, device));
}

std::vector<at::Tensor> unpack_tensors(const Buffer& buffer, const std::vector<ir::TensorForm>& forms) {
  const auto& row = *static_cast<const at::Tensor*>(buffer.owner.get());
  std::vector<at::Tensor> tensors;
  tensors.reserve(forms.size());
  std::int64_t offset = 0;
  for (const auto& form : forms) {
    tensors.push_back(region(row, offset, form));
    offset += aligned(bytes_of(form));
  }
  return tensors;
}

Buffer hand_over(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = tensor.detach().resolve_conj().resolve_neg();
  return {nullptr, 0, std::make_shared<std::vector<at::Tensor>>(std::move(tensors))};
}

std::vector<at::Tensor> handed_over(const Buffer& buffer) {
  return std::move(*static_cast<std::vector<at::Tensor>*>(buffer.owner.get()));
}

void Assembly::put(const at::Tensor& piece, const BatchType& type, const ir::TensorForm& whole, std::int64_t samples,
                   Interval part, Into mode) {
  if (part.begin == 0 && part.end == samples) {
    add(piece);
    return;
  }
  if (!owned_) {
    auto fresh = zeros_of(whole, piece.device());
    if (tensor_.defined()) fresh.add_(tensor_);
    tensor_ = std::move(fresh);
    owned_ = true;
  }
  put_samples(tensor_, type, samples, part, piece, mode);
}

void Assembly::add(const at::Tensor& addend) {
  if (!tensor_.defined()) {
    tensor_ = addend;
    return;
  }
  if (owned_) {
    tensor_.add_(addend);
  } else {
    tensor_ = tensor_.add(addend);
    owned_ = true;
  }
}

at::Tensor Assembly::take() {
  owned_ = false;
  return std::exchange(tensor_, at::Tensor());
}

}  // namespace autopar::engine
