#include "torch/fused/channels_last_copy.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

namespace autopar::test {

TEST_CASE("weight_form_of: takes contiguous fp32 with 16-bit NHWC only", "[kernels]") {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  const auto single = torch::zeros({4, 6, 3, 5});
  const auto half = single.to(torch::kBFloat16).contiguous(kLast);
  const auto form = fused::weight_form_of(single, half);
  REQUIRE(form);
  CHECK(form->outputs == 4);
  CHECK(form->inputs == 6);
  CHECK(form->places == 15);
  CHECK_FALSE(fused::weight_form_of(half, single));
  CHECK_FALSE(fused::weight_form_of(single, half.contiguous()));
  CHECK_FALSE(fused::weight_form_of(single.contiguous(kLast), half));
  CHECK_FALSE(fused::weight_form_of(single.to(torch::kDouble), half));
  CHECK_FALSE(fused::weight_form_of(single, single.contiguous(kLast)));
  CHECK_FALSE(fused::weight_form_of(single, half.narrow(0, 0, 3)));
  for (const auto& other : {torch::zeros({4, 6, 1, 1}), torch::zeros({4, 6, 8, 8}), torch::zeros({4, 1, 3, 3}),
                            torch::zeros({0, 6, 3, 3}), torch::zeros({4, 6, 3})}) {
    INFO(other.sizes());
    const auto layout = other.dim() == 4 ? kLast : at::MemoryFormat::Contiguous;
    CHECK_FALSE(fused::weight_form_of(other, other.to(torch::kHalf).contiguous(layout)));
  }
}

TEST_CASE("copy_between_layouts: the fallback equals libtorch", "[kernels]") {
  const auto single = torch::randn({4, 6, 3, 5});
  const auto half = torch::empty({4, 6, 3, 5}, torch::kHalf).contiguous(at::MemoryFormat::ChannelsLast);
  fused::copy_between_layouts(half, single);
  CHECK(torch::equal(half, single.to(torch::kHalf)));
  const auto back = torch::ones({4, 6, 3, 5});
  fused::add_between_layouts(back, half);
  CHECK(torch::equal(back, half.to(torch::kFloat) + 1));
  fused::copy_between_layouts(back, half);
  CHECK(torch::equal(back, half.to(torch::kFloat)));
}

}  // namespace autopar::test
