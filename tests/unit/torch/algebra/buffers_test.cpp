#include "slice_checks.hpp"

#include "capture/algebra/batch_algebra.hpp"

namespace {

using namespace autopar;
using namespace autopar::test;

const Arg kRows{{-1, 4}};

Case with_buffer(Function function, Tensors buffers) {
  return {{kRows}, {{4}}, std::move(function), std::move(buffers)};
}

Tensor some() { return torch::tensor({0.5, -1.0, 2.0, 0.25}, torch::kDouble); }

Tensor batch_norm(Net& net, const Tensor& x, bool training) {
  return torch::batch_norm(x, net[0], {}, net.state(0), net.state(1), training, 0.1, 1e-5, false);
}

}  // namespace

TEST_CASE("buffers: an update from parameters runs once per call") {
  const auto planned = expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        const auto y = in[0] + net.state(0);
        at::NoGradGuard no_grad;
        net.state(0).mul_(0.9).add_(net[0] * 0.1);
        net.state(1).add_(1);
        return {y};
      },
      {some(), torch::zeros({}, torch::kLong)}));
  REQUIRE(planned.plan.buffer_updates.size() == 2);
  for (const auto& update : planned.plan.buffer_updates) {
    CHECK(update.kind == algebra::BufferUpdateKind::kReplicated);
    CHECK_FALSE(update.ops.empty());
    const bool counts = planned.graph.value(update.buffer).dtype == torch::kLong;
    CHECK(planned.plan.handling(update.ops.back()).in_stage != counts);
  }
}

TEST_CASE("buffers: one read after its update is a private copy") {
  const auto planned = expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        {
          at::NoGradGuard no_grad;
          net.state(0).copy_(net.state(0) / net.state(0).norm() + net[0]);
        }
        return {in[0] * net.state(0)};
      },
      {some()}));
  REQUIRE(planned.plan.buffer_updates.size() == 1);
  CHECK(planned.plan.handling(planned.plan.buffer_updates[0].ops.back()).in_stage);
}

TEST_CASE("buffers: a mean over samples is a partial sum") {
  const auto planned = expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        const auto y = (in[0] * net[0]).tanh();
        {
          at::NoGradGuard no_grad;
          net.state(0).mul_(0.9).add_(y.mean(0), 0.1);
        }
        return {y.sum()};
      },
      {some()}));
  REQUIRE(planned.plan.buffer_updates.size() == 1);
  CHECK(planned.plan.buffer_updates[0].kind == algebra::BufferUpdateKind::kPartialSum);
}

TEST_CASE("buffers: a batch statistic needs the whole batch") {
  const auto planned = expect_whole(with_buffer(
                                        [](Net& net, const Tensors& in) -> Tensors {
                                          const auto y = (in[0] * net[0]).tanh();
                                          {
                                            at::NoGradGuard no_grad;
                                            net.state(0).mul_(0.9).add_(y.var(0), 0.1);
                                          }
                                          return {y.sum()};
                                        },
                                        {some()}),
                                    "var");
  REQUIRE(planned.plan.buffer_updates.size() == 1);
  CHECK(planned.plan.buffer_updates[0].kind == algebra::BufferUpdateKind::kWholeBatch);
}

TEST_CASE("buffers: a partial sum into a view needs the whole batch") {
  expect_whole(with_buffer(
                   [](Net& net, const Tensors& in) -> Tensors {
                     const auto y = (in[0] * net[0]).tanh();
                     {
                       at::NoGradGuard no_grad;
                       net.state(0).select(0, 1).add_(y.sum());
                     }
                     return {y};
                   },
                   {some()}),
               "add_", "read elsewhere");
}

TEST_CASE("buffers: batch norm in evaluation is element-wise") {
  expect_exact(with_buffer([](Net& net, const Tensors& in) -> Tensors { return {batch_norm(net, in[0], false)}; },
                           {some(), some().abs()}));
}

TEST_CASE("buffers: running statistics are pooled over micro-batches") {
  Net net({{4}}, {some(), some().abs()});
  const auto test = with_buffer([](Net& n, const Tensors& in) -> Tensors { return {batch_norm(n, in[0], true)}; },
                                {some(), some().abs()});
  const auto planned = plan_of(test, net);
  REQUIRE(planned.plan.batch_norms.size() == 1);
  const auto& norm = planned.plan.batch_norms[0];
  CHECK(norm.running_mean.valid());
  CHECK(norm.running_var.valid());
  CHECK(norm.momentum == Approx(0.1));
  CHECK(norm.samples == SizeExpr{1, 0});
  CHECK(planned.plan.buffer_updates.empty());

  const auto x = make(kRows, 9);
  net.state(0).copy_(test.buffers[0]);
  net.state(1).copy_(test.buffers[1]);
  (void)batch_norm(net, x, true);
  const Tensors expected{net.state(0).clone(), net.state(1).clone()};
  net.state(0).copy_(test.buffers[0]);
  net.state(1).copy_(test.buffers[1]);
  (void)SliceInterpreter(planned.graph, planned.plan, net, {x}, 9).run({{0, 9}}, {{0, 2}, {2, 2}, {2, 9}});
  require_equal({net.state(0), net.state(1)}, expected, "running statistic");
}

TEST_CASE("buffers: instance norm's running statistics are averaged") {
  const auto norm = [](Net& net, const Tensor& x, bool training) {
    return torch::instance_norm(x, net[0], {}, net.state(0), net.state(1), training, 0.1, 1e-5, false);
  };
  for (const bool training : {true, false}) {
    expect_exact({{{{-1, 4, 3}}},
                  {{4}},
                  [=](Net& net, const Tensors& in) -> Tensors { return {norm(net, in[0], training) * 2}; },
                  {some(), some().abs()}});
  }
  Net net({{4}}, {some(), some().abs()});
  const Case test{{{{-1, 4, 3}}},
                  {{4}},
                  [=](Net& n, const Tensors& in) -> Tensors { return {norm(n, in[0], true)}; },
                  {some(), some().abs()}};
  const auto planned = plan_of(test, net);
  REQUIRE(planned.plan.batch_norms.size() == 1);
  CHECK(planned.plan.batch_norms[0].by_sample);
  CHECK_FALSE(planned.plan.normalises_by_slice(planned.plan.batch_norms[0].op));
  expect_whole({{{{3, 4, -1}}},
                {{4}},
                [=](Net& n, const Tensors& in) -> Tensors { return {norm(n, in[0], true).sum(1)}; },
                {some(), some().abs()}},
               "instance_norm", "over the batch");
}

TEST_CASE("buffers: batch norm without running statistics has none") {
  Net net({{4}}, {});
  const Case test{{{{-1, 4, 3}}}, {{4}}, [](Net& n, const Tensors& in) -> Tensors {
                    return {torch::batch_norm(in[0], n[0], {}, {}, {}, true, 0.1, 1e-5, false)};
                  }};
  const auto planned = plan_of(test, net);
  REQUIRE(planned.plan.batch_norms.size() == 1);
  CHECK_FALSE(planned.plan.batch_norms[0].running_mean.valid());
  CHECK(planned.plan.batch_norms[0].samples == SizeExpr{3, 0});
}

TEST_CASE("buffers: exact batch norm needs the whole batch") {
  auto test =
      with_buffer([](Net& net, const Tensors& in) -> Tensors { return {batch_norm(net, in[0] * 2, true).sum(1)}; },
                  {some(), some().abs()});
  test.batch_norm = BatchNormMode::kExact;
  const auto planned = expect_whole(test, "batch_norm", "exact");
  CHECK(planned.plan.buffer_updates.size() == 2);
}

TEST_CASE("buffers: a sample counter counts the global batch") {
  expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        at::NoGradGuard no_grad;
        net.state(0).add_(in[0].size(0));
        return {in[0] * 2};
      },
      {torch::zeros({}, torch::kLong)}));
}

namespace {

/// What moves codes to the means of the samples next to them, smoothed: states are counts, sums and codes.
Tensors move_codes(Net& net, const Tensors& in, bool overwrite_counts) {
  const auto x = in[0] * net[0];
  const auto codes = net.state(2) * 1.0;
  const auto nearest = torch::cdist(x, codes).argmin(1);
  const auto taken = codes.index_select(0, nearest);
  at::NoGradGuard no_grad;
  const auto hits = torch::one_hot(nearest, 3).to(torch::kDouble);
  net.state(0).mul_(0.9).add_(hits.sum(0), 0.1);
  net.state(1).mul_(0.9).add_(torch::matmul(hits.t(), x), 0.1);
  const auto total = net.state(0).sum();
  const auto smoothed = (net.state(0) + 1e-5) / (total + 3e-5) * total;
  if (overwrite_counts) net.state(0).copy_(smoothed);
  net.state(2).copy_(net.state(1) / smoothed.unsqueeze(1));
  return {taken * x, net.state(0).sum()};
}

}  // namespace

TEST_CASE("buffers: updates from completed sums run after the pipeline") {
  const Tensors states{torch::ones({3}, torch::kDouble), torch::rand({3, 4}, torch::kDouble),
                       torch::rand({3, 4}, torch::kDouble)};
  for (const bool overwrite_counts : {false, true}) {
    const auto planned = expect_exact(with_buffer(
        [=](Net& net, const Tensors& in) -> Tensors { return {move_codes(net, in, overwrite_counts)[0]}; }, states));
    REQUIRE(planned.plan.buffer_updates.size() == 3);
    const std::vector<bool> after_sums{overwrite_counts, false, true};
    for (std::size_t k = 0; k < after_sums.size(); ++k) {
      const auto& update = planned.plan.buffer_updates[k];
      CHECK(update.kind == algebra::BufferUpdateKind::kPartialSum);
      CHECK(planned.plan.handling(planned.graph.value(update.result).definer).in_epilogue == after_sums[k]);
    }
  }
  // in place, and a result of the new value
  expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        const auto y = in[0] * net[0];
        at::NoGradGuard no_grad;
        net.state(0).add_(y.pow(2).mean(0).sqrt());
        return {in[0] * 2, net.state(0) * 3};
      },
      {torch::ones({4}, torch::kDouble)}));
  // read again for each sample: the whole batch
  expect_whole(with_buffer(
                   [](Net& net, const Tensors& in) -> Tensors {
                     const auto y = in[0] * net[0];
                     at::NoGradGuard no_grad;
                     net.state(0).copy_(y.pow(2).mean(0).sqrt());
                     return {in[0] * net.state(0)};
                   },
                   {torch::ones({4}, torch::kDouble)}),
               "sqrt");
  // a view that was taken before shows the new value as well
  expect_whole(with_buffer(
                   [](Net& net, const Tensors& in) -> Tensors {
                     const auto y = in[0] * net[0];
                     at::NoGradGuard no_grad;
                     const auto view = net.state(0).view({2, 2});
                     net.state(0).copy_(y.pow(2).mean(0).sqrt());
                     return {in[0] * view.reshape({4})};
                   },
                   {torch::ones({4}, torch::kDouble)}),
               "sqrt");
}

TEST_CASE("buffers: the epilogue reads values before the update") {
  expect_exact(with_buffer(
      [](Net& net, const Tensors& in) -> Tensors {
        const auto scaled = (in[0] * net[0]).mean().exp() * net.state(0).clone();
        at::NoGradGuard no_grad;
        net.state(0).add_(in[0].sum(0));
        return {scaled, in[0] * 2};
      },
      {torch::ones({4}, torch::kDouble)}));
}

TEST_CASE("batch algebra: results that are not exact are refused") {
  expect_refused({{kRows}, {{4}}, [](Net&, const Tensors& in) -> Tensors { return {torch::mm(in[0], in[0].t())}; }},
                 "neither one row for each sample nor a sum");
  expect_refused({{kRows}, {{4}}, [](Net&, const Tensors& in) -> Tensors { return {torch::arange(in[0].size(0))}; }},
                 "neither one row for each sample nor a sum");
  expect_refused(
      {{{{-1}, 3}},
       {{4, 3}},
       [](Net& net, const Tensors& in) -> Tensors { return {torch::embedding(net[0], in[0].abs(), -1, false, true)}; }},
      "sparse");
}

TEST_CASE("batch algebra: loss mode is for one differentiable sum") {
  const auto mode = [](Function function) {
    Net net({{4}}, {});
    return plan_of({{kRows}, {{4}}, std::move(function)}, net).plan.loss_mode;
  };
  CHECK(mode([](Net& net, const Tensors& in) -> Tensors { return {(in[0] * net[0]).mean()}; }));
  CHECK(mode([](Net& net, const Tensors& in) -> Tensors {
    const auto y = in[0] * net[0];
    return {y.mean(), y.detach()};
  }));
  CHECK_FALSE(mode([](Net& net, const Tensors& in) -> Tensors { return {(in[0] * net[0]).mean(), in[0] * net[0]}; }));
  CHECK_FALSE(mode([](Net& net, const Tensors& in) -> Tensors { return {(in[0] * net[0]).sum(0)}; }));
  CHECK_FALSE(mode([](Net& net, const Tensors& in) -> Tensors { return {in[0] * net[0]}; }));
  CHECK_FALSE(mode([](Net& net, const Tensors& in) -> Tensors { return {(in[0] * net[0]).mean().exp()}; }));
}
