#include <autopar/testing_torch/op_laws.hpp>

#include <ATen/core/grad_mode.h>

#include "testing_torch/laws.hpp"

namespace autopar::testing {

OpLaws check_op_laws(std::string_view op, const OpExample& example) {
  const at::AutoGradMode with_history(true);
  const op_laws::CapturedExample captured(op, example);
  const auto calls = check_forms(captured);
  OpLaws laws{.splits = check_slices(captured)};
  for (const auto& call : calls) {
    laws.shards = check_shards(captured, call) || laws.shards;
    laws.splits_backward = check_split_backward(captured, call) || laws.splits_backward;
    check_work(captured, call);
    check_saved_bytes(captured, call);
  }
  return laws;
}

}  // namespace autopar::testing
