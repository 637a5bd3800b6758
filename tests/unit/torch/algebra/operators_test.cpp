#include "slice_checks.hpp"

#include "capture/algebra/batch_algebra.hpp"

// Operators of signals, matrices, images and parts of tensors: the slices of a batch against the whole.
namespace {
namespace operators_test {

using namespace autopar;
using namespace autopar::test;
using torch::indexing::Slice;

constexpr std::int64_t kNoPadding = 0;  // a literal zero is a string to conv1d as well

Arg floats(std::vector<std::int64_t> sizes) { return {std::move(sizes)}; }
Arg labels(std::vector<std::int64_t> sizes, std::int64_t classes) {
  return {std::move(sizes), classes, false, false, false};
}

/// A function of matrices [samples, n, n], and of those with samples in dim 1.
void expect_in_both_dims(std::int64_t rows, std::int64_t columns,
                         const std::function<Tensors(const Tensor&)>& function) {
  const auto run = [&](const Tensor& x) {
    Tensors results;
    for (const auto& result : function(x))
      results.push_back(result.is_complex() ? torch::view_as_real(result.resolve_conj()) : result);
    return results;
  };
  expect_exact({{floats({-1, rows, columns})}, {}, [&](Net&, const Tensors& in) { return run(in[0]); }});
  expect_exact({{floats({2, -1, rows, columns})}, {}, [&](Net&, const Tensors& in) { return run(in[0]); }});
}

Tensor definite(const Tensor& x) {
  return torch::matmul(x, x.transpose(-2, -1)) + 2 * torch::eye(x.size(-2), torch::kDouble);
}

TEST_CASE("batch algebra: Fourier transforms") {
  expect_exact({{floats({-1, 3, 6})}, {{3, 4}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto x = in[0];
                  const auto spectrum = torch::fft_rfft(x) * net[0];
                  const auto both = torch::fft_fft2(x);
                  const auto all = torch::fft_fftn(x, std::nullopt, std::vector<std::int64_t>{1, 2});
                  return {
                      torch::fft_irfft(spectrum, 6),
                      torch::real(both),
                      torch::imag(both),
                      torch::abs(torch::fft_ifft(x, std::nullopt, 1)),
                      torch::angle(spectrum + 3),
                      torch::fft_fftshift(x, std::vector<std::int64_t>{2}),
                      torch::real(torch::fft_ifftn(all * all.conj(), std::nullopt, std::vector<std::int64_t>{1, 2})),
                      torch::view_as_real(torch::fft_ihfft(x).resolve_conj()),
                      torch::fft_hfft(spectrum),
                      torch::fft_irfft2(torch::fft_rfft2(x)),
                      torch::imag(spectrum.conj()),
                      torch::view_as_real(spectrum.conj().resolve_conj()),
                      torch::imag(spectrum.conj()).resolve_neg(),
                      torch::view_as_real(spectrum.sum(0)),
                      torch::real(torch::fft_irfft(spectrum.mean(0)))};
                }});
  expect_exact({{floats({6, -1})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  return {torch::real(torch::fft_fft(in[0], std::nullopt, 0)),
                          torch::fft_irfft(torch::fft_rfft(in[0], std::nullopt, 0), 6, 0)};
                }});
  expect_whole(
      {{floats({-1, 4})},
       {},
       [](Net&, const Tensors& in) -> Tensors { return {torch::real(torch::fft_fft(in[0], std::nullopt, 0))}; }},
      "fft_fft", "along the batch");
  expect_whole(
      {{floats({-1, 4})}, {}, [](Net&, const Tensors& in) -> Tensors { return {torch::real(torch::fft_fftn(in[0]))}; }},
      "_fft_c2c", "along the batch");
}

TEST_CASE("batch algebra: complex numbers") {
  expect_exact({{floats({-1, 3}), floats({-1, 3})}, {{3}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto z = torch::complex(in[0], in[1]) * net[0];
                  const auto w = torch::view_as_complex(torch::stack({in[0], in[1]}, -1));
                  const auto p = torch::polar(in[0].exp(), in[1]);
                  auto filled = torch::zeros_like(z);
                  filled.narrow(1, 0, 2).copy_(z.conj().narrow(1, 1, 2));
                  return {torch::angle(z), torch::abs(w), torch::real(z * w.conj()), torch::imag(p.conj() / (w + 5)),
                          torch::view_as_real(filled)};
                }});
}

TEST_CASE("batch algebra: stft and other framing") {
  expect_exact({{floats({-1, 20})}, {{8}}, [](Net& net, const Tensors& in) -> Tensors {
                  const auto window = torch::hann_window(8, torch::kDouble);
                  const auto frames = torch::stft(in[0], 8, 4, 8, window, true, "reflect", false, true, true);
                  const auto learned = torch::stft(in[0], 8, 4, 8, net[0], false, "reflect", false, true, true);
                  return {torch::view_as_real(frames), torch::abs(learned).sum(1),
                          torch::istft(frames, 8, 4, 8, window, true, false, true, 20),
                          torch::istft(frames * 2, 8, 4, 8, window)};
                }});
  expect_exact({{floats({-1, 3, 12})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  const auto x = in[0].contiguous();
                  return {x.as_strided({b, 3, 5, 4}, {36, 12, 2, 1}),    x.as_strided({b, 3}, {36, 12}, 7),
                          x.as_strided({3, b, 4}, {12, 36, 3}, 1),       x.as_strided({b, 3, 4, 3}, {36, 12, 1, 4}),
                          x.as_strided({b, 2, 3, 12}, {36, 0, 12, 1}),   x.as_strided({b, 1, 3, 6}, {36, 36, 12, 2}),
                          x.as_strided({b, 2, 5, 2}, {36, 12, 2, 3}, 12)};
                }});
  expect_whole({{floats({-1, 12})},
                {},
                [](Net&, const Tensors& in) -> Tensors {
                  return {in[0].contiguous().as_strided({in[0].size(0) - 1, 24}, {12, 1}).sum()};
                }},
               "as_strided");
}

TEST_CASE("batch algebra: linear algebra runs matrix by matrix") {
  expect_in_both_dims(4, 3, [](const Tensor& x) -> Tensors {
    const auto tall = x + torch::eye(4, 3, torch::kDouble) * 3;
    const auto [q, tau] = torch::geqrf(tall.detach());
    return {torch::linalg_pinv(tall),
            torch::linalg_householder_product(tall, x.select(-2, 0) * 0.1),
            std::get<0>(torch::linalg_lstsq(tall, x)),
            std::get<0>(torch::linalg_lstsq(tall, x.select(-1, 1))),
            torch::linalg_pinv(tall, std::optional<double>(1e-9), std::nullopt),
            q,
            tau,
            torch::ormqr(q, tau, x.detach())};
  });
  expect_in_both_dims(3, 3, [](const Tensor& x) -> Tensors {
    const auto a = definite(x);
    const auto b = x + 1;
    const auto [lu, pivots] = torch::linalg_lu_factor(a);
    const auto [ld, ld_pivots, info] = torch::linalg_ldl_factor_ex(a.detach());
    const auto [p, l, u] = torch::lu_unpack(lu, pivots);
    return {torch::linalg_lu_solve(lu, pivots, b),
            ld,
            p,
            l,
            u,
            torch::linalg_ldl_solve(ld, ld_pivots, b.detach()),
            torch::linalg_solve(a, b),
            torch::linalg_solve(a, b.select(-1, 0)),
            torch::linalg_solve_triangular(l, b, false),
            torch::logdet(a),
            torch::linalg_eigvalsh(a),
            torch::linalg_inv(a),
            torch::abs(std::get<0>(torch::linalg_eig(a + b * 0.1))),
            torch::abs(torch::linalg_eigvals(a + b * 0.1)),
            torch::linalg_matrix_power(a, 3),
            torch::cholesky_solve(b, torch::linalg_cholesky(a)),
            torch::linalg_matrix_rank(a),
            torch::linalg_cond(a),
            torch::linalg_matrix_norm(a),
            torch::linalg_svdvals(x + 2 * torch::eye(3, torch::kDouble))};
  });
  expect_exact(
      {{floats({-1, 3, 3}), floats({-1, 3})}, {{3, 3}, {3}}, [](Net& net, const Tensors& in) -> Tensors {
         const auto shared = definite(net[0]);
         return {torch::linalg_solve(shared, in[0]),
                 torch::linalg_solve(definite(in[0]), net[1]),
                 torch::linalg_solve(definite(in[0]), in[1]),
                 torch::cholesky_solve(in[1].unsqueeze(-1), torch::linalg_cholesky(shared)),
                 torch::linalg_solve(shared, in[1].t()).t(),
                 torch::linalg_solve_triangular(net[0].tril(-1) + torch::eye(3, torch::kDouble), in[1].t(), false).t(),
                 torch::linalg_solve_triangular(shared.triu(), in[1], true, false),
                 std::get<0>(torch::linalg_lstsq(shared, in[1].t())).t(),
                 torch::cholesky_solve(in[1].t(), torch::linalg_cholesky(shared)).t()};
       }});
  expect_whole({{floats({-1, 3})},
                {},
                [](Net&, const Tensors& in) -> Tensors {
                  return {torch::linalg_solve_triangular(
                              torch::matmul(in[0].t(), in[0]) + torch::eye(3, torch::kDouble), in[0].t(), true)
                              .t()};
                }},
               "linalg_solve_triangular", "for each sample");
  expect_whole(
      {{floats({-1, 4})}, {}, [](Net&, const Tensors& in) -> Tensors { return {torch::linalg_pinv(in[0]).sum()}; }},
      "linalg_pinv", "along the batch");
  expect_whole({{floats({4, -1})},
                {},
                [](Net&, const Tensors& in) -> Tensors {
                  return {std::get<0>(torch::linalg_lstsq(in[0].t(), torch::ones({in[0].size(1), 1}, torch::kDouble)))};
                }},
               "linalg_lstsq", "along the batch");
}

TEST_CASE("batch algebra: image operators") {
  expect_exact({{floats({-1, 4, 6, 6}), floats({-1, 4, 6})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  using Sizes = std::vector<std::int64_t>;
                  return {torch::channel_shuffle(in[0], 2),
                          torch::_upsample_nearest_exact2d(in[0], Sizes{9, 4}),
                          torch::_upsample_nearest_exact1d(in[1], Sizes{9}),
                          torch::_upsample_bilinear2d_aa(in[0], Sizes{3, 4}, false),
                          torch::_upsample_bicubic2d_aa(in[0], Sizes{4, 3}, false),
                          torch::_upsample_nearest_exact3d(in[0].unsqueeze(2), Sizes{2, 5, 5}),
                          torch::channel_shuffle(in[1], 4),
                          torch::max_pool3d(in[0].unsqueeze(1), {2, 2, 2}),
                          torch::max_pool3d(in[0].unsqueeze(1), {3, 3, 2}, {2, 1, 2}, {1, 1, 0}, {1, 2, 1}, true)};
                }});
  expect_exact({{floats({3, -1, 4, 4})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  return {torch::_upsample_nearest_exact2d(in[0], {8, 8})};
                }});
  expect_whole({{floats({3, -1, 4})},
                {},
                [](Net&, const Tensors& in) -> Tensors {
                  return {torch::channel_shuffle(torch::cat({in[0], in[0]}, 1), 2)};
                }},
               "channel_shuffle", "not in dim 0");
}

TEST_CASE("batch algebra: scatter into copies") {
  expect_exact({{floats({-1, 4, 5}), floats({-1, 5}), floats({-1, 4})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto x = in[0];
                  return {torch::select_scatter(x, in[1], 1, 2), torch::select_scatter(x.transpose(0, 1), in[1], 0, 1),
                          torch::slice_scatter(x, x.narrow(2, 0, 2), 2, 1, 5, 2),
                          torch::diagonal_scatter(x, in[2], 0, 1, 2),
                          torch::diagonal_scatter(x.permute({1, 0, 2}), in[2] * 2, 1, 0, 2)};
                }});
  expect_exact({{floats({-1, 5}), labels({-1, 5}, 4)}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto at = torch::tensor({1, 0, 1});
                  return {torch::index_reduce(in[0], 1, at, in[0].narrow(1, 2, 3), "prod"),
                          torch::index_reduce(in[0], 1, at, in[0].narrow(1, 2, 3), "amax", false),
                          torch::isin(in[1], torch::tensor({1, 3})), torch::isin(in[1], 2),
                          torch::renorm(in[0], 2, 0, 1.5)};
                }});
  const auto one = [](auto f) {
    return Case{{floats({-1, 4})}, {}, [f](Net&, const Tensors& in) -> Tensors { return {f(in[0])}; }};
  };
  using T = const Tensor&;
  expect_whole(one([](T x) { return torch::select_scatter(x, x.narrow(0, 0, 1).squeeze(0), 0, 0); }), "narrow");
  expect_whole(one([](T x) { return torch::select_scatter(x, torch::ones({4}, torch::kDouble), 0, 0); }),
               "select_scatter", "by number");
  expect_whole(one([](T x) {
                 return torch::slice_scatter(x, torch::ones({2, 4}, torch::kDouble), 0, 0, 2);
               }),
               "slice_scatter", "by number");
  expect_whole(one([](T x) { return torch::diagonal_scatter(x, torch::ones({4}, torch::kDouble)); }),
               "diagonal_scatter", "over the batch");
  expect_whole(one([](T x) {
                 return torch::index_reduce(x, 0, torch::tensor({0, 1}), torch::ones({2, 4}, torch::kDouble), "prod");
               }),
               "index_reduce", "by number");
  expect_whole(one([](T x) { return torch::isin(torch::tensor({0.5, 1.0}), x.detach()); }), "isin");
  expect_whole(one([](T x) { return torch::renorm(x, 2, 1, 1.5); }), "renorm", "over the batch");
}

TEST_CASE("batch algebra: index_put by a mask is masked_fill") {
  const auto mask = [](const Tensor& where) { return c10::List<std::optional<Tensor>>({where}); };
  expect_exact({{floats({-1, 3, 5}), labels({-1, 3}, 2)}, {{5}}, [=](Net& net, const Tensors& in) -> Tensors {
                  auto y = in[0] * 2;
                  y.index_put_({in[0] > 1}, 0.5);
                  y.index_put_({in[1] == 1}, net[0]);
                  torch::index_put_(y, mask(in[1] == 0), torch::tensor({2.0}, torch::kDouble), true);
                  y.index_put_({Slice(), torch::tensor({true, false, true})}, 1.5);
                  y.index_put_({Slice(), Slice(), torch::tensor({true, false, true, false, false})},
                               torch::full({}, -1.0, torch::kDouble));
                  return {y, torch::index_put(in[0], mask(in[1] == 1), net[0].sum())};
                }});
  expect_whole({{floats({-1, 4})},
                {},
                [](Net&, const Tensors& in) -> Tensors {
                  auto y = in[0] * 1;
                  y.index_put_({in[0].detach().select(1, 0).argsort() > 100}, 1.0);
                  return {y};
                }},
               "argsort");
}

TEST_CASE("batch algebra: convolutions with weights per sample") {
  expect_exact(
      {{floats({-1, 3, 6, 6}), floats({-1, 4})},
       {{8, 3, 3, 3}, {4, 8}, {3, 2, 2, 2}, {6}},
       [](Net& net, const Tensors& in) -> Tensors {
         const auto b = in[0].size(0);
         const auto style = torch::matmul(in[1], net[1]);
         const auto weights = (net[0].unsqueeze(0) * style.view({b, 8, 1, 1, 1})).view({b * 8, 3, 3, 3});
         const auto y =
             torch::conv2d(in[0].reshape({1, b * 3, 6, 6}), weights, style.flatten(), 1, 1, 1, b).view({b, 8, 6, 6});
         const auto up = (net[2].unsqueeze(0) * style.narrow(1, 0, 3).view({b, 3, 1, 1, 1})).view({b * 3, 2, 2, 2});
         const auto z = torch::conv_transpose2d(in[0].reshape({1, b * 3, 6, 6}), up, {}, 2, 0, 0, b);
         const auto depthwise = torch::conv1d(
             in[0].reshape({1, b * 3, 36}), style.narrow(1, 0, 6).reshape({b * 6, 1, 1}), {}, 1, kNoPadding, 1, b * 3);
         return {y, z.view({b, 2, 12, 12}), depthwise.view({b, 6, 36})};
       }});
  expect_whole({{floats({-1, 3, 4, 4})},
                {{3, 1, 1, 1}},
                [](Net& net, const Tensors& in) -> Tensors {
                  const auto b = in[0].size(0);
                  return {torch::conv2d(in[0].reshape({1, b * 3, 4, 4}),
                                        net[0].repeat({1, 1, 1, 1}).expand({3, 1, 1, 1}).repeat({b, 1, 1, 1}), {}, 1,
                                        kNoPadding, 1, 3 * b)
                              .sum() +
                          torch::conv2d(in[0].transpose(0, 1).reshape({1, 3 * b, 4, 4}), net[0].repeat({b, 1, 1, 1}),
                                        {}, 1, kNoPadding, 1, 3 * b)
                              .sum()};
                }},
               "conv2d");
}

TEST_CASE("batch algebra: take from a shared table, vdot") {
  expect_exact(
      {{floats({-1, 3}), labels({-1, 2}, 12)}, {{4, 3}}, [](Net& net, const Tensors& in) -> Tensors {
         return {net[0].take(in[1]), torch::vdot(in[0].sum(1), in[0].select(1, 0)), torch::_safe_softmax(in[0], 1)};
       }});
  const auto one = [](auto f) {
    return Case{{floats({-1, 4})}, {}, [f](Net&, const Tensors& in) -> Tensors { return {f(in[0])}; }};
  };
  using T = const Tensor&;
  expect_whole(one([](T x) { return x.take(torch::tensor({0, 3})); }), "take", "flattened");
  expect_whole(one([](T x) { return torch::dist(x, x * 2); }), "dist");
}

TEST_CASE("batch algebra: quantiles of several probabilities") {
  expect_exact({{floats({-1, 6})}, {}, [](Net&, const Tensors& in) -> Tensors {
                  const auto q = torch::tensor({0.25, 0.5}, torch::kDouble);
                  return {torch::quantile(in[0], q, 1), torch::nanquantile(in[0], q, 1),
                          torch::quantile(in[0], q, 1, true), torch::nanquantile(in[0], 0.3, 1, true),
                          torch::nanquantile(in[0], torch::full({}, 0.5, torch::kDouble), 1)};
                }});
}

}  // namespace operators_test
}  // namespace
