#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "op_examples.hpp"
#include "slice_checks.hpp"

#include "capture/ir/tensor_form.hpp"
#include "ops/registry.hpp"
#include "torch/interpret/segment_interpreter.hpp"
#include "torch/passes/pass_list.hpp"
#include "torch/passes/pass_manager.hpp"

// Every operator with a definition, with each of its dims without elements, and with one.
namespace {
namespace small_sizes_test {

using namespace autopar;
using namespace autopar::test;

enum class Verdict : std::uint8_t { kNotRun, kRefused, kWhole, kSlices };  ///< kNotRun: libtorch refuses it itself

struct Outcome {
  Verdict verdict = Verdict::kNotRun;
  std::string fault;        ///< empty: none
  std::string reason = "";  ///< of kNotRun and kRefused
};

struct Batch {
  std::int64_t size;
  Tensors inputs, results, cotangents;
};

/// Where libtorch gives no number, so must we; elsewhere like require_equal.
std::string difference(const Tensors& actual, const Tensors& expected, const std::string& what) {
  if (actual.size() != expected.size()) return what + "s are not as many";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto name = what + " " + std::to_string(i);
    if (actual[i].sizes() != expected[i].sizes()) {
      return name + " has sizes " + c10::str(actual[i].sizes()) + ", not " + c10::str(expected[i].sizes());
    }
    if (expected[i].numel() == 0) continue;
    const auto a = actual[i].to(torch::kDouble), b = expected[i].to(torch::kDouble);
    const auto same = (a == b).logical_or(a.isnan().logical_and(b.isnan()));
    const auto error = ((a - b).abs() / (1 + b.abs())).masked_fill(same, 0).max().item<double>();
    if (!(error <= 1e-12)) return name + " differs by " + std::to_string(error);
  }
  return "";
}

struct Step {
  Tensors results, gradients, buffers;
};

/// @param run  gives the results; `finish` adds what their backward has deferred
Step step(
    Net& net, const Case& test, const Batch& batch, const std::function<Tensors()>& run,
    const std::function<void()>& finish = [] {}) {
  for (std::size_t i = 0; i < test.buffers.size(); ++i) {
    const at::NoGradGuard no_grad;
    net.state(i).copy_(test.buffers[i]);
  }
  net.zero_grad();
  for (const auto& input : batch.inputs) {
    if (input.requires_grad()) input.mutable_grad() = Tensor();
  }
  Step seen;
  Tensor objective;
  {
    const auto results = run();
    for (std::size_t i = 0; i < results.size(); ++i) {
      seen.results.push_back(results[i].detach().clone());
      if (!results[i].requires_grad() || i >= batch.cotangents.size()) continue;
      const auto term = (results[i] * batch.cotangents[i]).sum();
      objective = objective.defined() ? objective + term : term;
    }
  }
  if (objective.defined()) objective.backward();
  finish();
  const auto add = [&](const Tensor& leaf) {
    if (leaf.requires_grad())
      seen.gradients.push_back(leaf.grad().defined() ? leaf.grad().clone() : torch::zeros_like(leaf));
  };
  for (const auto& input : batch.inputs) add(input);
  for (const auto& parameter : net.parameters()) add(parameter);
  for (const auto& buffer : net.buffers()) seen.buffers.push_back(buffer.clone());
  return seen;
}

Batch batch_of(const Case& test, Net& net, std::int64_t size) {
  Batch batch{size, {}, {}, {}};
  for (const auto& arg : test.args) batch.inputs.push_back(make(arg, size));
  const at::NoGradGuard no_grad;
  batch.results = test.function(net, batch.inputs);
  for (const auto& result : batch.results) {
    batch.cotangents.push_back(torch::rand(result.sizes(), torch::kDouble) + 0.5);
  }
  return batch;
}

OpGraph rewritten(const OpGraph& captured) {
  const passes::PassTarget target{.device = at::kCPU, .fuses = true, .chunks_logits = true};
  return passes::PassManager(passes::pass_list()).run(captured, target, {}).graph;
}

/// The runtime's own interpreter, which has other backwards for some operators, on the rewritten program.
class Runtime {
 public:
  Runtime(const OpGraph& captured, Net& net, bool splits, bool recomputes)
      : graph_(rewritten(captured)), plan_(algebra::analyze_batch(graph_)), net_(net) {
    const auto atoms = cost::partition_into_atoms(graph_, plan_);
    const std::vector<int> segment_of(recomputes ? atoms.atoms.size() : 0, 0);
    interpreter_ = std::make_unique<interpret::SegmentInterpreter>(
        graph_, plan_, interpret::parts_of_stage(graph_, replay::all_ops(graph_), {atoms.atom_of, segment_of}),
        graph_.outputs, at::kCPU, splits);
    values_ = interpreter_->environment();
    deferred_ = splits ? std::make_shared<autograd::DeferredGradients>() : nullptr;
  }

  Tensors run(const Batch& batch) {
    replay::bind_state(graph_, net_, values_);
    for (const auto input : graph_.inputs) {
      values_[input.index()] = batch.inputs.at(static_cast<std::size_t>(graph_.value(input).position));
    }
    interpret::SliceContext slice;
    slice.samples = slice.batch = batch.size;
    for (const auto& count : plan_.counts) counts_.push_back(number_of(count));
    slice.counts = &counts_;
    std::vector<interpret::NormSample> norms(plan_.batch_norms.size());
    interpreter_->run(values_, slice, norms, deferred_);
    Tensors results;
    for (const auto output : graph_.outputs) results.push_back(values_[output.index()]);
    return results;
  }

  void finish() {
    if (!deferred_) return;
    deferred_->compute([&](ValueId value, const Tensor& gradient) {
      auto& sum = net_.named_parameters()[graph_.value(value).name].mutable_grad();
      sum = sum.defined() ? sum + gradient : gradient;
    });
  }

 private:
  [[nodiscard]] Tensor number_of(const LossCount& count) const {
    const auto& target = values_[count.target.index()];
    const auto counted = target.masked_select(target.ne(count.ignore_index));
    if (!count.weight.valid()) return torch::full({}, counted.numel(), torch::kDouble);
    return values_[count.weight.index()].index({counted}).sum().to(torch::kDouble);
  }

  OpGraph graph_;
  algebra::BatchSemantics plan_;
  Net& net_;
  std::unique_ptr<interpret::SegmentInterpreter> interpreter_;
  replay::Environment values_;
  Tensors counts_;
  std::shared_ptr<autograd::DeferredGradients> deferred_;
};

std::string unlike(const Step& actual, const Step& expected) {
  const auto of_results = difference(actual.results, expected.results, "result");
  return of_results.empty() ? difference(actual.gradients, expected.gradients, "gradient") : of_results;
}

/// What of a case is compared, see Example.
struct Compared {
  bool values = true, slices = true, one_sample = true;
};

std::string fault_of(const Case& test, Net& net, const Planned& planned, const Batch& batch, Compared compared,
                     const std::vector<int>& stages) {
  const auto expected = step(net, test, batch, [&] { return test.function(net, batch.inputs); });
  const auto compare = [&](const std::vector<BatchSlice>& slices) {
    const auto run = [&] {
      SliceInterpreter interpreter(planned.graph, planned.plan, net, batch.inputs, batch.size);
      if (slices.size() > 1) interpreter.cut(stages, 2);
      return interpreter.run(slices, slices);
    };
    const auto actual = step(net, test, batch, run);
    const auto of_step = unlike(actual, expected);
    return of_step.empty() ? difference(actual.buffers, expected.buffers, "buffer") : of_step;
  };
  auto fault = compare({{0, batch.size}});
  if (!fault.empty()) return "as one slice: " + fault;
  if (compared.slices && batch.size > 1) {
    fault = compare({{0, 1}, {1, batch.size - 1}, {batch.size - 1, batch.size}, {batch.size, batch.size}});
    if (!fault.empty()) return "in slices: " + fault;
  }
  if (!compared.values) return "";
  for (const bool recomputes : {false, true}) {
    Runtime runtime(planned.graph, net, !recomputes, recomputes);
    fault = unlike(step(
                       net, test, batch, [&] { return runtime.run(batch); }, [&] { runtime.finish(); }),
                   expected);
    if (!fault.empty()) return (recomputes ? "recomputed: " : "with backwards in parts: ") + fault;
  }
  return "";
}

/// What was captured of the results' form, against results.
std::string fault_of_form(const OpGraph& graph, const Tensors& results, std::int64_t batch) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& value = graph.value(graph.outputs[i]);
    const auto& result = results[i];
    const auto name = "form of result " + std::to_string(i) + ": ";
    const auto sizes = ir::sizes_at(value, batch);
    if (result.sizes() != c10::IntArrayRef(sizes)) return name + c10::str(sizes) + ", not " + c10::str(result.sizes());
    if (result.scalar_type() != value.dtype) return name + c10::str(value.dtype);
    std::vector<std::int64_t> strides;
    for (const auto stride : value.strides) strides.push_back(stride.at(batch));
    if (result.numel() > 0 && !ir::has_strides(result, strides)) return name + "strides " + c10::str(strides);
  }
  return "";
}

/// Whether what was counted of the program are numbers of bytes and of operations.
bool has_costs(const Planned& planned) {
  const auto profile = cost::profile_graph(planned.graph, planned.plan);
  const auto is_number = [](const Affine& line) { return std::isfinite(line.at(4)) && line.at(4) >= 0; };
  for (const auto node : profile.model.graph.nodes()) {
    const auto& op = profile.model.graph[node];
    if (!is_number(op.saved) || !is_number(op.workspace) || !is_number(op.deferred_weight)) return false;
    for (const auto& work : op.work) {
      for (const auto& pass : {work.forward, work.backward}) {
        if (!is_number(pass.flops) || !is_number(pass.bytes)) return false;
      }
    }
  }
  return true;
}

Outcome outcome_of(const Case& test, Compared compared = {}) {
  Net net(test.parameters, test.buffers);
  std::vector<Batch> batches;
  try {
    for (const std::int64_t size : {1, 4}) {
      if (size == 1 && !compared.one_sample) continue;
      batches.push_back(batch_of(test, net, size));
      step(net, test, batches.back(), [&] { return test.function(net, batches.back().inputs); });
    }
  } catch (const std::exception& error) {
    return {Verdict::kNotRun, "", error.what()};
  }
  try {
    const auto planned = plan_of(test, net);
    const bool in_slices = !planned.plan.first_whole_batch_op().valid();
    Outcome outcome{in_slices ? Verdict::kSlices : Verdict::kWhole, ""};
    std::mt19937 random(7);
    const auto stages = random_stages(planned, 2, random);
    for (const auto& batch : batches) {
      if (outcome.fault.empty()) outcome.fault = fault_of_form(planned.graph, batch.results, batch.size);
      if (outcome.fault.empty())
        outcome.fault = fault_of(test, net, planned, batch, {compared.values, in_slices && compared.slices}, stages);
    }
    if (outcome.fault.empty() && !has_costs(planned)) outcome.fault = "costs are no numbers";
    return outcome;
  } catch (const CaptureError& error) {
    return {Verdict::kRefused, "", error.what()};
  } catch (const std::exception& error) {
    return {Verdict::kSlices, error.what()};
  }
}

Outcome outcome_of(std::string_view op, std::string_view args, const Letters& letters) {
  torch::manual_seed(1);
  const ExampleCall call(op, args, letters);
  return outcome_of(call.as_case(), {call.compares_values(), call.compares_slices(), call.of_one_sample()});
}

std::string first_line(const std::string& text) { return text.substr(0, std::min<std::size_t>(text.find('\n'), 300)); }

TEST_CASE("operator definitions: each has an example") {
  const std::set<std::string_view> none{"aten::cpu", "aten::cuda",  // methods of libtorch's, no operators
                                        "aten::pin_memory"};        // of memory that CUDA knows
  std::set<std::string_view> shown;
  for (const auto& example : kExamples) {
    for (auto op : parts_of(example.ops, ' ')) {
      while (std::string_view("?!>").find(op.front()) != std::string_view::npos) op.remove_prefix(1);
      const auto name = "aten::" + std::string(op.substr(0, op.find('.')));
      shown.insert(ops::definition_of(name).name);
    }
  }
  for (const auto& def : ops::own_definitions()) {
    if (!def.name.starts_with("aten::")) continue;
    INFO(def.name);
    CHECK(shown.contains(def.name) != none.contains(def.name));
  }
}

/// libtorch 2.11 itself ends the process: attention on CPUs divides by the number of its blocks (SIGFPE), and ctc_loss
/// reads the blank's class and targets behind the end of what has none.
bool ends_libtorch(std::string_view op, char letter) {
  const bool attends = op == "scaled_dot_product_attention" && letter != 'k' && letter != 'm';
  return attends || op.starts_with("ctc_loss");
}

TEST_CASE("operator definitions: every dim may be 0 or 1") {
  int combinations = 0, not_run = 0, examples = 0, whole = 0, refused = 0;
  std::set<std::string> rows;
  for (const auto& example : kExamples) {
    for (const auto op : parts_of(example.ops, ' ')) {
      INFO(op << " of " << example.args);
      Outcome ordinary;
      try {
        ordinary = outcome_of(op, example.args, ordinary_sizes());
      } catch (const std::exception& error) {
        ordinary.fault = error.what();
      }
      ++examples;
      if (ordinary.verdict == Verdict::kNotRun || !ordinary.fault.empty()) {
        UNSCOPED_INFO("ordinary: " << first_line(ordinary.fault + ordinary.reason));
        CHECK(false);
        continue;
      }
      whole += ordinary.verdict == Verdict::kWhole;
      refused += ordinary.verdict == Verdict::kRefused;
      for (const char letter : ExampleCall(op, example.args, ordinary_sizes()).letters()) {
        for (const std::int64_t size : {0, 1}) {
          if (size == 0 && ends_libtorch(op, letter)) continue;
          auto sizes = ordinary_sizes();
          sizes[letter] = size;
          const auto outcome = outcome_of(op, example.args, sizes);
          ++combinations;
          not_run += outcome.verdict == Verdict::kNotRun;
          if (outcome.verdict == Verdict::kNotRun) continue;
          INFO(letter << " = " << size << ": " << first_line(outcome.fault + outcome.reason));
          CHECK((outcome.fault.empty() && outcome.verdict >= ordinary.verdict));
        }
      }
    }
  }
  INFO(examples << " examples, of which " << whole << " mix samples and " << refused << " are refused; " << combinations
                << " combinations, of which libtorch refuses " << not_run);
  CHECK(refused <= 3);
  CHECK(7 * not_run < combinations);
}

/// What rewrites make one operator of, and what the interpreter runs otherwise than libtorch.
TEST_CASE("fused and split operators: every dim may be 0 or 1") {
  struct Pattern {
    std::string name;
    std::string letters;
    std::function<Case(const Letters&)> make;
  };
  const auto of = [](std::vector<std::int64_t> sizes) { return Arg{std::move(sizes)}; };
  const auto classes = [](std::vector<std::int64_t> sizes, std::int64_t below) {
    return Arg{std::move(sizes), std::max<std::int64_t>(1, below), false, false, false};
  };
  const std::vector<Pattern> patterns{
      {"batch norm, addition, ReLU", "chw",
       [&](Letters s) {
         return Case{{of({-1, s['c'], s['h'], s['w']}), of({-1, s['c'], s['h'], s['w']})},
                     {{s['c']}, {s['c']}},
                     [](Net& net, const Tensors& in) -> Tensors {
                       const auto y = torch::batch_norm(in[0], net[0], net[1], {}, {}, true, 0.1, 0.1, false);
                       return {torch::relu(y + in[1])};
                     }};
       }},
      {"addition, layer norm", "fk",
       [&](Letters s) {
         return Case{{of({-1, s['f'], s['k']}), of({-1, s['f'], s['k']})},
                     {{s['k']}, {s['k']}},
                     [](Net& net, const Tensors& in) -> Tensors {
                       const auto sum = in[0] + torch::dropout(in[1], 0.0, true);
                       return {torch::layer_norm(sum, {sum.size(2)}, net[0], net[1]), sum * 2};
                     }};
       }},
      {"pixels of a layer, pooled", "chw",
       [&](Letters s) {
         return Case{
             {of({-1, s['c'], s['h'], s['w']})}, {{3, s['c'], 1, 1}, {3}}, [](Net& net, const Tensors& in) -> Tensors {
               return {torch::max_pool2d(torch::relu(torch::conv2d(in[0], net[0], net[1])), {2, 2})};
             }};
       }},
      {"point-wise operators", "fk",
       [&](Letters s) {
         return Case{{of({-1, s['f'], s['k']})}, {{s['k']}}, [](Net& net, const Tensors& in) -> Tensors {
                       return {(torch::gelu(in[0] * net[0]) + in[0].sigmoid()).tanh() * 0.5};
                     }};
       }},
      {"layers with a GELU", "fkn",
       [&](Letters s) {
         return Case{{of({-1, s['n'], s['f']})},
                     {{s['k'], s['f']}, {s['k']}, {s['f'], s['k']}, {s['f']}},
                     [](Net& net, const Tensors& in) -> Tensors {
                       const auto hidden = torch::gelu(torch::linear(in[0], net[0], net[1]));
                       return {in[0] + torch::linear(hidden, net[2], net[3])};
                     }};
       }},
      {"a product and an addition", "fk",
       [&](Letters s) {
         return Case{{of({-1, s['f']})}, {{s['f'], s['k']}, {s['k']}}, [](Net& net, const Tensors& in) -> Tensors {
                       return {torch::matmul(in[0], net[0]) + net[1]};
                     }};
       }},
      {"heads of a layer in parts", "fknt",
       [&](Letters s) {
         const auto heads = s['n'], width = s['k'];
         return Case{{of({-1, s['t'], s['f']})},
                     {{3 * heads * width, s['f']}, {3 * heads * width}},
                     [=](Net& net, const Tensors& in) -> Tensors {
                       const auto b = in[0].size(0), t = in[0].size(1);
                       const auto parts = torch::linear(in[0], net[0], net[1])
                                              .view({b, t, 3, heads, width})
                                              .permute({2, 0, 3, 1, 4})
                                              .unbind(0);
                       const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)).softmax(-1);
                       return {torch::matmul(scores, parts[2]).transpose(1, 2).reshape({b, t, heads * width})};
                     }};
       }},
      {"chunks of a layer", "fkt",
       [&](Letters s) {
         return Case{{of({-1, s['t'], s['f']})}, {{2 * s['k'], s['f']}}, [](Net& net, const Tensors& in) -> Tensors {
                       const auto parts = torch::linear(in[0], net[0]).chunk(2, -1);
                       return {parts.front() * torch::silu(parts.back())};
                     }};
       }},
      {"a class head and its loss", "cf",
       [&](Letters s) {
         return Case{
             {of({-1, s['f']}), classes({-1}, s['c'])}, {{s['c'], s['f']}}, [](Net& net, const Tensors& in) -> Tensors {
               return {torch::nn::functional::cross_entropy(torch::linear(in[0], net[0]), in[1])};
             }};
       }},
      {"a loss of probabilities", "ct",
       [&](Letters s) {
         return Case{
             {of({-1, s['c'], s['t']}), classes({-1, s['t']}, s['c'])}, {}, [](Net&, const Tensors& in) -> Tensors {
               return {torch::nn::functional::nll_loss(in[0].log_softmax(1), in[1])};
             }};
       }},
      {"a table and its layer", "cfkt",
       [&](Letters s) {
         return Case{{classes({-1, s['t']}, s['c'])},
                     {{s['c'], s['f']}, {s['k'], s['f']}},
                     [](Net& net, const Tensors& in) -> Tensors {
                       return {torch::linear(torch::embedding(net[0], in[0]), net[1])};
                     }};
       }},
  };
  for (const auto& pattern : patterns) {
    const bool mixes = pattern.name.starts_with("batch norm");
    const auto outcome = [&](const Letters& sizes) {
      torch::manual_seed(1);
      return outcome_of(pattern.make(sizes), {.slices = !mixes});
    };
    INFO(pattern.name);
    const auto ordinary = outcome(ordinary_sizes());
    INFO("ordinary: " << first_line(ordinary.fault + ordinary.reason));
    REQUIRE((ordinary.verdict == Verdict::kSlices && ordinary.fault.empty()));
    for (const char letter : pattern.letters) {
      for (const std::int64_t size : {0, 1}) {
        auto sizes = ordinary_sizes();
        sizes[letter] = size;
        const auto small = outcome(sizes);
        if (small.verdict == Verdict::kNotRun) continue;
        INFO(letter << " = " << size << ": " << first_line(small.fault + small.reason));
        CHECK((small.fault.empty() && small.verdict >= ordinary.verdict));
      }
    }
  }
}

}  // namespace small_sizes_test
}  // namespace
