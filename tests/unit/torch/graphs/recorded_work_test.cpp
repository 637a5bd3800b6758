#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>

#include <catch_shim.hpp>

#include "torch/graphs/recorded_work.hpp"

namespace autopar {

namespace {

/// What a device writes to, without holding it.
at::Tensor memory_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

/// Work of the host in place of a device's: sum(x), 2 x and 3 x.
struct Recording final : devices::DeviceRecording {
  Recording(const at::Tensor& x, const std::vector<at::Tensor>& made) : x_(memory_of(x)) {
    for (const auto& tensor : made) made_.push_back(tensor.defined() ? memory_of(tensor) : at::Tensor());
  }
  void run() const override {
    made_[0].copy_(x_.sum());
    made_[1].copy_(x_.mul(2));
    made_[2].copy_(x_.mul(3));
  }

 private:
  at::Tensor x_;
  mutable std::vector<at::Tensor> made_;
};

at::Tensor numbers(double first) { return at::arange(first, first + 20000, at::kDouble); }

graphs::RecordedWork work_on(const at::Tensor& x) {
  std::vector<at::Tensor> made{x.sum(), at::empty_like(x), at::empty_like(x), at::Tensor()};
  auto recording = std::make_unique<Recording>(x, made);
  return {std::move(recording), {x, at::Tensor()}, std::move(made), 2};
}

}  // namespace

TEST_CASE("CUDA graph: reads new inputs, small results are copied", "[torch]") {
  auto work = work_on(numbers(0));
  const auto loss = work.run({numbers(1), at::Tensor()})[0];
  CHECK(work.is_free());  // the caller has kept nothing else
  const auto made = work.run({numbers(2).to(at::kFloat), at::Tensor()});
  REQUIRE(made.size() == 4);
  CHECK(loss.item<double>() == numbers(1).sum().item<double>());
  CHECK(made[0].item<double>() == numbers(2).sum().item<double>());
  CHECK(at::equal(made[1], numbers(2).mul(2)));
  CHECK(at::equal(made[2], numbers(2).mul(3)));
  CHECK_FALSE(made[3].defined());
}

TEST_CASE("CUDA graph: inputs keep the version that autograd saved", "[torch]") {
  const auto x = numbers(0);
  auto work = work_on(x);
  const auto version = x._version();
  static_cast<void>(work.run({numbers(1), at::Tensor()}));
  CHECK(at::equal(x, numbers(1)));
  CHECK(x._version() == version);
}

TEST_CASE("CUDA graph: busy while a result or its view is held", "[torch]") {
  auto work = work_on(numbers(0));
  auto made = work.run({numbers(1), at::Tensor()});
  CHECK_FALSE(work.is_free());
  auto part = made[2].slice(0, 0, 1);
  made.clear();
  CHECK_FALSE(work.is_free());
  part.reset();
  CHECK(work.is_free());
}

}  // namespace autopar
