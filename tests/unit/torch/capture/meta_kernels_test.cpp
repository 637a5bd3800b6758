// Shape rules against the operators that they stand for.
#include "capture/shapes/meta_kernels.hpp"

#include <torch/library.h>

#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <torch/nn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

namespace autopar::test {
namespace {
namespace meta_kernels_test {

using at::Tensor;
using Function = std::function<Tensors(const Tensors&)>;

std::string form_of(const Tensors& tensors) {
  std::ostringstream out;
  for (const auto& tensor : tensors) {
    out << tensor.sizes() << " " << tensor.strides() << " " << tensor.scalar_type() << " " << tensor.requires_grad()
        << "; ";
  }
  return out.str();
}

Tensor meta_of(const Tensor& tensor) {
  auto meta = torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(torch::kMeta));
  return meta.set_requires_grad(tensor.requires_grad());
}

void require_same_form(const std::string& name, const Tensors& in, const Function& function) {
  shapes::install_meta_kernels();
  Tensors metas;
  for (const auto& tensor : in) metas.push_back(meta_of(tensor));
  INFO(name << " of " << form_of(in));
  Tensors expected;
  try {
    expected = function(in);
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    INFO(said);
    CHECK_THROWS(function(metas));
    return;
  }
  CHECK(form_of(function(metas)) == form_of(expected));
}

}  // namespace meta_kernels_test
}  // namespace

using at::Tensor;
using meta_kernels_test::require_same_form;

TEST_CASE("meta kernels: attention's shapes and strides equal the CPU's", "[meta]") {
  torch::manual_seed(2);
  std::mt19937 random(3);
  const auto one_of = [&](std::initializer_list<std::int64_t> list) { return list.begin()[random() % list.size()]; };
  for (int i = 0; i < 300; ++i) {
    const auto type = i % 5 == 0 ? torch::kDouble : i % 7 == 0 ? torch::kBFloat16 : torch::kFloat;
    const auto batch = one_of({1, 2, 3}), heads = one_of({1, 4}), length = one_of({1, 5, 8}), width = one_of({4, 8});
    const bool grouped = i % 6 == 0, causal = i % 4 == 1, by_four = i % 3 != 0;
    const auto key_heads = grouped ? std::max<std::int64_t>(1, heads / 2) : heads;
    const auto keys = causal ? length : one_of({3, 5, 9}), value_width = one_of({width, width, 6});
    const auto make = [&](std::int64_t h, std::int64_t l, std::int64_t w, bool transposed) {
      auto x = transposed ? torch::randn({batch, l, h, w}, type).transpose(1, 2) : torch::randn({batch, h, l, w}, type);
      return by_four ? x : x.select(1, 0).contiguous();
    };
    Tensors in{make(heads, length, width, i % 2 == 0), make(key_heads, keys, width, i % 2 == 0),
               make(key_heads, keys, value_width, i % 2 == 0)};
    if (i % 2 == 1) in[0].set_requires_grad(true);
    if (!causal && i % 3 != 2) {
      const bool of_samples = by_four && i % 8 < 4;
      auto mask = torch::randn(
          of_samples ? std::vector<std::int64_t>{batch, 1, length, keys} : std::vector<std::int64_t>{length, keys},
          type);
      in.push_back(i % 9 < 3 ? mask > -1 : mask);
      if (i % 10 == 9 && in.back().is_floating_point()) in.back().set_requires_grad(true);
    }
    const double dropout = i % 11 == 0 ? 0.3 : 0.0;
    const std::optional<double> scale = i % 13 == 0 ? std::optional(0.2) : std::nullopt;
    require_same_form("attention", in, [&](const Tensors& x) -> Tensors {
      const auto mask = x.size() > 3 ? std::optional(x[3]) : std::nullopt;
      return {at::scaled_dot_product_attention(x[0], x[1], x[2], mask, dropout, causal, scale, grouped)};
    });
  }
}

namespace attention_layout_test {

/// Attention with dropout, of one layer's queries, keys and values.
struct Attention : TestModel {
  torch::nn::Linear qkv{8, 24};
  Attention() { register_module("qkv", qkv); }
  Tensors run(const Tensors& in) override {
    const auto n = in[0].size(0), tokens = in[0].size(1);
    const auto parts = qkv(in[0]).view({n, tokens, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.1);
    return {mixed.transpose(1, 2).reshape({n, tokens, 8})};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 5, 8})}; }
};

/// Whether heads are brought together in the memory that attention has made.
bool views_heads(c10::DeviceType device) {
  Attention net;
  trace::CaptureOptions options;
  options.device = device;
  const auto forward = [&](const Tensors& in) { return net.run(in); };
  const auto graph = trace::capture(net, {trace::input_spec(net.arguments(7)[0])}, forward, options);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!graph.is(OpId::of(i), "aten::scaled_dot_product_attention")) continue;
    const auto& made = graph.value(graph.output(OpId::of(i)));
    CHECK(made.requires_grad);
    return made.storage == graph.value(graph.outputs[0]).storage;
  }
  FAIL("no attention was captured");
  return false;
}

}  // namespace attention_layout_test

TEST_CASE("meta kernels: attention with dropout has the device's layout", "[meta]") {
  CHECK_FALSE(attention_layout_test::views_heads(at::kCPU));
  CHECK(attention_layout_test::views_heads(at::kCUDA));
}

namespace {

using Require =
    std::function<void(const std::string& name, const Tensors& in, const meta_kernels_test::Function& function)>;

void require_forms(const Tensor& image, const Tensor& volume, const Tensor& rows, const Require& require_same_form) {
  const auto last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const auto of = [](const std::tuple<Tensor, Tensor>& pair) { return Tensors{std::get<0>(pair), std::get<1>(pair)}; };
  for (const auto& x : image.size(0) > 0 ? Tensors{image, image[0]} : Tensors{image}) {
    require_same_form("im2col", {x}, [](const Tensors& in) -> Tensors {
      return {at::im2col(in[0], {3, 2}, {1, 2}, {1, 0}, {2, 1})};
    });
  }
  const auto columns = torch::randn({2, 12, 42});
  for (const auto& x : {columns, columns[0]}) {
    require_same_form("col2im", {x}, [](const Tensors& in) -> Tensors {
      return {at::col2im(in[0], {8, 7}, {2, 2}, {1, 1}, {0, 0}, {1, 1})};
    });
  }
  const bool has_windows = image.size(1) > 0 && image.size(2) > 1 && image.size(3) > 1;
  for (const auto& x : has_windows ? Tensors{image, last} : Tensors{}) {
    const auto [pooled, at_most] = at::max_pool2d_with_indices(x, 2);
    require_same_form("max_unpool2d", {pooled, at_most}, [](const Tensors& in) -> Tensors {
      return {at::max_unpool2d(in[0], in[1], {9, 7})};
    });
  }
  require_same_form("grid_sampler_3d", {volume, torch::rand({2, 2, 3, 4, 3})},
                    [](const Tensors& in) -> Tensors { return {at::grid_sampler_3d(in[0], in[1], 0, 0, false)}; });
  for (const std::int64_t dim : {0, 1, -1}) {
    for (const bool keep : {false, true}) {
      require_same_form("kthvalue", {image}, [&](const Tensors& in) { return of(at::kthvalue(in[0], 1, dim, keep)); });
      require_same_form("median", {image}, [&](const Tensors& in) { return of(at::median(in[0], dim, keep)); });
      require_same_form("nanmedian", {image}, [&](const Tensors& in) { return of(at::nanmedian(in[0], dim, keep)); });
      require_same_form("mode", {image}, [&](const Tensors& in) { return of(at::mode(in[0], dim, keep)); });
      require_same_form("nansum", {image},
                        [&](const Tensors& in) -> Tensors { return {at::nansum(in[0], dim, keep)}; });
    }
    require_same_form("logcumsumexp", {image},
                      [&](const Tensors& in) -> Tensors { return {at::logcumsumexp(in[0], dim)}; });
    require_same_form("cummax", {image}, [&](const Tensors& in) { return of(at::cummax(in[0], dim)); });
    require_same_form("cummin", {image}, [&](const Tensors& in) { return of(at::cummin(in[0], dim)); });
  }
  require_same_form("nansum of all", {image}, [](const Tensors& in) -> Tensors { return {at::nansum(in[0])}; });
  require_same_form("histc", {image}, [](const Tensors& in) -> Tensors { return {at::histc(in[0], 7)}; });
  require_same_form("searchsorted", {std::get<0>(rows.sort()), rows},
                    [](const Tensors& in) -> Tensors { return {at::searchsorted(in[0], in[1], true)}; });
  require_same_form("addbmm", {torch::randn({5, 3}), torch::randn({2, 5, 4}), torch::randn({2, 4, 3})},
                    [](const Tensors& in) -> Tensors { return {at::addbmm(in[0], in[1], in[2])}; });
  require_same_form("cdist", {torch::randn({2, 1, 5, 4}), torch::randn({3, 6, 4})},
                    [](const Tensors& in) -> Tensors { return {at::cdist(in[0], in[1])}; });
  for (const std::int64_t by : {0, 1, 2}) {
    require_same_form(
        "embedding_bag", {rows, torch::tensor({0, 3, 2, 1, 1}), torch::tensor({0, 2, 4})},
        [&](const Tensors& in) -> Tensors { return {std::get<0>(at::embedding_bag(in[0], in[1], in[2], false, by))}; });
  }
  require_same_form("pdist", {rows}, [](const Tensors& in) -> Tensors { return {at::pdist(in[0])}; });
  for (const std::int64_t dim : rows.numel() > 0 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{}) {
    const auto g = at::norm_except_dim(rows, 2, dim);
    require_same_form("weight_norm", {rows, g},
                      [&](const Tensors& in) -> Tensors { return {at::_weight_norm(in[0], in[1], dim)}; });
  }
  for (const std::int64_t reduction : {0, 1, 2}) {
    const auto targets = torch::tensor({0, 1, 2, 3}), several = torch::zeros({4, 6}, torch::kLong);
    require_same_form("multi_margin_loss", {rows, targets}, [&](const Tensors& in) -> Tensors {
      return {at::multi_margin_loss(in[0], in[1], 1, 1, {}, reduction)};
    });
    require_same_form("multilabel_margin_loss", {rows, several}, [&](const Tensors& in) -> Tensors {
      return {at::multilabel_margin_loss(in[0], in[1], reduction)};
    });
  }
  require_same_form("native_dropout", {last},
                    [&](const Tensors& in) { return of(at::native_dropout(in[0], 0.3, true)); });
  require_same_form("rrelu", {image}, [](const Tensors& in) -> Tensors { return {at::rrelu(in[0], 0.1, 0.3, true)}; });
  require_same_form("gamma", {rows.abs()}, [](const Tensors& in) -> Tensors { return {at::_standard_gamma(in[0])}; });
  for (const std::int64_t offset : {-7, -2, 0, 1, 3, 9}) {
    const auto indices = [&](const auto& function) {
      const auto cpu = function(torch::kCPU), meta = function(torch::kMeta);
      CHECK(cpu.sizes() == meta.sizes());
      CHECK(cpu.scalar_type() == meta.scalar_type());
    };
    indices([&](auto device) { return at::tril_indices(4, 6, offset, torch::dtype(torch::kLong).device(device)); });
    indices([&](auto device) { return at::triu_indices(4, 6, offset, torch::dtype(torch::kLong).device(device)); });
  }
}

}  // namespace

TEST_CASE("meta kernels: shapes and strides of models equal the CPU's", "[meta]") {
  torch::manual_seed(2);
  require_forms(torch::randn({2, 6, 9, 7}), torch::randn({2, 3, 6, 5, 4}), torch::randn({4, 6}), require_same_form);
}

TEST_CASE("meta kernels: equal the CPU's with every dim 0 or 1", "[meta]") {
  torch::manual_seed(2);
  using Sizes = std::vector<std::int64_t>;
  int compared = 0;
  const auto where_it_runs = [&](const std::string& name, const Tensors& in,
                                 const meta_kernels_test::Function& function) {
    try {
      (void)function(in);
    } catch (const c10::Error&) {
      return;
    }
    ++compared;
    require_same_form(name, in, function);
  };
  const Sizes image{2, 6, 9, 7}, volume{2, 3, 6, 5, 4}, rows{4, 6};
  const auto with = [](Sizes sizes, std::size_t dim, std::int64_t size) {
    if (dim < sizes.size()) sizes[dim] = size;
    return torch::randn(sizes);
  };
  for (std::size_t dim = 0; dim < volume.size(); ++dim) {
    for (const std::int64_t size : {0, 1}) {
      INFO("dim " << dim << " of " << size);
      require_forms(with(image, dim, size), with(volume, dim, size), with(rows, dim, size), where_it_runs);
    }
  }
  CHECK(compared > 300);
}

namespace {

int tried = 0;

Tensor halved(const Tensor& x) {
  ++tried;
  return x.slice(1, 0, x.size(1) / 2).clone();
}

Tensor halved_form(const Tensor& x) { return at::empty({x.size(0), x.size(1) / 2}, x.options()); }

Tensor half_of(const Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("autopar_meta_test::half", "").typed<Tensor(const Tensor&)>();
  return op.call(x);
}

}  // namespace

TEST_CASE("meta kernels: an unknown operator is run only if small", "[meta]") {
  static torch::Library definitions(torch::Library::DEF, "autopar_meta_test", {}, __FILE__, __LINE__);
  definitions.def("half(Tensor x) -> Tensor");
  static torch::Library kernels(torch::Library::IMPL, "autopar_meta_test", c10::DispatchKey::CPU, __FILE__, __LINE__);
  kernels.impl("half", &halved);
  const auto capture_of = [](const auto& model) { return capture_model(*model); };
  const auto small = model_of([](Tensor y, Tensor) { return half_of(y).sum(); });
  const auto large = model_of([](Tensor y, Tensor) { return half_of(y.repeat({1, 40000})).sum(); });
  const auto graph = capture_of(small);
  const auto forward = [&](const Tensors& in) { return small->run(in); };
  const std::vector<std::int64_t> batches{200000};
  tried = 0;
  REQUIRE_NOTHROW(trace::verify_capture(graph, *small, specs(small->arguments(4)), forward, batches));
  REQUIRE(tried == 0);
  try {
    (void)capture_of(large);
    FAIL("captured what it should refuse");
  } catch (const CaptureError& error) {
    REQUIRE(error.op() == "autopar_meta_test::half");
    REQUIRE_THAT(error.reason(), Catch::Matchers::Contains("TORCH_LIBRARY_IMPL(autopar_meta_test, Meta, m)"));
  }
  REQUIRE(tried == 0);
  static torch::Library forms(torch::Library::IMPL, "autopar_meta_test", c10::DispatchKey::Meta, __FILE__, __LINE__);
  forms.impl("half", &halved_form);
  REQUIRE_NOTHROW(capture_of(large));
  REQUIRE(tried == 0);
}

TEST_CASE("capture: set_ on memory of others is refused by name", "[meta]") {
  const auto data = torch::ones({8, 8});
  const auto model = model_of([](Tensor y, Tensor) { return y.sum(); });
  try {
    (void)trace::capture(*model, specs(model->arguments(4)), [&](const Tensors& in) -> Tensors {
      const torch::NoGradGuard no_grad;
      model->a->weight.set_(data);
      return model->run(in);
    });
    FAIL("captured what it should refuse");
  } catch (const CaptureError& error) {
    REQUIRE(error.op() == "aten::set_");
    REQUIRE(error.path() == "a.weight");
    REQUIRE_THAT(error.reason(), Catch::Matchers::Contains("copy_"));
  }
}

}  // namespace autopar::test
