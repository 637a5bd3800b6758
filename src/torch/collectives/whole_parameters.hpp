#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <autopar/runtime/any_transport.hpp>
#include "torch/ranks/ranks.hpp"

#include "torch/parameters/exchange_order.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/parameters/whole_rounds.hpp"

namespace autopar::collectives {

/// Runs a function on whole parameters where ranks hold parts: assembles a parameter's tensors on one of its holders,
/// calls the function there, and writes the results back into what all holders have, so that copies stay equal.
///
/// Parameters are assembled in rounds in which ranks work side by side (WholeRounds). A rank needs memory for the
/// largest parameter with all its tensors, and at most as much again for what is under way.
class WholeParameters {
 public:
  static constexpr std::size_t kMostTensors = 16;  ///< of one parameter

  /// What this rank has of one parameter: tensors of its layout (value, gradient, state), each of which may be
  /// undefined. On ranks that hold nothing of it they are not looked at.
  struct Parts {
    const parameters::ManagedTensor* tensor = nullptr;
    std::vector<at::Tensor> tensors;
    std::vector<std::string> labels{};  ///< what messages call them
  };
  /// Called on one rank for each parameter. The whole tensors lie on the device without gaps; those that are undefined
  /// on the holders are undefined. It may write to them or put others of the same form in their place.
  using Function = std::function<void(std::size_t i, std::vector<at::Tensor>& whole)>;

  /// @param everyone  group of all ranks in `wire`
  WholeParameters(ranks::Ranks& ranks, AnyTransport& wire, GroupId everyone, c10::Device device,
                  const parameters::ParameterStore& parameters)
      : ranks_(ranks), wire_(wire), everyone_(everyone), device_(device), parameters_(parameters) {}

  /// The same list of parameters on every rank. Within a rank the function is called in the list's order. Where it
  /// throws, all ranks throw, and its parameter and those of the same round are as they were. Collective.
  /// @param written  the first so many tensors of each parameter are written back
  /// @throws InvalidArgument on every rank where holders disagree about which tensors there are
  void run(const std::vector<Parts>& parts, std::size_t written, const Function& function);

 private:
  struct Item;
  struct Segment;
  using Stream = std::vector<Segment>;

  [[nodiscard]] std::vector<Item> agree(const std::vector<Parts>& parts);
  template <class Work>
  void transfer(const Work& work);
  void gather(std::vector<Item>& items, const std::vector<std::size_t>& round);
  void compute(std::vector<Item>& items, const std::vector<Parts>& parts, const std::vector<std::size_t>& round,
               const Function& function);
  void scatter(std::vector<Item>& items, const std::vector<std::size_t>& round, std::size_t written);
  using Fill = std::function<at::Tensor(const Segment&, Interval)>;
  using Take = std::function<void(const Segment&, Interval, const at::Tensor&)>;
  /// Brings each rank's stream of bytes to all ranks, a piece at a time.
  /// @param streams  by rank, known to all
  void exchange(const std::vector<Item>& items, const std::vector<Stream>& streams, const Fill& fill, const Take& take);

  ranks::Ranks& ranks_;
  AnyTransport& wire_;
  GroupId everyone_;
  c10::Device device_;
  const parameters::ParameterStore& parameters_;
  std::int64_t room_ = 0;  ///< bytes of pieces under way
};

}  // namespace autopar::collectives
