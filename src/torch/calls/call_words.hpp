#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "torch/calls/call_arguments.hpp"
#include "torch/parameters/state_registry.hpp"

namespace autopar::calls {

/// One thing that all ranks must have alike in a call, in words.
struct CallWord {
  std::string subject;   ///< "argument 1"; empty: the rank itself
  std::string verb;      ///< "is"
  std::string compared;  ///< equal where the ranks agree
  std::string shown;     ///< "float32 [8, 3]"
};

/// What ranks compare of a call, for a message: member, arguments, modes of modules, gradients, autocast.
/// @param autocast  device types for which it is on, as text
[[nodiscard]] std::vector<CallWord> words_of_call(const CallArguments& arguments, const torch::nn::Module& module,
                                                  const std::vector<parameters::ManagedTensor>& tensors, bool gradients,
                                                  const std::string& autocast);

/// As text on its way between ranks, and back.
[[nodiscard]] std::string to_text(const std::vector<CallWord>& words);
[[nodiscard]] std::vector<CallWord> words_from_text(std::string_view text);

/// "rank 0 is in train(), rank 1 in eval()", of the first thing in which they differ; none if they do not.
[[nodiscard]] std::optional<std::string> first_difference(const std::vector<CallWord>& a, std::size_t rank_a,
                                                          const std::vector<CallWord>& b, std::size_t rank_b);

/// `Flattened::structure` without the member that is called, for people: "(tensor, 5, [tensor, tensor])".
[[nodiscard]] std::string readable_structure(std::string_view structure);

}  // namespace autopar::calls
