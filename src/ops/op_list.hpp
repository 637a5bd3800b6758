#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// Chapters of OPERATORS.md.
inline constexpr std::string_view kPerSample = "per sample", kSums = "sums", kMixes = "mixes";

/// Definitions of libtorch's operators, which each family of operators adds.
class OpList {
 public:
  /// Adds operators with the same definition.
  /// @param names  without `aten::`; in-place twins share the definition
  void add(OpDef def, std::initializer_list<std::string_view> names) {
    for (const auto name : names) {
      def.name = "aten::" + std::string(name);
      defs_.push_back(def);
    }
  }
  /// Adds operators with other saved tensors than `def`.
  void add(OpDef def, SavedTensors saved, std::initializer_list<std::string_view> names) {
    def.saved = saved;
    add(std::move(def), names);
  }
  /// Adds an operator of this library.
  /// @param def  with its qualified name
  void add(OpDef def) { defs_.push_back(std::move(def)); }

  [[nodiscard]] std::vector<OpDef> take() && { return std::move(defs_); }

 private:
  std::vector<OpDef> defs_;
};

// One file each.
void add_attention(OpList& list);
void add_batch_norms(OpList& list);
void add_convolutions(OpList& list);
void add_copies(OpList& list);
void add_cross_entropy(OpList& list);
void add_dropouts(OpList& list);
void add_embeddings(OpList& list);
void add_exchanges(OpList& list);
void add_factories(OpList& list);
void add_indexing(OpList& list);
void add_joins(OpList& list);
void add_layer_norms(OpList& list);
void add_linear(OpList& list);
void add_losses(OpList& list);
void add_matrices(OpList& list);
void add_mixing(OpList& list);
void add_pointwise(OpList& list);
void add_products(OpList& list);
void add_recurrent(OpList& list);
void add_reductions(OpList& list);
void add_rows_of_dims(OpList& list);
void add_samples_first(OpList& list);
void add_views(OpList& list);
void add_windows(OpList& list);

/// Definitions of operators that copy values, and of operators that compute each element separately and save nothing.
[[nodiscard]] OpDef definition_of_copies();
[[nodiscard]] OpDef definition_of_pointwise();

/// All definitions. Listed by hand, since a static link drops static initialisers.
[[nodiscard]] std::vector<OpDef> op_list();

}  // namespace autopar::ops
