#include "capture/ir/collectives.hpp"

#include <catch_shim.hpp>

#include <string>

#include <torch/torch.h>

#include "ops/registry.hpp"

using namespace autopar;

TEST_CASE("kCollectives: local copies whose backward is a collective") {
  for (const ir::Collective& row : ir::kCollectives) {
    const std::string name(row.name);
    CAPTURE(name);
    CHECK(ir::collective_named(row.name) == &row);
    CHECK(ir::collective_named(row.adjoint) != nullptr);
    CHECK(ops::definition_of(row.name).over_sums);
    CHECK(row.all_reduced(Bytes(1000)) == Bytes(static_cast<std::int64_t>(1000 * row.all_reduces)));
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<at::Tensor(const at::Tensor&)>();
    const auto operand = torch::randn({3, 2}, torch::TensorOptions().dtype(torch::kDouble).requires_grad(true));
    const auto result = op.call(operand);
    CHECK(torch::equal(result, operand));
    CHECK_FALSE(result.is_alias_of(operand));
    result.sum().backward();
    CHECK(torch::equal(operand.grad(), torch::ones_like(operand)));
  }
  CHECK(ir::collective_named("aten::add") == nullptr);
}
