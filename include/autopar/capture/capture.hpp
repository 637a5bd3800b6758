#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar {

namespace detail {

/// A captured program with flat arguments and results.
class FlatProgram {
 public:
  using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  FlatProgram(std::shared_ptr<torch::nn::Module> module, const Flattened& arguments, const Forward& forward);

  [[nodiscard]] const OpGraph& graph() const;
  [[nodiscard]] std::vector<at::Tensor> run(const Flattened& arguments) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace detail

/// The forward of a module as a straight-line program of operators, whose sizes are functions of the batch size. Copies
/// share the program and the module.
template <class Result>
class CapturedForward {
 public:
  CapturedForward(detail::FlatProgram program, Result prototype)
      : program_(std::move(program)), prototype_(std::move(prototype)) {}

  /// The operators as the forward ran them, without rewrites.
  [[nodiscard]] const OpGraph& graph() const { return program_.graph(); }

  /// Runs the captured operators on these arguments and the module's current parameters and buffers. Autograd records
  /// them as usual. Any batch size is allowed. From the same generator state, it draws the same random numbers as
  /// forward.
  /// @throws InvalidArgument if an argument differs from the captured one in more than the batch size
  /// @throws OperatorError naming the operator, where libtorch throws
  /// @cost the cost of the operators, plus O(operators). Not to be called by two threads at once
  template <class... Args>
  [[nodiscard]] Result replay(const Args&... args) const {
    return with_tensors(prototype_, program_.run(autopar::flatten(args...)));
  }

 private:
  detail::FlatProgram program_;
  Result prototype_;
};

/// Captures `net->forward(args...)` in the module's train/eval modes and the caller's grad mode. No operator runs on
/// data: parameters, gradients and generators stay as they are. Needs neither a World nor MPI. Dim 0 of each tensor
/// argument is the batch dimension, with the same size in all. A tensor without dims belongs to all samples. Constants
/// (numbers, enums, strings) become part of the program.
/// @throws CaptureError if forward reads data, has data-dependent sizes, or does something that is no function of the
///         batch size. The message names the operator and its module. docs/troubleshooting.md lists workarounds
/// @cost milliseconds, negligible memory
template <std::derived_from<torch::nn::Module> Net, class... Args>
requires(Flattenable<Args>&&...) [[nodiscard]] auto capture(const std::shared_ptr<Net>& net, const Args&... args) {
  using Result = std::remove_cvref_t<decltype(net->forward(args...))>;
  static_assert(Flattenable<Result>, "autopar: forward must return tensors, constants, or containers of them");
  const std::tuple<std::decay_t<Args>...> arguments(args...);
  std::shared_ptr<Result> prototype;
  detail::FlatProgram program(net, autopar::flatten(args...), [&](const std::vector<at::Tensor>& tensors) {
    const auto call = [&](const auto&... values) { return net->forward(values...); };
    const Result result = std::apply(call, with_tensors(arguments, tensors));
    auto made = autopar::flatten(result).tensors;
    prototype = std::make_shared<Result>(with_tensors(result, std::vector<at::Tensor>(made.size())));
    return made;
  });
  return CapturedForward<Result>(std::move(program), std::move(*prototype));
}

template <class Impl, class... Args>
requires(Flattenable<Args>&&...)
    [[nodiscard]] auto capture(const torch::nn::ModuleHolder<Impl>& net, const Args&... args) {
  return capture(net.ptr(), args...);
}

/// Captures a module that the caller owns; it must outlive the program.
template <std::derived_from<torch::nn::Module> Net, class... Args>
requires(Flattenable<Args>&&...) [[nodiscard]] auto capture(Net& net, const Args&... args) {
  return capture(std::shared_ptr<Net>(std::shared_ptr<void>(), &net), args...);
}

}  // namespace autopar
