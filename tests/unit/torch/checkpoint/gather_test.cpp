#include "torch/checkpoint/checkpoint.hpp"

#include <stdexcept>

#include <autopar/runtime/loopback.hpp>
#include <catch_shim.hpp>

#include "placed_forms.hpp"

namespace gather_test {

using namespace placed_forms;

void check(const Form& form) {
  const nets::CountedWeight module(form.sizes);
  CHECK_NOTHROW(loopback::run(form.shards * form.replicas, [&](World& world) {
    const auto mine = placed(form, module, world.rank_id());
    const auto got = checkpoint::gather_tensor(world, mine);
    if (!got.equal(module.weight)) throw std::logic_error("another tensor is gathered");
    const auto at_root = checkpoint::gather_tensors(world, {mine});
    if (world.rank() == 0 && !at_root.front().equal(module.weight)) throw std::logic_error("another one on rank 0");
  }));
}

TEST_CASE("gather: reassembles slices, shards and shards of slices") {
  for (const auto& form : forms()) {
    CAPTURE(form.sizes, form.shards, form.replicas, form.zero);
    check(form);
  }
}

}  // namespace gather_test
