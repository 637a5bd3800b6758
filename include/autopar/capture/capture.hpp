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

/// A program on flat arguments and results.
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

/// The forward of a module as a program: straight-line operators, with sizes in the batch size. A value: copies share
/// the program and the module.
template <class Result>
class CapturedForward {
 public:
  CapturedForward(detail::FlatProgram program, Result prototype)
      : program_(std::move(program)), prototype_(std::move(prototype)) {}

  /// As the forward ran; no rewrites.
  [[nodiscard]] const OpGraph& graph() const { return program_.graph(); }

  /// What forward gives for these arguments: the same operators on the module's parameters and buffers of now, recorded
  /// by autograd as usual. Any batch size will do. Draws are those of forward from the same state of the generator.
  /// @throws InvalidArgument if an argument is unlike the capture's in more than the batch size
  /// @throws OperatorError naming the operator, where libtorch throws
  /// @cost the operators', and O(operators); not to be called by two threads at once
  template <class... Args>
  [[nodiscard]] Result replay(const Args&... args) const {
    return with_tensors(prototype_, program_.run(autopar::flatten(args...)));
  }

 private:
  detail::FlatProgram program_;
  Result prototype_;
};

/// Captures `net->forward(args...)` in the module's modes and the caller's grad mode, without running an operator on
/// data: parameters, gradients and generators stay as they are. Needs neither a World nor MPI. Dim 0 of each tensor
/// argument is the batch, of as many samples in all; a tensor without dims belongs to all samples. Constants (numbers,
/// enums, strings) become part of the program.
/// @throws CaptureError naming the operator and its module, where forward reads data, has sizes that depend on data, or
///         does something that is no function of the batch size. docs/troubleshooting.md has the ways out
/// @cost milliseconds, no memory to speak of
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

/// The same of a module that the caller keeps: it must outlive the program.
template <std::derived_from<torch::nn::Module> Net, class... Args>
requires(Flattenable<Args>&&...) [[nodiscard]] auto capture(Net& net, const Args&... args) {
  return capture(std::shared_ptr<Net>(std::shared_ptr<void>(), &net), args...);
}

}  // namespace autopar
