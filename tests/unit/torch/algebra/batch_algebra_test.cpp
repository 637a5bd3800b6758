#include "capture/algebra/batch_algebra.hpp"

#include "slice_checks.hpp"

namespace {

using namespace autopar;
using namespace autopar::test;
namespace F = torch::nn::functional;

Arg floats(std::vector<std::int64_t> sizes) { return {std::move(sizes)}; }
Arg labels(std::vector<std::int64_t> sizes, std::int64_t classes, bool holes = false) {
  return {std::move(sizes), classes, holes, false, false};
}
Arg data(std::vector<std::int64_t> sizes) { return {std::move(sizes), 0, false, false, false}; }

}  // namespace

TEST_CASE("batch algebra: element-wise operators keep samples apart") {
  expect_exact({{floats({-1, 4}), floats({-1, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                  auto y = torch::relu(in[0] * net[0]) + torch::sigmoid(in[1]) / 2.0;
                  y = torch::where(y > 0.1, y, in[0].exp().clamp(-1, 2));
                  return {torch::lerp(y, in[1], 0.3), torch::maximum(y, in[0]).sub(1.5).pow(2)};
                }});
  expect_exact({{floats({-1, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                  auto y = in[0] * 1.0;
                  y.add_(net[0]).mul_(2);
                  y.masked_fill_(in[0] > 0.5, 0.25).relu_();
                  return {y.to(torch::kFloat).to(torch::kDouble) + in[0].detach()};
                }});
  expect_exact({{floats({-1, 3}), floats({-1})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  return {in[0] * in[1].unsqueeze(1), in[0] - in[1].unsqueeze(-1).expand_as(in[0])};
                }});
}

TEST_CASE("batch algebra: views move the batch dim") {
  expect_exact({{floats({-1, 3, 4})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto x = in[0];
                  const auto b = x.size(0);
                  const auto rows = x.reshape({b * 3, 4});
                  const auto time_major = x.transpose(0, 1).reshape({3 * b, 4});
                  return {rows.tanh(),
                          time_major.sin(),
                          rows.view({b, 3, 2, 2}).permute({2, 0, 3, 1}),
                          x.flatten(1),
                          x.flatten(0, 1),
                          x.unsqueeze(1).expand({b, 5, 3, 4}),
                          x.select(1, 2),
                          x.slice(2, 1, 3),
                          x.narrow(1, 0, 2),
                          x.movedim(0, 2),
                          time_major.view({3, b, 4}).transpose(0, 1)};
                }});
  expect_exact({{floats({-1, 4, 6})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  auto pieces = in[0].chunk(3, -1);
                  const auto split = in[0].split(4, 2);
                  const auto bound = torch::unbind(in[0], 1);
                  return {pieces[0] * pieces[2],
                          split[1],
                          bound[3],
                          torch::stack(bound, 0),
                          torch::cat({pieces[1], split[0]}, 2),
                          in[0].unflatten(2, {2, 3}),
                          torch::stack({pieces[0], pieces[1]}, 1)};
                }});
  expect_exact(
      {{floats({2, -1, 3})}, {}, [](Net&, const Tensors& in) -> Tensors {
         return {in[0].cumsum(0), in[0].sum(torch::IntArrayRef{0, 2}), in[0].flatten(0, 1).exp(), in[0].mean(1)};
       }});
}

TEST_CASE("batch algebra: squeeze keeps the batch dim of one sample") {
  const auto planned = expect_exact({{floats({-1, 1, 3})}, {}, [](Net&, const Tensors& in) -> Tensors {
                                       if (in[0].size(0) == 1) return {in[0].squeeze(1), in[0].squeeze(1)};
                                       return {in[0].squeeze(), in[0].squeeze(1)};
                                     }});
  CHECK(planned.plan.ops[0].replace_squeeze);
  CHECK(planned.plan.ops[0].squeeze_dims == std::vector<std::int64_t>{1});
}

TEST_CASE("batch algebra: cat and split along the batch") {
  expect_exact({{floats({-1, 3}), floats({-1, 3})}, {{3, 2}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto both = torch::tanh(torch::mm(torch::cat({in[0], in[1]}, 0), net[0]));
                  const auto halves = both.chunk(2, 0);
                  const auto first = both.slice(0, 0, in[0].size(0));
                  return {halves[0] * halves[1], first - both.narrow(0, in[0].size(0), in[0].size(0)), both.mean()};
                }});
}

TEST_CASE("batch algebra: repeat and expand") {
  expect_exact({{floats({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  return {in[0].repeat({1, 2}), in[0].repeat({2, 1}), net[0].unsqueeze(0).repeat({b, 1}) * in[0],
                          net[0].expand({b, 3}) + in[0],
                          net[0].view({3, 1}).repeat({b, 2}).view({b, 3, 2}) * in[0].unsqueeze(2)};
                }});
}

TEST_CASE("batch algebra: matrix products keep the batch dim") {
  expect_exact(
      {{floats({-1, 4}), floats({-1, 3, 4})}, {{5, 4}, {5}, {4, 2}}, [](Net& net, const Tensors& in) -> Tensors {
         const auto y = torch::linear(in[0], net[0], net[1]);
         const auto z = torch::matmul(in[1], net[2]);
         const auto attention = torch::bmm(in[1], in[1].transpose(1, 2)).softmax(-1);
         return {y,
                 z,
                 attention,
                 torch::addmm(net[1], in[0], net[0].t()),
                 torch::matmul(net[2].t(), in[1].transpose(1, 2)),
                 torch::matmul(net[0], in[0].t()),
                 torch::mv(in[0], net[0].select(0, 0)),
                 torch::matmul(in[1], net[0].select(0, 1)),
                 torch::baddbmm(net[1].view({5, 1}).slice(0, 0, 3).expand({3, 3}), in[1], in[1].transpose(1, 2))};
       }});
  expect_exact({{floats({-1, 3, 4}), floats({-1, 4})}, {{4, 2}, {2, 4, 4}}, [](Net& net, const Tensors& in) -> Tensors {
                  return {
                      torch::einsum("bij,jk->bik", {in[0], net[0]}),   torch::einsum("bij,bkj->bik", {in[0], in[0]}),
                      torch::einsum("...j,jk->...k", {in[1], net[0]}), torch::einsum("bi,bj->ij", {in[1], in[1]}),
                      torch::bilinear(in[1], in[1], net[1], {}),       torch::einsum("bij->j", {in[0]})};
                }});
}

TEST_CASE("batch algebra: products over samples are partial sums") {
  expect_exact({{floats({-1, 4}), floats({-1, 3})}, {{4, 3}, {4}}, [](Net& net, const Tensors& in) -> Tensors {
                  return {torch::matmul(in[0].t(), in[1]), torch::addmm(net[0], in[0].t(), in[1]),
                          torch::dot(in[0].sum(1), in[1].sum(1)), torch::matmul(in[0].t(), in[1]) / 3.0 + net[0] * 2,
                          torch::mv(in[0].t(), in[1].select(1, 0)) - net[1]};
                }});
}

TEST_CASE("batch algebra: sums and means over samples") {
  expect_exact({{floats({-1, 3, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto x = in[0] * net[0];
                  return {x.sum(),
                          x.mean(),
                          x.mean(0),
                          x.sum(torch::IntArrayRef{0, 2}),
                          x.mean(torch::IntArrayRef{0, 1}, true),
                          x.mean(1),
                          x.sum(-1, true),
                          x.sum() / x.size(0),
                          x.pow(2).sum(torch::IntArrayRef{1, 2}).mean()};
                }});
}

TEST_CASE("batch algebra: terms not summed over samples count once") {
  expect_exact({{floats({-1, 4})}, {{4}, {3, 3}}, [](Net& net, const Tensors& in) -> Tensors {
                  auto loss = (in[0] * net[0]).pow(2).mean();
                  loss = loss + 0.01 * net[1].pow(2).sum() + 0.5;
                  loss = 1.0 - loss;
                  return {loss - net[0].norm()};
                }});
  expect_exact({{floats({-1, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                  auto loss = torch::zeros({}, torch::kDouble);
                  loss += (in[0] * net[0]).sum();
                  loss += net[0].sum();
                  loss.add_(2.0).mul_(0.5);
                  return {loss};
                }});
  const auto planned = expect_exact({{floats({-1, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                                       return {(in[0] * net[0]).mean() + net[0].norm()};
                                     }});
  CHECK(planned.plan.loss_mode);
}

TEST_CASE("batch algebra: losses with reduction none, mean and sum") {
  using R = at::Reduction::Reduction;
  for (const std::int64_t reduction : {R::None, R::Mean, R::Sum}) {
    INFO("reduction " << reduction);
    expect_exact({{floats({-1, 3}), data({-1, 3})}, {{3}}, [=](Net& net, const Tensors& in) -> Tensors {
                    const auto x = in[0] * net[0], y = in[1];
                    const auto p = x.sigmoid(), q = y.sigmoid();
                    return {torch::mse_loss(x, y, reduction),
                            torch::l1_loss(x, y, reduction),
                            torch::smooth_l1_loss(x, y, reduction, 0.7),
                            torch::huber_loss(x, y, reduction, 0.8),
                            torch::binary_cross_entropy(p, q, {}, reduction),
                            torch::binary_cross_entropy_with_logits(x, q, {}, net[0].abs().detach(), reduction),
                            torch::kl_div(x.log_softmax(1), q, reduction),
                            torch::soft_margin_loss(x, y.sign(), reduction),
                            torch::margin_ranking_loss(x, y, y.sign(), 0.1, reduction),
                            torch::poisson_nll_loss(x, q, true, false, 1e-8, reduction),
                            torch::hinge_embedding_loss(x, y.sign(), 1.0, reduction)};
                  }});
    expect_exact(
        {{floats({-1, 3}), data({-1, 3}), labels({-1}, 3)}, {{3}}, [=](Net& net, const Tensors& in) -> Tensors {
           const auto x = in[0] * net[0];
           return {torch::triplet_margin_loss(x, in[1], in[0].cos(), 1.0, 2, 1e-6, false, reduction),
                   torch::cosine_embedding_loss(x, in[1], in[1].select(1, 0).sign(), 0.1, reduction),
                   torch::multi_margin_loss(x, in[2], 1, 1, {}, reduction)};
         }});
  }
  expect_exact({{floats({-1, 3}), data({-1, 3})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  return {F::kl_div(in[0].log_softmax(1), in[1].softmax(1), F::KLDivFuncOptions(torch::kBatchMean)),
                          F::mse_loss(in[0], in[1])};
                }});
}

TEST_CASE("batch algebra: cross_entropy divides by the global count") {
  const auto weights = torch::tensor({0.5, 2.0, 1.5, 0.1}, torch::kDouble);
  for (const double smoothing : {0.0, 0.2}) {
    for (const bool weighted : {false, true}) {
      INFO("smoothing " << smoothing << ", weighted " << weighted);
      expect_exact({{floats({-1, 4}), labels({-1}, 4, true)}, {{4}}, [=](Net& net, const Tensors& in) -> Tensors {
                      // one target counts in every batch, so that the reference is no 0/0
                      const auto targets = in[1].clamp_min(0).where(in[0].detach().select(1, 0) < 0.5,
                                                                    torch::full({}, -100, torch::kLong));
                      auto options = F::CrossEntropyFuncOptions().label_smoothing(smoothing).reduction(torch::kSum);
                      if (weighted) options.weight(weights);
                      return {F::cross_entropy(in[0] * net[0], targets, options)};
                    }});
      expect_exact(
          {{floats({-1, 4, 5}), labels({-1, 5}, 4)}, {{5}}, [=](Net& net, const Tensors& in) -> Tensors {
             auto options = F::CrossEntropyFuncOptions().label_smoothing(smoothing).ignore_index(1);
             if (weighted) options.weight(weights);
             const auto targets = torch::cat({torch::zeros_like(in[1].narrow(1, 0, 1)), in[1].narrow(1, 1, 4)}, 1);
             return {F::cross_entropy(in[0] * net[0], targets, options)};
           }});
    }
  }
  expect_exact({{floats({-1, 4}), data({-1, 4})}, {{4}}, [](Net& net, const Tensors& in) -> Tensors {
                  return {F::cross_entropy(in[0] * net[0], in[1].softmax(1)),
                          F::nll_loss(in[0].log_softmax(1), in[1].argmax(1))};
                }});
  expect_exact({{floats({-1, 3, 4}), labels({-1, 3}, 4)},
                {
                    {4},
                },
                [](Net& net, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  return {F::cross_entropy((in[0] * net[0]).reshape({b * 3, 4}), in[1].reshape({-1}))};
                }});
}

TEST_CASE("batch algebra: ctc_loss divides by each sample's length") {
  using R = at::Reduction::Reduction;
  const auto logits = floats({6, -1, 4});
  const auto rows = [](const Tensor& ids) { return ids + 1; };  // without blanks
  for (const std::int64_t reduction : {R::None, R::Mean, R::Sum}) {
    INFO("reduction " << reduction);
    expect_exact({{logits, labels({-1, 3}, 3), labels({-1}, 3)}, {{4}}, [=](Net& net, const Tensors& in) -> Tensors {
                    const auto x = (in[0] * net[0]).log_softmax(2);
                    const auto steps = torch::full({in[2].size(0)}, 6, torch::kLong);
                    return {torch::ctc_loss(x, rows(in[1]), steps, in[2] + 1, 0, reduction),
                            torch::ctc_loss(x, rows(in[1]), 6 - in[2].remainder(2), in[2], 0, reduction, true)};
                  }});
  }
  expect_whole({{logits, labels({-1}, 3)},
                {{4}},
                [=](Net& net, const Tensors& in) -> Tensors {
                  const auto ones = torch::ones_like(in[1]);
                  return {torch::ctc_loss((in[0] * net[0]).log_softmax(2), rows(in[1]), ones * 6, ones)};
                }},
               "ctc_loss", "one row");
  expect_whole({{floats({-1, 4, 4}), labels({4, 3}, 3)},
                {{4}},
                [=](Net& net, const Tensors& in) -> Tensors {
                  const auto ones = torch::ones({4}, torch::kLong);
                  return {torch::ctc_loss((in[0] * net[0]).log_softmax(2), rows(in[1]), ones * 3, ones)};
                }},
               "ctc_loss", "dim 1");
}

TEST_CASE("batch algebra: slices with all targets ignored add nothing") {
  expect_exact({{floats({-1, 4}), labels({-1, 2}, 3)}, {}, [](Net&, const Tensors& in) -> Tensors {
                  // only where the second number is 0 does the target count; one constant row keeps the count above
                  // zero
                  const auto b = in[0].size(0);
                  const auto logits = in[0].unsqueeze(2).expand({b, 4, 2});
                  const auto keep = in[1].select(1, 0).masked_fill(in[1].select(1, 1) != 0, -100);
                  return {F::cross_entropy(logits, torch::stack({keep, in[1].select(1, 0)}, 1))};
                }});
}

TEST_CASE("batch algebra: two loss terms with different counts") {
  expect_exact({{floats({-1, 3, 4}), labels({-1, 3}, 4), labels({-1}, 2)},
                {{4}, {4, 2}},
                [](Net& net, const Tensors& in) -> Tensors {
                  const auto hidden = torch::tanh(in[0] * net[0]);
                  auto targets = in[1].masked_fill(in[1] == 2, -100);
                  targets = torch::cat({torch::zeros_like(targets.narrow(1, 0, 1)), targets.narrow(1, 1, 2)}, 1);
                  const auto masked = F::cross_entropy(hidden.flatten(0, 1), targets.flatten());
                  const auto next = F::cross_entropy(torch::matmul(hidden.select(1, 0), net[1]), in[2]);
                  return {masked + next};
                }});
}

TEST_CASE("batch algebra: a mask's sum is in the prologue") {
  const auto planned =
      expect_exact({{floats({-1, 3}), labels({-1, 3}, 2)}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                      const auto mask = (in[1] == 0).to(torch::kDouble);
                      const auto error = (in[0] * net[0]).pow(2);
                      return {(error * mask).sum() / mask.sum().clamp_min(1), (error / (1 + mask.sum())).sum()};
                    }});
  CHECK(planned.plan.prologue.size() == 2);
  CHECK(planned.plan.epilogue.empty());
  expect_exact({{data({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto centred = in[0] - in[0].mean(0);
                  const auto scaled = centred / (centred.pow(2).mean(0) + 0.1).sqrt();
                  return {(scaled * net[0]).sum(1).tanh().mean()};
                }});
}

TEST_CASE("batch algebra: a non-linear tail is in the epilogue") {
  auto planned = expect_exact({{floats({-1, 3}), data({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                                 return {torch::mse_loss(in[0] * net[0], in[1]).sqrt()};
                               }});
  CHECK_FALSE(planned.plan.loss_mode);
  CHECK(planned.plan.epilogue.size() == 1);
  expect_exact({{floats({-1, 3}), data({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto y = in[0] * net[0];
                  const auto dice = 2 * (y * in[1]).sum() / (y.pow(2).sum() + in[1].pow(2).sum() + 1.0);
                  const auto per_class = y.sum(0) / (y.abs().sum(0) + 1);
                  auto tail = (1 - dice) + 0.1 * net[0].pow(2).sum();
                  return {tail.exp(), per_class.mean() * torch::tensor({1.5}, torch::kDouble)[0], torch::exp(y.mean())};
                }});
}

TEST_CASE("batch algebra: batch sizes as numbers are the global batch") {
  expect_exact({{floats({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  return {(in[0] * net[0]).sum() * (1.0 / static_cast<double>(b)),
                          in[0] * (0.1 / static_cast<double>(b)),
                          in[0].sum() + 0.5 * static_cast<double>(b),
                          (in[0] * net[0]).sum() / b,
                          in[0] * b,
                          (in[0].sum() + b) / (2 * b + 1),
                          torch::full({}, b, torch::kDouble) * in[0].sum(),
                          in[0].sum() / (b * (b + 1)),
                          in[0] * (1.0 / static_cast<double>(b * b)),
                          in[0].sum() * (b * (b - 1) / 2)};
                }});
}

TEST_CASE("batch algebra: convolution, pooling and normalisation") {
  expect_exact(
      {{floats({-1, 3, 6, 6})}, {{4, 3, 3, 3}, {4}, {3, 2, 2, 2}, {4}}, [](Net& net, const Tensors& in) -> Tensors {
         auto y = torch::conv2d(in[0], net[0], net[1], 1, 1);
         auto z = torch::conv_transpose2d(in[0], net[2], {}, 2);
         return {torch::max_pool2d(y, {2, 2}),
                 torch::avg_pool2d(y, {2, 2}),
                 torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1),
                 torch::group_norm(y, 2, net[1], net[3]),
                 torch::instance_norm(y, {}, {}, {}, {}, true, 0.1, 1e-5, false),
                 z,
                 torch::upsample_nearest2d(in[0], {12, 12}),
                 torch::constant_pad_nd(in[0], {1, 1, 0, 2}),
                 torch::pixel_shuffle(y, 2),
                 torch::reflection_pad2d(in[0], {1, 1, 1, 1}),
                 torch::im2col(in[0], {2, 2}, {1, 1}, {0, 0}, {1, 1}),
                 F::interpolate(in[0], F::InterpolateFuncOptions()
                                           .size(std::vector<std::int64_t>{3, 3})
                                           .mode(torch::kBilinear)
                                           .align_corners(false))};
       }});
  expect_exact({{floats({-1, 5, 4})}, {{4}, {4}}, [](Net& net, const Tensors& in) -> Tensors {
                  return {torch::layer_norm(in[0], {4}, net[0], net[1]),
                          torch::softmax(in[0], 1),
                          in[0].log_softmax(-1),
                          in[0].cumsum(1),
                          std::get<0>(in[0].topk(2, 1)),
                          std::get<1>(in[0].sort(2)),
                          in[0].argmax(2),
                          in[0].logsumexp(1),
                          in[0].std(1),
                          in[0].var(torch::IntArrayRef{1, 2}),
                          in[0].norm(2, 1, true),
                          in[0].amax(2),
                          in[0].flip(1),
                          in[0].roll(1, 2),
                          in[0].triu(1),
                          torch::glu(in[0], 2),
                          torch::cosine_similarity(in[0], in[0].flip(2), 2),
                          torch::cdist(in[0], in[0] + 1),
                          in[0].unfold(1, 2, 1),
                          std::get<0>(in[0].max(1)),
                          in[0].prod(1)};
                }});
  expect_exact({{floats({-1, 2, 5, 4}), floats({-1, 2, 6, 4})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto mask =
                      torch::zeros({5, 6}, torch::kDouble).masked_fill(torch::ones({5, 6}, torch::kBool).triu(2), -1e9);
                  return {torch::scaled_dot_product_attention(in[0], in[1], in[1]),
                          torch::scaled_dot_product_attention(in[0], in[1], in[1], mask),
                          torch::scaled_dot_product_attention(in[0], in[0], in[0], {}, 0.0, true)};
                }});
}

TEST_CASE("batch algebra: recurrent layers with either batch dim") {
  const std::vector<std::vector<std::int64_t>> weights{{12, 4}, {12, 3}, {12}, {12}};
  expect_exact({{floats({-1, 5, 4})}, weights, [](Net& net, const Tensors& in) -> Tensors {
                  const auto zeros = torch::zeros({1, in[0].size(0), 3}, torch::kDouble);
                  const auto [y, h, c] = torch::lstm(in[0], {zeros, zeros}, {net[0], net[1], net[2], net[3]}, true, 1,
                                                     0.0, true, false, true);
                  return {y, h, c};
                }});
  expect_exact(
      {{floats({5, -1, 4}), floats({-1, 3})}, {{9, 4}, {9, 3}, {9}, {9}}, [](Net& net, const Tensors& in) -> Tensors {
         const auto [y, h] =
             torch::gru(in[0], in[1].unsqueeze(0), {net[0], net[1], net[2], net[3]}, true, 1, 0.0, true, false, false);
         return {y, h, torch::gru_cell(in[0].select(0, 0), in[1], net[0], net[1], net[2], net[3])};
       }});
}

TEST_CASE("batch algebra: indexing within a sample") {
  expect_exact(
      {{floats({-1, 5}), labels({-1}, 5), labels({-1, 2}, 5)}, {{5, 3}}, [](Net& net, const Tensors& in) -> Tensors {
         using torch::indexing::Slice;
         const auto rows = torch::arange(in[0].size(0));
         const auto picked = in[0].index({rows, in[1]});
         return {torch::embedding(net[0], in[2]),
                 in[0].gather(1, in[2]),
                 picked,
                 net[0].index({in[1]}),
                 net[0].index_select(0, in[1]),
                 in[0].index({Slice(), torch::tensor({0, 3, 3})}),
                 in[0].index_select(1, torch::tensor({4, 1})),
                 torch::zeros_like(in[0]).scatter(1, in[2], 1.0) * in[0],
                 in[0].index({Slice(), Slice(1, 3)}),
                 in[0].index({rows.unsqueeze(1), in[2]}),
                 torch::zeros_like(in[0]).scatter_add(1, in[2], in[0].narrow(1, 0, 2))};
       }});
  expect_exact({{floats({-1, 3}), labels({-1}, 4)}, {{4, 3}}, [](Net& net, const Tensors& in) -> Tensors {
                  return {torch::index_add(net[0], 0, in[1], in[0]),
                          torch::zeros({4, 3}, torch::kDouble).index_add_(0, in[1], in[0].tanh())};
                }});
  expect_exact({{floats({-1, 5}), labels({-1}, 5)}, {}, [](Net&, const Tensors& in) -> Tensors {
                  auto y = in[0] * 2;
                  y.index_put_({torch::arange(in[0].size(0)), in[1]}, torch::full({}, 3.0, torch::kDouble));
                  y.index_put_({torch::indexing::Slice(), torch::tensor({1, 2})}, in[0].narrow(1, 0, 2));
                  return {y};
                }});
  expect_exact({{floats({-1, 5}), labels({-1, 5}, 3)}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto first_two = torch::tensor({1, 0});
                  return {in[0].index_fill(1, first_two, 0.5),
                          in[0].index_fill(-1, first_two, torch::full({}, 2.0, torch::kDouble)),
                          in[0].index_copy(1, first_two, in[0].narrow(1, 3, 2)),
                          torch::zeros_like(in[0]).scatter_reduce(1, in[1], in[0], "sum"),
                          in[0].scatter_reduce(1, in[1], in[0].tanh(), "amax", false)};
                }});
}

TEST_CASE("batch algebra: in-place writes through views") {
  expect_exact({{floats({-1, 6})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  auto y = in[0] * torch::zeros({in[0].size(0), 6}, torch::kDouble);
                  y.narrow(1, 0, 3).copy_(in[0].narrow(1, 3, 3));
                  y.narrow(1, 3, 3).add_(net[0]);
                  y.select(1, 2).mul_(in[0].select(1, 0)).sub_(1);
                  y.select(1, 1).fill_(4);
                  return {y, y.mean()};
                }});
}

TEST_CASE("batch algebra: dropout without effect, tensors of batch size") {
  expect_exact({{floats({-1, 4})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  return {torch::dropout(in[0], 0.0, true),
                          torch::dropout(in[0], 0.5, false),
                          in[0] + torch::ones({b, 4}, torch::kDouble),
                          in[0] * torch::full({b, 1}, 0.5, torch::kDouble),
                          in[0] + in[0].new_zeros({b, 4}),
                          torch::zeros_like(in[0]).sum()};
                }});
}

TEST_CASE("batch algebra: RNG operators on samples are keyed by slice") {
  Net net({{4}}, {});
  const Case test{{floats({-1, 4})}, {{4}}, [](Net& n, const Tensors& in) -> Tensors {
                    auto y = torch::dropout(in[0], 0.5, true);
                    y = y * torch::dropout(n[0], 0.5, true);
                    y = y + torch::rand_like(in[0]);
                    return {y + torch::rand({4}, torch::kDouble)};
                  }};
  const auto planned = plan_of(test, net);
  std::vector<Draw> draws;
  for (const auto& handling : planned.plan.ops) {
    if (handling.draw != Draw::kNone) draws.push_back(handling.draw);
  }
  CHECK((draws == std::vector<Draw>{Draw::kPerSlice, Draw::kAlike, Draw::kPerSlice, Draw::kAlike}));
}

TEST_CASE("batch algebra: operators that mix samples are named") {
  const auto one = [](auto f) {
    return Case{{floats({-1, 4})}, {{4}}, [f](Net& net, const Tensors& in) -> Tensors { return {f(net, in[0])}; }};
  };
  using N = Net&;
  using T = const Tensor&;
  expect_whole(one([](N, T x) { return x.softmax(0); }), "softmax", "along the batch");
  expect_whole(one([](N, T x) { return x.cumsum(0); }), "cumsum");
  expect_whole(one([](N n, T x) { return x * n[0] - (x * n[0]).mean(0); }), "sub", "for each sample");
  expect_whole(one([](N, T x) { return torch::mm(x, x.t()).sum(0).sum(); }), "mm", "other samples");
  expect_whole(one([](N, T x) { return x.roll(1, 0); }), "roll");
  expect_whole(one([](N, T x) { return x.flip(0); }), "flip");
  expect_whole(one([](N, T x) { return std::get<0>(x.sort(0)); }), "sort");
  expect_whole(one([](N, T x) { return x.std(0); }), "std");
  expect_whole(one([](N, T x) { return x.amax(); }), "amax");
  expect_whole(one([](N, T x) { return std::get<0>(x.max(0)); }), "max");
  expect_whole(one([](N, T x) { return x.norm(); }), "norm");
  expect_whole(one([](N, T x) { return x.prod(); }), "prod");
  expect_whole(one([](N, T x) { return x.logsumexp(0); }), "logsumexp");
  expect_whole(one([](N, T x) { return x.select(0, 1) * 2; }), "select");
  expect_whole(one([](N, T x) { return x.slice(0, 0, 2); }), "slice");
  expect_whole(one([](N, T x) { return x.slice(0, 0, 100); }), "slice", "fixed number");
  expect_whole(one([](N, T x) { return x.slice(1, 0, x.size(0)) * 1; }), "slice");
  expect_whole(one([](N, T x) { return x.view({4, x.size(0)}).sum(1); }), "view", "tears samples apart");
  expect_whole(one([](N, T x) { return x.flatten().view({-1, x.size(0)}).sum(); }), "view");
  expect_whole(one([](N, T x) { return x + torch::arange(x.size(0)).unsqueeze(1); }), "add", "number of a sample");
  expect_whole(one([](N, T x) { return x.index({torch::arange(x.size(0) - 1, -1, -1)}); }), "arange");
  expect_whole(one([](N n, T x) { return x * n[0] / (x * n[0]).abs().sum(); }), "div");
  expect_whole(one([](N n, T x) { return (x * (x * n[0]).mean().exp()).sum(); }), "exp");
  expect_whole(one([](N, T x) { return torch::cdist(x, x).sum(); }), "cdist");
  expect_whole(one([](N, T x) { return torch::trace(x); }), "trace", "mixes samples");
  expect_whole(one([](N, T x) { return torch::max_pool1d(x.t().unsqueeze(0), 1).sum(); }), "max_pool1d",
               "along the batch");
  expect_whole(one([](N, T x) {
                 return torch::conv1d(x.t().unsqueeze(0), torch::ones({2, 4, 1}, torch::kDouble)).sum();
               }),
               "conv1d");
  expect_whole(one([](N, T x) { return (x.select(1, 0).unsqueeze(1) + x.select(1, 1)).sum(); }), "add",
               "other samples");
  expect_whole(one([](N, T x) { return torch::outer(x.select(1, 0), x.select(1, 1)).sum(); }), "outer");
  expect_whole(one([](N, T x) { return torch::einsum("ij,kj->ik", {x, x}).sum(); }), "einsum");
  expect_whole(one([](N, T x) { return torch::matmul(x, x.t()).diagonal().sum(); }), "matmul");
  expect_whole(one([](N, T x) {
                 return x.repeat({2, 1}).view({x.size(0), 2, 4}).sum(1);
               }),
               "view", "tears samples apart");
  expect_whole(one([](N n, T x) {
                 return torch::layer_norm(x.t().unsqueeze(2) * n[0], {x.size(0), 4});
               }),
               "layer_norm");
  expect_whole(one([](N, T x) { return torch::linspace(0, 1, x.size(0)).unsqueeze(1) * x; }), "linspace");
  expect_whole(one([](N n, T x) {
                 return torch::embedding(n[0].unsqueeze(1).repeat({30, 1}), torch::arange(x.size(0))) + x;
               }),
               "embedding");
  expect_whole(one([](N n, T x) { return torch::embedding(n[0].unsqueeze(1), x.detach().argmax(1), -1, true); }),
               "embedding", "how often");
  expect_whole(one([](N, T x) { return x.index_select(0, torch::tensor({1, 0})); }), "index_select");
  expect_whole(one([](N n, T x) {
                 return n[0].unsqueeze(0).repeat({30, 1}).slice(0, 0, x.size(0)) * x;
               }),
               "slice", "where samples are");
  expect_whole(one([](N, T x) { return x.gather(0, torch::zeros_like(x, torch::kLong)); }), "gather");
  expect_whole(one([](N, T x) { return x.median(); }), "median");
  expect_whole(one([](N, T x) { return (x > 0).all(); }), "all");
  expect_whole(one([](N, T x) {
                 return torch::cat({x, torch::zeros({1, 4}, torch::kDouble)}, 0).cumsum(0).sum();
               }),
               "cat");
  expect_whole(one([](N, T x) { return x.t().reshape({-1, 4}).tanh(); }), "reshape", "tears samples apart");
  expect_whole(
      {{floats({3, -1}), floats({-1})},
       {},
       [](Net&, const Tensors& in) -> Tensors {
         return {
             (in[0].t() * in[1].unsqueeze(0).expand({in[1].size(0), in[1].size(0)}).select(0, 0).unsqueeze(1)).sum()};
       }},
      "expand");
}

TEST_CASE("batch algebra: time-major operands broadcast by last dims") {
  expect_exact({{floats({3, -1}), floats({-1})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  return {in[0] * in[1], (in[0] + in[1].unsqueeze(0)).t()};
                }});
}
