#include "torch/autograd/summed_gradient.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "capture/trace/capture.hpp"
#include "torch/interpret/segment_interpreter.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

#include "shard/group_state.hpp"

// What the first of two shards computes while its group sums.
namespace summed_gradient_test {

using namespace autopar;
using torch::Tensor;
namespace F = torch::nn::functional;
using Events = std::vector<std::string>;

/// The other has zeros. Writes down when a sum is under way.
class OneTerm : public autopar::detail::GroupState {
 public:
  OneTerm(Events& events, bool fails) : GroupState({Rank(0), Rank(1)}, 0), events_(events), fails_(fails) {}

  void all_reduce(const Tensor&, const std::function<void()>& meanwhile) override { sum(meanwhile); }
  void reduce_scatter(const Tensor&, const std::function<void()>& meanwhile) override { sum(meanwhile); }
  void all_gather(const Tensor& parts) override { parts[1].zero_(); }
  void send(const Tensor&, int) override {}
  void receive(const Tensor&, int) override {}

 private:
  void sum(const std::function<void()>& meanwhile) {
    events_.emplace_back("begin");
    if (meanwhile) meanwhile();
    if (fails_) throw std::runtime_error("the other shard is gone");
    events_.emplace_back("end");
  }

  Events& events_;
  bool fails_;
};

/// Matrix products and copies of this thread, among the events.
class Products {
 public:
  explicit Products(Events& events) {
    events_ = &events;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& called) {
                                           const std::string_view name = called.name();
                                           if (name == "aten::mm" || name == "aten::clone")
                                             events_->emplace_back(name.substr(6));
                                           return std::unique_ptr<at::ObserverContext>();
                                         }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

 private:
  inline static thread_local Events* events_ = nullptr;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

using Function = std::function<Tensor(const std::vector<Tensor>& p, const Tensor& x)>;

struct Case {
  std::vector<std::vector<std::int64_t>> parameters;  ///< of which two shards have each half of the rows
  Function function;
  c10::ScalarType type = torch::kDouble;
  bool assembles = false;  ///< each shard has some of the tokens, which are brought together first
  bool recomputes = false, splits = false, fails = false;
};

struct Outcome {
  Events events;                  ///< of the backward
  std::vector<Tensor> gradients;  ///< of the input, then of the parameters
};

constexpr std::int64_t kSamples = 6, kTokens = 3, kOwn = 2;

Tensor first_half(const Tensor& whole) { return whole.detach().narrow(0, 0, whole.size(0) / 2).clone(); }

/// The backward of the sum of the squares of what a shard has.
void backward(const Tensor& result) { result.square().sum().backward(); }

Tensor input_of(const Case& example) {
  torch::manual_seed(5);
  return torch::randn({kSamples, kTokens, 4}).to(example.type).requires_grad_();
}

/// Of which the first shard has one more.
Tensor own_tokens(const Tensor& whole) { return whole.detach().narrow(1, 0, kOwn).clone().requires_grad_(); }

Outcome run(const Case& example) {
  torch::manual_seed(3);
  nets::Parameters net(example.parameters, torch::kFloat);
  net.to(example.type);
  auto input = input_of(example);
  const auto whole =
      passes::fold_linear(trace::capture(net, {trace::input_spec(input)}, [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{example.function(net.p, in[0])};
      }));
  tensor_parallel::LeafSlices leaves;
  for (const auto& [name, value] : whole.parameters) {
    leaves[value] = UnitSlices{.dim = 0, .units = whole.value(value).sizes[0].fixed};
  }
  tensor_parallel::ShardTyping typing(whole, [](OpId) { return true; });
  auto layout = typing.run(leaves, [](ValueId) { return false; });
  if (example.assembles) {
    for (auto& [op, moves] : layout.before) {
      for (auto& each : moves) each = {ir::ShardMove::kAssemble, each.value, UnitSlices{.dim = 1, .units = kTokens}};
    }
  }
  const auto sharded = tensor_parallel::insert_moves(whole, {{2, layout}});
  const auto graph = tensor_parallel::on_shard(sharded, {0});
  const auto plan = algebra::analyze_batch(graph, {});

  Outcome out;
  const auto shards = std::make_shared<const interpret::TensorShards>(
      interpret::TensorShards{sharded.steps, Group(std::make_shared<OneTerm>(out.events, example.fails))});
  interpret::StagePart all{.ops = replay::all_ops(graph), .recomputed = example.recomputes};
  std::erase_if(all.ops, [&](OpId op) {  // the result stays in slices
    const auto* step = shards->step_of(op);
    return step != nullptr && step->move == ir::ShardMove::kAllGather;
  });
  const auto kept = whole.outputs.front();
  interpret::SegmentInterpreter runner(graph, plan, {all}, {kept}, at::kCPU, example.splits, {.shards = shards});
  auto environment = runner.environment();
  std::vector<Tensor> slices;
  for (const auto& [name, value] : graph.parameters) {
    slices.push_back(first_half(net.p[static_cast<std::size_t>(std::stoi(name.substr(1)))]).requires_grad_());
    environment[value.index()] = slices.back();
  }
  if (example.assembles) input = own_tokens(input);
  environment[graph.inputs[0].index()] = input;
  interpret::SliceContext slice;
  slice.samples = slice.batch = kSamples;
  std::vector<interpret::NormSample> norms;
  const auto deferred = example.splits ? std::make_shared<autograd::DeferredGradients>() : nullptr;
  runner.run(environment, slice, norms, deferred);
  const auto result = std::exchange(environment[kept.index()], Tensor());
  {
    const Products products(out.events);
    backward(result);
  }
  out.gradients.push_back(input.grad());
  for (const auto& each : slices) out.gradients.push_back(each.grad());
  return out;
}

/// Libtorch's gradients of the same function of the slices.
std::vector<Tensor> expected(const Case& example) {
  torch::manual_seed(3);
  nets::Parameters net(example.parameters, torch::kFloat);
  net.to(example.type);
  auto input = input_of(example);
  std::vector<Tensor> slices;
  for (const auto& each : net.p) slices.push_back(first_half(each).requires_grad_());
  if (example.assembles) {
    input = own_tokens(input);
    backward(example.function(slices, torch::constant_pad_nd(input, {0, 0, 0, kTokens - kOwn})));
  } else {
    backward(example.function(slices, input));
  }
  std::vector<Tensor> out{input.grad()};
  for (const auto& each : slices) out.push_back(each.grad());
  return out;
}

/// @param events  the last of the backward
void check(const Case& example, const Events& events) {
  const auto out = run(example);
  CHECK(Events(out.events.end() - static_cast<std::ptrdiff_t>(std::min(events.size(), out.events.size())),
               out.events.end()) == events);
  CHECK(std::ranges::count(out.events, "begin") == 1);
  const auto wanted = expected(example);
  REQUIRE(out.gradients.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    INFO("gradient " << i);
    CHECK(out.gradients[i].equal(wanted[i]));
  }
}

const std::vector<std::vector<std::int64_t>> kLayer{{8, 4}, {8}};
Tensor layer(const std::vector<Tensor>& p, const Tensor& x) { return F::gelu(F::linear(x, p[0], p[1])); }

const std::vector<std::vector<std::int64_t>> kProjections{{8, 4}, {8}, {8, 4}, {8, 4}, {8}};
Tensor projections(const std::vector<Tensor>& p, const Tensor& x) {
  return F::linear(x, p[0], p[1]) * torch::sigmoid(F::linear(x, p[2])) + F::linear(x, p[3], p[4]);
}

TEST_CASE("summed_gradient: all-reduce overlaps the weight gradient") {
  const Events events{"mm", "begin", "mm", "end"};
  check({.parameters = kLayer, .function = layer}, events);
  check({.parameters = kLayer, .function = layer, .type = torch::kFloat}, events);
  check({.parameters = kLayer, .function = layer, .recomputes = true}, events);
}

TEST_CASE("summed_gradient: layers of one input share the all-reduce") {
  const Events events{"mm", "mm", "mm", "begin", "mm", "mm", "mm", "end"};
  check({.parameters = kProjections, .function = projections}, events);
  check({.parameters = kProjections, .function = projections, .recomputes = true}, events);
}

TEST_CASE("summed_gradient: reduce-scatter of tokens overlaps, too") {
  check({.parameters = kLayer, .function = layer, .assembles = true},
        {"mm", "begin", "mm", "end", "clone"});  // which lays the own tokens out
  check({.parameters = kProjections, .function = projections, .assembles = true, .recomputes = true},
        {"mm", "mm", "mm", "begin", "mm", "mm", "mm", "end", "clone"});
}

TEST_CASE("summed_gradient: a weight of two layers has libtorch's order") {
  const auto twice = [](const std::vector<Tensor>& p, const Tensor& x) {
    return F::linear(x, p[0], p[1]) * torch::sigmoid(F::linear(x, p[0], p[2]));
  };
  check({.parameters = {{8, 4}, {8}, {8}}, .function = twice}, {"mm", "mm", "mm", "mm", "begin", "end"});
}

TEST_CASE("summed_gradient: 16-bit weight gradients are rounded once") {
  const auto without_bias = [](const std::vector<Tensor>& p, const Tensor& x) { return F::gelu(F::linear(x, p[0])); };
  check({.parameters = {{8, 4}}, .function = without_bias, .type = torch::kBFloat16}, {"begin", "end"});
}

TEST_CASE("summed_gradient: deferred weight gradients are not computed") {
  const auto out = run({.parameters = kLayer, .function = layer, .splits = true});
  CHECK(out.events == Events{"mm", "begin", "end"});
  CHECK_FALSE(out.gradients[1].defined());
}

TEST_CASE("summed_gradient: a failed all-reduce fails the backward") {
  CHECK_THROWS_WITH(run({.parameters = kLayer, .function = layer, .fails = true}),
                    Catch::Matchers::ContainsSubstring("the other shard is gone"));
}

}  // namespace summed_gradient_test
