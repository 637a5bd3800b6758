#include "torch/fused/products.hpp"
#include "torch/device/room_for_messages.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm/kept_algorithms.hpp"

// Which products have an algorithm chosen for them, and which algorithm it is. On no device: what they look at is
// sizes.
namespace autopar::test {

namespace {

at::Tensor half(std::int64_t rows, std::int64_t columns) { return torch::empty({rows, columns}, torch::kBFloat16); }

kernels::MatrixProduct linear_of(const at::Tensor& x, const at::Tensor& weight) {
  return {x, weight.t(), torch::empty({weight.size(0)}, x.options()),
          torch::empty({x.size(0), weight.size(0)}, x.options())};
}

std::size_t fastest(const std::vector<kernels::AlgorithmTrial>& trials) { return kernels::fastest_alike(trials); }

}  // namespace

TEST_CASE("form_of_product: equal sizes, layouts and types", "[kernels]") {
  const auto x = half(64, 32), weight = half(48, 32), gradient = half(64, 48);
  const auto forward = kernels::form_of_product(linear_of(x, weight));
  REQUIRE(forward);
  CHECK((forward->rows == 64 && forward->inner == 32 && forward->columns == 48));
  CHECK((!forward->a_by_columns && forward->b_by_columns && forward->has_bias));
  CHECK((forward->pitch_a == 32 && forward->pitch_b == 32 && forward->pitch == 48));
  CHECK(kernels::form_of_product(linear_of(half(64, 32), half(48, 32))) == forward);

  const auto of_input = kernels::form_of_product({gradient, weight, {}, half(64, 32)});
  REQUIRE(of_input);
  CHECK((!of_input->a_by_columns && !of_input->b_by_columns && !of_input->has_bias));
  CHECK(of_input->type_to == torch::kBFloat16);

  const auto sums = torch::empty({48, 32});
  const auto of_weight = kernels::form_of_product({gradient.t(), x, {}, sums});
  REQUIRE(of_weight);
  CHECK((of_weight->a_by_columns && !of_weight->b_by_columns && of_weight->rows == 48 && of_weight->inner == 64));
  CHECK(of_weight->type_to == torch::kFloat);
  CHECK(kernels::form_of_product({gradient.t(), x, {}, sums, true}) == of_weight);  // added: the same algorithm
  CHECK(kernels::form_of_product({gradient.t(), x, {}, half(48, 32)}) != of_weight);

  const auto wide = half(64, 128);
  const auto of_part = kernels::form_of_product({gradient.t(), wide.narrow(1, 8, 32), {}, sums});
  REQUIRE(of_part);
  CHECK((of_part->pitch_b == 128 && of_part->alignment == 16));
}

TEST_CASE("form_of_product: none for unsupported products", "[kernels]") {
  const auto x = half(64, 32), weight = half(48, 32), y = half(64, 48), bias = torch::empty({48}, torch::kBFloat16);
  REQUIRE(kernels::form_of_product({x, weight.t(), bias, y}));
  const auto refuses = [](const kernels::MatrixProduct& product) { return !kernels::form_of_product(product); };
  CHECK(refuses({x, weight, bias, y}));                                    // no such product
  CHECK(refuses({x, weight.t(), bias, half(48, 64)}));                     //
  CHECK(refuses({x[0], weight.t(), bias, y}));                             //
  CHECK(refuses({x.slice(0, 0, 0), weight.t(), bias, y.slice(0, 0, 0)}));  // nothing to do
  CHECK(refuses({x.to(torch::kFloat), weight.t().to(torch::kFloat), {}, y.to(torch::kFloat)}));
  CHECK(refuses({x.to(torch::kHalf), weight.t(), bias, y}));                  // of two types
  CHECK(refuses({x, weight.t(), bias.to(torch::kFloat), y}));                 //
  CHECK(refuses({x, weight.t(), bias, torch::empty({64, 48})}));              // bias and single precision
  CHECK(refuses({x, weight.t(), {}, torch::empty({64, 48}, torch::kHalf)}));  //
  CHECK(refuses({x, weight.t(), torch::empty({96}, x.options()).slice(0, 0, 96, 2), y}));
  CHECK(refuses({half(64, 96).slice(1, 0, 96, 3), weight.t(), bias, y}));  // elements apart
  CHECK(refuses({half(64, 33).narrow(1, 0, 32), weight.t(), bias, y}));    // rows of no whole packs
  CHECK(refuses({half(64, 40).narrow(1, 0, 36), half(48, 40).narrow(1, 0, 36).t(), bias, y}));
  CHECK(refuses({half(64, 48).narrow(1, 0, 42).t(), x, {}, torch::empty({42, 32})}));  // as padded logits' gradients
  CHECK(refuses({half(64, 40).narrow(1, 1, 32), weight.t(), bias, y}));                // that begin within one
  CHECK(refuses({x, weight.t(), bias, half(48, 64).t()}));                             // a result by columns
  CHECK(refuses({x[0].expand({64, 32}), weight.t(), bias, y}));                        // rows in one place
}

TEST_CASE("is_large_product: products of tens of microseconds", "[kernels]") {
  CHECK(fused::is_large_product(half(8192, 2048), half(2048, 2048)));
  CHECK(fused::is_large_product(half(4096, 2048), half(2048, 2048)));
  CHECK_FALSE(fused::is_large_product(half(1024, 2048), half(2048, 2048)));
  CHECK_FALSE(fused::is_large_product(half(64, 32), half(32, 48)));
  CHECK_FALSE(fused::multiply_large(linear_of(half(8192, 2048), half(2048, 2048))));  // on a CPU
  CHECK_FALSE(fused::large_linear(half(8192, 2048), half(2048, 2048), {}).defined());
}

TEST_CASE("matrix products: the chosen algorithm is faster, bits equal", "[kernels]") {
  CHECK(fastest({{true, 1}}) == 0);
  CHECK(fastest({{true, 1.0F}, {true, 0.9F}, {true, 0.8F}, {true, 0.95F}}) == 2);
  CHECK(fastest({{true, 1.0F}, {true, 0.9F}, {false, 0.5F}}) == 1);
  CHECK(fastest({{true, 1.0F}, {true, 0.995F}}) == 0);  // hardly faster
  CHECK(fastest({{true, 1.0F}, {true, 1.2F}}) == 0);
  CHECK(fastest({{true, 1.0F, true}, {true, 0.95F}}) == 0);  // hardly faster, of small tiles
  CHECK(fastest({{true, 1.0F, true}, {true, 0.9F}}) == 1);
  CHECK(fastest({{true, 1.0F, true}, {true, 0.98F, true}}) == 1);
  CHECK(fastest({{true, 1.0F}, {true, 1.03F, true}}) == 1);
  CHECK(fastest({{true, 1.0F}, {true, 1.08F, true}}) == 0);
  CHECK(fastest({{true, 1.0F}, {false, 0.9F, true}}) == 0);
  CHECK(fastest({{true, 0.0F}, {true, 0.0F}}) == 0);  // not measured
  CHECK(fastest({{false, 0.0F}, {false, 0.0F}}) == 0);
}

TEST_CASE("RoomForMessages: products leave room, settings are restored", "[kernels]") {
  const c10::Device gpu(c10::kCUDA, 0), cpu(c10::kCPU);
  const auto left_free = [] { return kernels::form_of_product(linear_of(half(64, 32), half(48, 32)))->left_free; };
  at::globalContext()._setSMCarveout_EXPERIMENTAL(7);
  {
    const devices::RoomForMessages none(false, gpu), not_here(true, cpu);
    CHECK(left_free() == 7);
    const devices::RoomForMessages room(true, gpu);
    CHECK(left_free() == 4);
  }
  CHECK(left_free() == 7);
  at::globalContext()._setSMCarveout_EXPERIMENTAL(std::nullopt);
  CHECK(left_free() == 0);
}

TEST_CASE("KeptAlgorithms: a later process finds the choice", "[kernels]") {
  const TempFolder temp;
  const auto folder = std::make_shared<CacheFolder>(temp / "kernels");
  const std::string file = "products";
  const auto x = half(64, 32);
  const auto form = *kernels::form_of_product(linear_of(x, half(48, 32)));
  auto with_pitch = form, other = form, with_room = form;
  with_pitch.pitch_a = 40;
  other.type_to = torch::kFloat;
  with_room.left_free = 4;
  kernels::KeptAlgorithms first(folder, file), beside(folder, file);
  CHECK_FALSE(first.find(form, 8));
  first.keep(form, 3, 8);
  beside.keep(with_pitch, 0, 5);  // another process, which began before the first had written
  CHECK(first.find(form, 8) == 3U);
  CHECK_FALSE(first.find(with_pitch, 5));
  const kernels::KeptAlgorithms later(std::make_shared<CacheFolder>(temp / "kernels"), file);
  CHECK(later.find(form, 8) == 3U);
  CHECK(later.find(with_pitch, 5) == 0U);
  CHECK_FALSE(later.find(form, 7));  // of another list
  CHECK_FALSE(later.find(other, 8));
  CHECK_FALSE(later.find(with_room, 8));
  kernels::KeptAlgorithms nowhere, of_no_folder(nullptr, file);
  for (auto* none : {&nowhere, &of_no_folder}) {
    none->keep(form, 3, 8);
    CHECK_FALSE(none->find(form, 8));
  }
}

TEST_CASE("KeptAlgorithms: damaged lines are skipped", "[kernels]") {
  const TempFolder temp;
  const auto folder = std::make_shared<CacheFolder>(temp / "kernels");
  const std::string file = "products";
  const auto form = *kernels::form_of_product(linear_of(half(64, 32), half(48, 32)));
  kernels::KeptAlgorithms(folder, file).keep(form, 3, 8);
  const auto whole = *folder->read(file), title = whole.substr(0, whole.find('\n') + 1),
             line = whole.substr(title.size(), whole.size() - title.size() - 1), numbers = line.substr(3);
  const auto chosen_in = [&](const std::string& content) {
    folder->write(file, content);
    return kernels::KeptAlgorithms(folder, file).find(form, 8);
  };
  REQUIRE(line.substr(0, 3) == "3 8");
  CHECK(chosen_in(whole) == 3U);
  CHECK(chosen_in(title + "\n3 8\nproducts\n-1 8" + numbers + "\n2 8" + numbers + '\n') == 2U);
  for (const auto& wrong : {"8 8" + numbers, "-1 8" + numbers, "3 8" + numbers + " 1", "3 8" + numbers + 'x',
                            line.substr(0, line.size() - 3), "3" + numbers, "99999999999999999999 8" + numbers})
    CHECK_FALSE(chosen_in(title + wrong + '\n'));
  CHECK_FALSE(chosen_in(line + '\n'));
  CHECK_FALSE(chosen_in("products 5\n" + line + '\n'));
  CHECK_FALSE(chosen_in(""));
}

TEST_CASE("matrix_product: the fallback equals libtorch", "[kernels]") {
  torch::manual_seed(3);
  const auto a = torch::randn({6, 16}).to(torch::kBFloat16), b = torch::randn({16, 8}).to(torch::kBFloat16);
  CHECK(torch::equal(fused::matrix_product(a, b, torch::kBFloat16), a.mm(b)));
  const auto wide = torch::randn({3, 4}, torch::kDouble);
  CHECK(torch::equal(fused::matrix_product(wide.t(), wide, torch::kDouble), wide.t().mm(wide)));
}

}  // namespace autopar::test
