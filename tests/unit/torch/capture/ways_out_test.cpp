#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <says.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "capture/trace/capture.hpp"

// What a refusal says to do is done here: it captures, and computes what the refused forward computes in one process.
namespace autopar::test {
namespace ways_out {

using at::Tensor;
using torch::indexing::Slice;

struct Net : TestModel {
  using Forward = std::function<Tensor(Net&, const Tensors&)>;
  explicit Net(Forward forward, std::int64_t extra_arguments = 0) : body(std::move(forward)), extra(extra_arguments) {
    torch::manual_seed(11);
    a = register_module("a", torch::nn::Linear(8, 8));
    state = register_buffer("state", torch::linspace(0.5, 1.5, 8));
    flag = register_buffer("initialized", torch::ones({}, torch::kBool));
  }
  Tensors run(const Tensors& in) override { return {body(*this, in)}; }
  Tensors arguments(std::int64_t n) override {
    Tensors in{torch::linspace(-1, 2, n * 8).sin().view({n, 8})};
    for (std::int64_t k = 0; k < extra; ++k) in.push_back(torch::full({}, 3.0));
    return in;
  }
  Tensor hidden(const Tensors& in) { return a(in[0]); }
  Forward body;
  std::int64_t extra;  ///< numbers that all samples share, behind the samples
  torch::nn::Linear a{nullptr};
  Tensor state, flag;
  std::shared_ptr<Tensor> kept = std::make_shared<Tensor>();
  std::array<double, 8> memory{};
  double factor = 3;
  bool initialized = true;
  std::int64_t calls = 0;
};

struct Trained {
  Tensor result;
  Tensors gradients, buffers;
};

/// One call and its backward, of copies of the arguments.
Trained trained(Net& net, const std::function<Tensor(const Tensors&)>& forward, std::int64_t batch) {
  Tensors in;
  for (const auto& argument : net.arguments(batch)) in.push_back(argument.clone());
  net.zero_grad();
  const auto result = forward(in);
  if (result.requires_grad()) (result * result).sum().backward();
  Trained out{result.detach().clone(), {}, {}};
  for (const auto& parameter : net.parameters()) {
    out.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
  }
  for (const auto& buffer : net.buffers()) out.buffers.push_back(buffer.clone());
  return out;
}

std::vector<trace::InputSpec> specs_of(Net& net) {
  std::vector<trace::InputSpec> specs;
  for (const auto& argument : net.arguments(4)) {
    specs.push_back(trace::input_spec(argument, argument.dim() == 0 ? std::nullopt : std::optional<std::int64_t>(0)));
  }
  return specs;
}

OpGraph captured(Net& net, const trace::CaptureOptions& options = {}) {
  return trace::capture(
      net, specs_of(net), [&](const Tensors& in) { return net.run(in); }, options);
}

void require_close(const Tensor& got, const Tensor& want, const std::string& what) {
  INFO(what << ": " << got << " instead of " << want);
  REQUIRE(got.sizes() == want.sizes());
  REQUIRE(torch::allclose(got.to(torch::kDouble), want.to(torch::kDouble), 1e-12, 1e-12));
}

/// The program of `way_out`, replayed, trains as `wanted` does in one process.
void require_way_out(const Net::Forward& way_out, const Net::Forward& wanted, std::int64_t extra) {
  Net net(way_out, extra);
  const auto graph = captured(net);
  for (const std::int64_t batch : {5, 3}) {
    INFO("batch " << batch);
    Net fresh(way_out, extra), reference(wanted, extra);
    replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
    const auto got = trained(
        fresh,
        [&](const Tensors& in) {
          auto environment = replayer.environment();
          replay::bind_state(graph, fresh, environment);
          for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
          replayer.run(environment, {batch, batch});
          return environment[graph.outputs.front().index()];
        },
        batch);
    const auto want = trained(
        reference, [&](const Tensors& in) { return reference.run(in).front(); }, batch);
    require_close(got.result, want.result, "result");
    for (std::size_t i = 0; i < want.gradients.size(); ++i) {
      require_close(got.gradients[i], want.gradients[i], "gradient");
    }
    for (std::size_t i = 0; i < want.buffers.size(); ++i) require_close(got.buffers[i], want.buffers[i], "buffer");
  }
}

struct Way {
  const char* name;
  Net::Forward refused;
  std::vector<std::string> says;
  Net::Forward way_out;
  Net::Forward wanted = {};  ///< in one process; empty: what is refused runs there
  std::int64_t extra = 0;
};

void require_way(const Way& way) {
  INFO(way.name);
  {
    Net net(way.refused, way.extra);
    check_says(way.says, [&] { (void)captured(net); });
  }
  require_way_out(way.way_out, way.wanted ? way.wanted : way.refused, way.extra);
}

TEST_CASE("capture advice: for reading data, works and equals eager", "[ways_out]") {
  const DoublePrecision guard;
  const std::vector<Way> ways{
      {"torch::where instead of if",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return y.sum().item<double>() > 0 ? y.sum() : -y.sum();
       },
       {"aten::item (near a", "torch::where instead of if"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return torch::where(y.sum() > 0, y.sum(), -y.sum());
       }},
      {"a mask instead of a selection",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return y.index({y > 0}).sum();
       },
       {"aten::index", "multiplication by a mask instead of selection"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (y * (y > 0)).sum();
       }},
      {"a number that is computed outside and passed in",
       [](Net& net, const Tensors& in) { return net.hidden(in).sum() * in[1].item<double>(); },
       {"compute it outside the model and pass it in"},
       [](Net& net, const Tensors& in) { return net.hidden(in).sum() * in[1]; },
       {},
       1},
      {"a plain member instead of a flag in a buffer",
       [](Net& net, const Tensors& in) { return net.flag.item<bool>() ? net.hidden(in).sum() : net.hidden(in).mean(); },
       {"near initialized", "plain member of the module (bool, double)"},
       [](Net& net, const Tensors& in) { return net.initialized ? net.hidden(in).sum() : net.hidden(in).mean(); }},
  };
  for (const auto& way : ways) require_way(way);
}

TEST_CASE("capture advice: for writing outside state, works", "[ways_out]") {
  const DoublePrecision guard;
  const auto counter = std::make_shared<Tensor>();
  const auto data = torch::linspace(2, 3, 8);
  const std::vector<Way> ways{
      {"a copy of the argument",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (Tensor(in[0]).mul_(2.0) + y).sum();
       },
       {"aten::mul_", "x.clone()"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (in[0].clone().mul_(2.0) + y).sum();
       },
       [](Net& net, const Tensors& in) { return (in[0] * 2.0 + net.hidden(in)).sum(); }},
      {"a registered buffer",
       [counter](Net& net, const Tensors& in) {
         if (!counter->defined()) *counter = torch::zeros({1});
         counter->add_(1.0);
         return net.hidden(in).sum();
       },
       {"register_buffer"},
       [](Net& net, const Tensors& in) {
         net.state.add_(1.0);
         return net.hidden(in).sum();
       },
       [](Net& net, const Tensors& in) {
         net.state.add_(1.0);
         return net.hidden(in).sum();
       }},
      {"the operator that returns what it writes",
       [](Net& net, const Tensors& in) {
         std::vector<Tensor> list{net.hidden(in).clone()};
         at::_foreach_add_(list, 1.0);
         return list[0].sum();
       },
       {"aten::_foreach_add_", "use the operator that returns what it writes"},
       [](Net& net, const Tensors& in) { return net.hidden(in).clone().add_(1.0).sum(); }},
      {"copy_ instead of set_",
       [data](Net& net, const Tensors& in) {
         const torch::NoGradGuard no_grad;
         net.state.set_(data);
         return (in[0] * net.state).sum();
       },
       {"aten::set_ (near state", "copy the values (copy_) into a registered buffer"},
       [data](Net& net, const Tensors& in) {
         const torch::NoGradGuard no_grad;
         net.state.copy_(data);
         return (in[0] * net.state).sum();
       }},
      {"a copy of sizes of its own",
       [](Net& net, const Tensors& in) {
         net.state.unsqueeze_(0);
         return (net.hidden(in) * net.state).sum();
       },
       {"aten::unsqueeze_", "work on a copy (clone())"},
       [](Net& net, const Tensors& in) { return (net.hidden(in) * net.state.clone().unsqueeze_(0)).sum(); },
       [](Net& net, const Tensors& in) { return (net.hidden(in) * net.state.unsqueeze(0)).sum(); }},
      {"a tensor instead of its storage",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return torch::empty({0}).set_(y.storage(), 0, y.sizes(), y.strides()).sum();
       },
       {"aten::set_ (near a", "use one on the tensor itself (view, as_strided, copy_)"},
       [](Net& net, const Tensors& in) {
         return net.hidden(in).detach().as_strided({in[0].size(0), 8}, {8, 1}).sum();
       }},
      {"borrowed memory without a gradient",
       [](Net& net, const Tensors& in) {
         net.memory.fill(2);
         const auto options = torch::dtype(torch::kDouble).requires_grad(true);
         const auto whole = torch::from_blob(net.memory.data(), {8}, options);
         return (net.hidden(in) * whole + net.hidden(in) * whole.data()).sum();
       },
       {"make it without, or register it as a parameter"},
       [](Net& net, const Tensors& in) {
         net.memory.fill(2);
         const auto whole = torch::from_blob(net.memory.data(), {8}, torch::kDouble);
         return (net.hidden(in) * whole + net.hidden(in) * whole.data()).sum();
       }},
      {"a buffer that is kept between calls",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         const auto before = net.kept->defined() ? *net.kept : torch::zeros({8});
         *net.kept = y.sum(0).detach();
         return (y * before).sum();
       },
       {"Register it as a buffer, or compute it in this forward"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         const auto loss = (y * net.state.clone()).sum();
         net.state.copy_(y.sum(0).detach());
         return loss;
       },
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         const auto loss = (y * net.state.clone()).sum();
         net.state = y.sum(0).detach();
         net.named_buffers()["state"].copy_(net.state);
         return loss;
       }},
      {"computed in this forward",
       [](Net& net, const Tensors& in) {
         if (!net.kept->defined()) *net.kept = net.a->weight.sum(0).detach();
         return (net.hidden(in) * *net.kept).sum();
       },
       {"Register it as a buffer, or compute it in this forward"},
       [](Net& net, const Tensors& in) { return (net.hidden(in) * net.a->weight.sum(0).detach()).sum(); }},
  };
  for (const auto& way : ways) require_way(way);
}

/// Its backward is no operator.
struct SquareFunction : torch::autograd::Function<SquareFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    return {2 * gradient[0] * context->get_saved_variables()[0]};
  }
};

Tensor square_of(const Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("autopar_ways_out::square", "");
  return op.typed<Tensor(const Tensor&)>().call(x);
}

struct RegisteredSquare : torch::autograd::Function<RegisteredSquare> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return square_of(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    return {2 * gradient[0] * context->get_saved_variables()[0]};
  }
};

Tensor square_kernel(const Tensor& x) { return x * x; }
Tensor square_with_gradient(const Tensor& x) { return RegisteredSquare::apply(x); }

void register_square() {
  static torch::Library definitions(torch::Library::DEF, "autopar_ways_out", {}, __FILE__, __LINE__);
  static const bool once = [] {
    definitions.def("square(Tensor x) -> Tensor");
    return true;
  }();
  static_cast<void>(once);
  using c10::DispatchKey;
  constexpr auto kAllDevices = DispatchKey::CompositeExplicitAutograd;
  static torch::Library kernels(torch::Library::IMPL, "autopar_ways_out", kAllDevices, __FILE__, __LINE__);
  static torch::Library gradients(torch::Library::IMPL, "autopar_ways_out", DispatchKey::Autograd, __FILE__, __LINE__);
  static const bool filled = [] {
    kernels.impl("square", &square_kernel);
    gradients.impl("square", &square_with_gradient);
    return true;
  }();
  static_cast<void>(filled);
}

TEST_CASE("capture advice: for autograd functions and hooks, works", "[ways_out]") {
  const DoublePrecision guard;
  register_square();
  const auto squared = [](Net& net, const Tensors& in) { return SquareFunction::apply(net.hidden(in)).sum(); };
  const auto hooked = [](Net& net, const Tensors& in) {
    const auto y = net.hidden(in) * 1;
    if (y.requires_grad()) y.register_hook([](const Tensor& g) { return g * 0.5; });
    return y.pow(2).sum();
  };
  const std::vector<Way> ways{
      {"written with operators",
       squared,
       {"write it with operators"},
       [](Net& net, const Tensors& in) { return net.hidden(in).pow(2).sum(); }},
      {"registered with an Autograd kernel",
       squared,
       {"TORCH_LIBRARY and an Autograd kernel"},
       [](Net& net, const Tensors& in) { return square_of(net.hidden(in)).sum(); }},
      {"operators instead of a hook",
       hooked,
       {"register_hook", "x * s + (x * (1 - s)).detach()"},
       [](Net& net, const Tensors& in) {
         const auto x = net.hidden(in);
         const double s = 0.5;
         return (x * s + (x * (1 - s)).detach()).pow(2).sum();
       }},
      {"the derivative with operators",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (y + torch::autograd::grad({y.pow(2).sum()}, {y}, {}, true, true)[0]).sum();
       },
       {"write the derivative with operators"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (y + 2 * y).sum();
       }},
      {"the loss returned",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         y.sum().backward();
         return y.sum();
       },
       {"return the loss instead"},
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(); },
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(); }},
      {"detach()",
       [](Net& net, const Tensors& in) { return net.hidden(in).detach().requires_grad_(true).sum(); },
       {"requires_grad_", "use detach()"},
       [](Net& net, const Tensors& in) { return net.hidden(in).detach().sum(); },
       [](Net& net, const Tensors& in) { return net.hidden(in).detach().sum(); }},
      {"detach() of what is computed",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         y.requires_grad_(false);
         return (y * net.a->bias).sum();
       },
       {"requires_grad_ (near a", "use detach()"},
       [](Net& net, const Tensors& in) { return (net.hidden(in).detach() * net.a->bias).sum(); },
       [](Net& net, const Tensors& in) { return (net.hidden(in).detach() * net.a->bias).sum(); }},
      {"detach() of what is returned",
       [](Net& net, const Tensors& in) { return net.hidden(in).requires_grad_(false); },
       {"requires_grad_", "use detach()"},
       [](Net& net, const Tensors& in) { return net.hidden(in).detach(); },
       [](Net& net, const Tensors& in) { return net.hidden(in).detach(); }},
      {"changed before the call",
       [](Net& net, const Tensors& in) {
         net.a->bias.set_requires_grad(false);
         return net.hidden(in).sum();
       },
       {"requires_grad_", "change it before the call"},
       [](Net& net, const Tensors& in) { return torch::linear(in[0], net.a->weight, net.a->bias.detach()).sum(); }},
      {"made without a gradient",
       [](Net& net, const Tensors& in) { return (net.hidden(in) * torch::ones({8}, torch::requires_grad())).sum(); },
       {"requires_grad_", "make the tensor without it"},
       [](Net& net, const Tensors& in) { return (net.hidden(in) * torch::ones({8})).sum(); }},
      {"reshaped out of place",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in) * 1;
         y.unsafeGetTensorImpl()->set_sizes_contiguous({y.numel()});
         return y.sum();
       },
       {"reshape it out of place"},
       [](Net& net, const Tensors& in) { return net.hidden(in).view({-1}).sum(); },
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(); }},
      {"CUDA autocast left off",
       [](Net& net, const Tensors& in) {
         at::autocast::set_autocast_enabled(at::kCUDA, true);
         struct Off {
           ~Off() { at::autocast::set_autocast_enabled(at::kCUDA, false); }
         } off;
         return net.hidden(in).sum();
       },
       {"CUDA autocast", "leave it off"},
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(); }},
  };
  for (const auto& way : ways) require_way(way);
}

TEST_CASE("capture advice: change gradients after backward, not by hook", "[ways_out]") {
  const DoublePrecision guard;
  const Net::Forward forward = [](Net& net, const Tensors& in) { return net.hidden(in).sum(); };
  Net hooked(forward), plain(forward);
  hooked.a->weight.register_hook([](const Tensor& g) { return g * 2; });
  check_says({"near a.weight", "change the gradients after backward"}, [&] { (void)captured(hooked); });
  (void)captured(plain);
  const auto want = trained(
      hooked, [&](const Tensors& in) { return hooked.run(in).front(); }, 5);
  const auto got = trained(
      plain, [&](const Tensors& in) { return plain.run(in).front(); }, 5);
  require_close(got.gradients[0] * 2, want.gradients[0], "gradient of the weight");
}

TEST_CASE("capture advice: for batch-dependent programs, works", "[ways_out]") {
  const DoublePrecision guard;
  const std::vector<Way> ways{
      {"no loop over samples",
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         auto sum = y[0].sum();
         for (std::int64_t i = 1; i < in[0].size(0); ++i) sum = sum + y[i].sum();
         return sum;
       },
       {"loop", "use operators that take the batch as it is"},
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(); }},
      {"no list of samples",
       [](Net& net, const Tensors& in) { return torch::stack(net.hidden(in).tanh().unbind(0)).sum(); },
       {"use operators that take the batch as it is"},
       [](Net& net, const Tensors& in) { return net.hidden(in).tanh().sum(); }},
      {"size(0) as an operand",
       [](Net& net, const Tensors& in) {
         const auto n = static_cast<double>(in[0].size(0));
         return net.hidden(in).sum() * (n / (n - 1));
       },
       {"size(0) as an operand: t.sum() / t.size(0)"},
       [](Net& net, const Tensors& in) {
         const auto t = net.hidden(in);
         return t.sum() * t.size(0) / (t.size(0) - 1);
       }},
      {"a half over size(0)",
       [](Net& net, const Tensors& in) { return net.hidden(in).sum() * std::sqrt(static_cast<double>(in[0].size(0))); },
       {"t.sum() * (0.5 / t.size(0))"},
       [](Net& net, const Tensors& in) {
         const auto t = net.hidden(in);
         return t.sum() * (0.5 / static_cast<double>(t.size(0)));
       },
       [](Net& net, const Tensors& in) { return net.hidden(in).sum(1).mean() * 0.5; }},
      {"-1 in view",
       [](Net& net, const Tensors& in) {
         const auto n = in[0].size(0);
         return net.hidden(in).view({n % 2 == 0 ? n * 4 : n * 8, -1}).sum();
       },
       {"-1 in view"},
       [](Net& net, const Tensors& in) {
         return net.hidden(in).view({-1, 2}).sum();
       }},
      {"made anew in each forward",
       [](Net& net, const Tensors& in) {
         const auto n = in[0].size(0);
         if (!net.kept->defined() || net.kept->size(0) != n) {
           *net.kept = torch::arange(n, torch::kDouble).unsqueeze(1) * 0.5;
         }
         return (net.hidden(in) * *net.kept).sum();
       },
       {"make it anew in each forward"},
       [](Net& net, const Tensors& in) {
         return (net.hidden(in) * (torch::arange(in[0].size(0), torch::kDouble).unsqueeze(1) * 0.5)).sum();
       }},
  };
  for (const auto& way : ways) require_way(way);
}

TEST_CASE("capture advice: a call counter becomes an argument or member", "[ways_out]") {
  const DoublePrecision guard;
  const Net::Forward counts = [](Net& net, const Tensors& in) {
    return net.hidden(in).sum() * (0.1 * static_cast<double>(++net.calls));
  };
  const std::vector<std::string> says{"call counter", "pass what follows from it to forward as an argument",
                                      "set a member before the call"};
  const Net::Forward thrice = [](Net& net, const Tensors& in) { return net.hidden(in).sum() * 3.0; };
  require_way({"an argument", counts, says, [](Net& net, const Tensors& in) { return net.hidden(in).sum() * in[1]; },
               thrice, 1});
  const auto once = [](bool above) -> Net::Forward {
    return [above](Net& net, const Tensors& in) {
      const bool first = net.calls++ == 0;
      return net.hidden(in).sum() * (first == above ? 1.0 : 3.0);
    };
  };
  for (const bool above : {false, true}) {  // which changes in the second call, and never again
    require_way({"once", once(above), says,
                 [](Net& net, const Tensors& in) { return net.hidden(in).sum() * net.factor; }, thrice});
  }
  require_way({"a member", counts, says, [](Net& net, const Tensors& in) { return net.hidden(in).sum() * net.factor; },
               thrice});
}

Tensor fussy_kernel(const Tensor& x) {
  TORCH_CHECK(x.abs().max().item<double>() > 0, "fussy: nothing but zeros");
  return x * 2;
}
Tensor fussy_form(const Tensor& x) { return at::empty(x.sizes(), x.options()); }

TEST_CASE("capture advice: a failing operator needs a shape rule", "[ways_out]") {
  const DoublePrecision guard;
  static torch::Library definitions(torch::Library::DEF, "autopar_fussy", {}, __FILE__, __LINE__);
  definitions.def("fussy(Tensor x) -> Tensor");
  static torch::Library kernels(torch::Library::IMPL, "autopar_fussy", c10::DispatchKey::CPU, __FILE__, __LINE__);
  kernels.impl("fussy", &fussy_kernel);
  const Net::Forward forward = [](Net& net, const Tensors& in) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("autopar_fussy::fussy", "");
    const torch::NoGradGuard no_grad;
    return op.typed<Tensor(const Tensor&)>().call(net.hidden(in)).sum();
  };
  Net net(forward);
  check_says({"it failed on zeros", "nothing but zeros", "at::empty(sizes, options)",
              "TORCH_LIBRARY_IMPL(autopar_fussy, Meta, m) { m.impl(\"fussy\", ...); }"},
             [&] { (void)captured(net); });
  static torch::Library forms(torch::Library::IMPL, "autopar_fussy", c10::DispatchKey::Meta, __FILE__, __LINE__);
  forms.impl("fussy", &fussy_form);
  require_way_out(forward, forward, 0);
}

/// Autocast to bfloat16 as a caller's own, whose results are to be those of the replay to the bit.
struct Bfloat16 {
  Bfloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Bfloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Bfloat16(const Bfloat16&) = delete;
  Bfloat16& operator=(const Bfloat16&) = delete;
};

TEST_CASE("capture advice: mixed dtypes need a cast or matmul", "[ways_out]") {
  const auto vector = [](Net& net) { return net.state.to(torch::kFloat); };
  const auto capture_under_autocast = [](Net& net) {
    const Bfloat16 autocast;
    return captured(net);
  };
  Net refused([&](Net& net, const Tensors& in) { return torch::mv(net.hidden(in), vector(net)).sum(); });
  check_says({"aten::mv", "BFloat16 by Float", "cast one of them with to(), or use matmul"},
             [&] { (void)capture_under_autocast(refused); });
  const std::vector<Net::Forward> ways{
      [&](Net& net, const Tensors& in) {
        const auto h = net.hidden(in);
        return torch::mv(h, vector(net).to(h.scalar_type())).sum();
      },
      [&](Net& net, const Tensors& in) { return torch::matmul(net.hidden(in), vector(net)).sum(); }};
  for (const auto& way : ways) {
    Net net(way);
    const auto graph = capture_under_autocast(net);
    const auto in = net.arguments(5);
    auto environment = replay::Replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU).environment();
    replay::bind_state(graph, net, environment);
    environment[graph.inputs[0].index()] = in[0];
    replay::Replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU).run(environment, {5, 5});
    const Bfloat16 autocast;
    REQUIRE(torch::equal(environment[graph.outputs[0].index()], net.run(in)[0]));
  }
}

TEST_CASE("capture advice: construct the module yourself", "[ways_out]") {
  const DoublePrecision guard;
  struct Reads : Net {
    Reads() : Net([](Net& net, const Tensors& in) { return net.hidden(in).sum() * net.factor; }) {
      factor = a->weight.abs().sum().item<double>();
    }
  };
  struct Draws : Net {
    Draws() : Net([](Net& net, const Tensors& in) { return net.hidden(in).sum() * net.factor; }) {
      factor = torch::poisson(torch::ones({3})).numel();
    }
  };
  const std::string way_out = "construct the module yourself and pass it instead of the callable";
  check_says({"aten::item", way_out}, [] { (void)InitRecord::record([] { Reads made; }); });
  check_says({"aten::poisson", way_out}, [] { (void)InitRecord::record([] { Draws made; }); });
  Reads reads;
  Draws draws;
  REQUIRE_NOTHROW((void)captured(reads));
  REQUIRE_NOTHROW((void)captured(draws));
}

TEST_CASE("capture: errors of libtorch hide internal batch sizes", "[ways_out]") {
  const DoublePrecision guard;
  Net rows([](Net& net, const Tensors& in) { return (net.hidden(in) * torch::ones({4, 8})).sum(); });
  check_says({"aten::mul (near a", "tensor a (batch) must match the size of tensor b (4)"},
             [&] { (void)captured(rows); });
  Net inside([](Net& net, const Tensors& in) {
    TORCH_CHECK(in[0].size(0) == 4, "four samples, not ", in[0].size(0));
    return net.hidden(in).sum();
  });
  check_says({"captured: four samples, not batch", "batches of several sizes (7, 12 and 18 samples)"},
             [&] { (void)captured(inside); });
}

TEST_CASE("capture advice: for tensors that are not dense, works", "[ways_out]") {
  const DoublePrecision guard;
  const auto sparse = torch::linspace(-1, 1, 64).view({8, 8}).tril().to_sparse();
  const auto dense = sparse.to_dense();
  const Net::Forward loss = [](Net& net, const Tensors& in) { return net.hidden(in).sum(); };
  const std::vector<Way> ways{
      {"dense from outside",
       [sparse](Net& net, const Tensors& in) { return torch::mm(sparse, net.hidden(in).t()).sum(); },
       {"SparseCPUDoubleType", "make it dense, to_dense(), outside forward"},
       [dense](Net& net, const Tensors& in) { return torch::mm(dense, net.hidden(in).t()).sum(); }},
      {"a mask in place of a sparse tensor",
       [](Net& net, const Tensors& in) { return net.hidden(in).relu().to_sparse().to_dense().sum(); },
       {"_to_sparse (near a", "makes a tensor of type SparseCPUDoubleType", "compute with dense ones (a mask"},
       [](Net& net, const Tensors& in) {
         const auto y = net.hidden(in);
         return (y * (y > 0)).sum();
       }},
      {"index_add in place of a sparse tensor",
       [](Net& net, const Tensors& in) {
         const auto places = torch::arange(8).remainder(3).unsqueeze(0);
         return at::sparse_coo_tensor(places, net.hidden(in).sum(0), {3}).to_dense().pow(2).sum();
       },
       {"sparse_coo_tensor", "compute with dense ones (a mask, index_add into zeros)"},
       [](Net& net, const Tensors& in) {
         const auto places = torch::arange(8).remainder(3);
         return torch::zeros({3}).index_add(0, places, net.hidden(in).sum(0)).pow(2).sum();
       }},
      {"defined results",
       [](Net&, const Tensors&) { return Tensor(); },
       {"return those that are defined only, or torch::zeros({}) in its place"},
       loss,
       loss},
      {"zero in place of no result",
       [](Net&, const Tensors&) { return Tensor(); },
       {"undefined tensor"},
       [](Net&, const Tensors&) { return torch::zeros({}); },
       [](Net&, const Tensors&) { return torch::zeros({}); }},
  };
  for (const auto& way : ways) require_way(way);
}

TEST_CASE("capture advice: compute pairs of samples in forward", "[ways_out]") {
  const DoublePrecision guard;
  const Net::Forward pairs = [](Net& net, const Tensors& in) {
    const auto a = net.hidden(in);
    return torch::matmul(a, a.t()).tanh().sum();
  };
  Net net(pairs);
  auto graph = captured(net);
  REQUIRE_NOTHROW((void)algebra::analyze_batch(graph, {}));
  require_way_out(pairs, pairs, 0);
  graph.value(graph.inputs[0]).sizes[1] = {1, 0};
  check_says({"argument 0", "give forward the samples, and compute there what has two (torch::matmul(a, b.t()))"},
             [&] { (void)algebra::analyze_batch(graph, {}); });
}

TEST_CASE("capture advice: mark a tensor without samples as shared", "[ways_out]") {
  const DoublePrecision guard;
  check_says({"set Options.batch_dims", "ap::kShared"}, [] { (void)trace::input_spec(torch::tensor(1.0), 0); });
  const Net::Forward scaled = [](Net& net, const Tensors& in) { return net.hidden(in).sum() * in[1]; };
  require_way_out(scaled, scaled, 1);  // with the number shared, as kShared makes it
}

}  // namespace ways_out
}  // namespace autopar::test
