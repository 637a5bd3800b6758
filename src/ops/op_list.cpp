#include "ops/op_list.hpp"

namespace autopar::ops {

std::vector<OpDef> op_list() {
  OpList list;
  for (const auto add :
       {add_pointwise,   add_copies,       add_factories,     add_views,     add_joins,         add_rows_of_dims,
        add_reductions,  add_mixing,       add_products,      add_linear,    add_windows,       add_matrices,
        add_layer_norms, add_convolutions, add_samples_first, add_recurrent, add_batch_norms,   add_attention,
        add_dropouts,    add_embeddings,   add_indexing,      add_losses,    add_cross_entropy, add_exchanges}) {
    add(list);
  }
  return std::move(list).take();
}

}  // namespace autopar::ops
