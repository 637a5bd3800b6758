#include <torch/torch.h>

#include <catch_shim.hpp>

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>

#include "recorded_copies.hpp"
#include "trained.hpp"

// What a step in 16 bits launches, with operators joined: kernels of the library's own for all that has one, and no
// pass over memory that computes nothing, but for those that are listed here with their reasons.
namespace gpu_step_kernels_test {

using namespace gpu_tasks;
using gpu_copies::Pass;

/// A task's sixth step, and its parameters.
struct Step {
  std::unique_ptr<gpu_copies::profiler::ProfilerResult> recorded;
  std::set<std::vector<std::int64_t>> parameter_sizes;
  std::vector<Pass> passes;
};

template <class Net>
Step recorded_step(ap::World& world, const Task<Net>& task, ap::Precision precision, int microbatches = 1) {
  auto model = wrapped(
      world, task,
      {precision, ap::Switch::kOn, microbatches, ap::CudaGraphs::kOff});  // the parts of a replay belong to no operator
  const auto optimizer = optimizer_of<ap::optim::AdamW, ap::optim::SGD>(task.stepping, model->parameters());
  model->attach(*optimizer);
  const auto& [x, y] = task.batches.front();
  const auto step = [&, &x = x, &y = y] {
    optimizer->zero_grad();
    model(x, y).backward();
    optimizer->step();
    if (task.device.is_cuda()) at::accelerator::synchronizeDevice(task.device.index());
  };
  constexpr int kStepsBefore = 5;  // the next call looks at no program (Options::verify_capture)
  for (int i = 0; i < kStepsBefore; ++i) step();
  Step made{traces::recorded(step, task.device, true), {}, {}};
  for (const auto& parameter : model->parameters()) made.parameter_sizes.insert(parameter.sizes().vec());
  made.passes = gpu_copies::passes_of(*made.recorded, task.device);
  return made;
}

/// Several tensors are copied at a time for what a step of an optimizer has not written itself.
bool casts_parameter(const Pass& pass, const Step& step) {
  if (pass.is_in("aten::_foreach_copy_")) return true;
  return pass.given.size() > 1 && pass.given[0].is_half() && pass.given[1].type == "float" &&
         step.parameter_sizes.contains(pass.given[1].sizes);
}

/// A pass that a step makes, and how often.
struct Reason {
  std::string why;
  std::function<bool(const Pass&)> holds;
  std::int64_t count;
};

/// Passes that are wrong, in words; empty where all is well.
class Wrong {
 public:
  void add(const std::string& what, const std::vector<Pass>& passes) {
    if (!passes.empty()) text_ += '\n' + what + ':' + gpu_copies::listed(passes);
  }
  void compare(const std::string& what, std::int64_t count, std::int64_t wanted) {
    if (count != wanted) text_ += '\n' + what + ": " + std::to_string(count) + " x, not " + std::to_string(wanted);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Passes of more than a few bytes that no reason holds for; numbers of the others are compared.
std::vector<Pass> without_reason(const Step& step, const std::vector<Reason>& reasons, Wrong& wrong) {
  constexpr std::int64_t kFewBytes = 64;
  std::vector<std::int64_t> counts(reasons.size(), 0);
  std::vector<Pass> left;
  for (const auto& pass : step.passes) {
    if (pass.bytes >= 0 && pass.bytes <= kFewBytes) continue;
    const auto reason = std::ranges::find_if(reasons, [&](const Reason& each) { return each.holds(pass); });
    if (reason == reasons.end())
      left.push_back(pass);
    else
      ++counts[static_cast<std::size_t>(reason - reasons.begin())];
  }
  for (std::size_t i = 0; i < reasons.size(); ++i) wrong.compare(reasons[i].why, counts[i], reasons[i].count);
  return left;
}

/// @param reasons  for passes that there are
void check(const Step& step, const std::vector<Reason>& reasons) {
  std::vector<Pass> casts, fills;
  for (const auto& pass : step.passes) {
    if (casts_parameter(pass, step)) casts.push_back(pass);
    const bool is_of_gradient = !pass.given.empty() && step.parameter_sizes.contains(pass.given[0].sizes);
    if (pass.is_fill() && is_of_gradient && !pass.is_in("SplitBackward > aten::zeros")) fills.push_back(pass);
  }
  Wrong wrong;
  wrong.add("casts of parameters", casts);
  wrong.add("gradients filled with zeros", fills);
  auto left = without_reason(step, reasons, wrong);
  const auto of_operators = std::ranges::partition(left, &Pass::is_by_itself);
  wrong.add("without a reason", {left.begin(), of_operators.begin()});
  INFO("copies, casts and fills of the step:" << gpu_copies::listed(step.passes));
  INFO("wrong:" << wrong.text());
  CHECK(wrong.text().empty());
  if (!of_operators.empty())  // which follow the versions of libtorch and cuDNN
    WARN("within other operators:" << gpu_copies::listed({of_operators.begin(), of_operators.end()}));
}

std::function<bool(const Pass&)> is_in(const std::string& name) {
  return [name](const Pass& pass) { return pass.is_in(name); };
}

Reason counted_labels() {
  return {"labels that count, as numbers that are added up",
          [](const Pass& pass) {
            return pass.is_in("aten::sum > aten::to") && pass.given.size() > 1 && pass.given[1].type == "bool";
          },
          1};
}

/// Each of these kernels, by the beginning of its name, is in the step.
void check_kernels(const Step& step, std::set<std::string> kernels) {
  for (const auto& span : traces::spans_of(*step.recorded, c10::DeviceType::CUDA))
    std::erase_if(kernels, [&](const std::string& kernel) { return span.name.starts_with(kernel); });
  std::string missing;
  for (const auto& kernel : kernels) missing += ' ' + kernel;
  INFO("kernels that did not run:" << missing);
  CHECK(kernels.empty());
}

/// Launches of kernels whose names begin so.
std::int64_t launches_of(const Step& step, const std::string& kernel) {
  return std::ranges::count_if(traces::spans_of(*step.recorded, c10::DeviceType::CUDA),
                               [&](const auto& span) { return span.name.starts_with(kernel); });
}

/// Passes that sum what queries, keys and values have of their bias, where cuDNN has written their gradients side by
/// side; or that put them so as well.
std::int64_t passes_over_parts(const Step& step) {
  return launches_of(step, "column_sums_") + launches_of(step, "join_parts_");
}

TEST_CASE("pure bf16 transformer step: no parameter casts, known copies", "[gpu][training]") {
  ap::World world(0, nullptr);
  const models::TransformerSize size{5003, 256, 3, 4, 128};  // four times as many words as a batch has tokens
  const auto step = recorded_step(world, transformer_task(ap::device(world), size), ap::Precision::kBf16Compute);
  constexpr std::int64_t kTables = 2, kOfWeightAndBias = 2;
  // Norms of sums make gradients in single precision; the first is of a sum of other sizes.
  check(step, {{"gradients of the first norm, made in 16 bits", is_in("CastOfParameterBackward"), kOfWeightAndBias},
               {"gradients of tables, to which samples are added", is_in("SplitBackward > aten::zeros"), kTables},
               {"words and places, to be sorted as 32 bits", is_in("SplitBackward > aten::to"), kTables},
               counted_labels()});
  check_kernels(step, {"add_layer_norm_bf16", "add_layer_norm_gradient_", "add_layer_norm_sums_f32", "add_up_columns_",
                       "add_rows_bf16", "gelu_bf16", "gelu_gradient_bf16", "cross_entropy_losses_",
                       "cross_entropy_gradients_", "adam_bf16"});
  // The kernels that write the layers' gradients, of GELU and norms, sum the biases' gradients.
  CHECK(passes_over_parts(step) == size.layers);
}

TEST_CASE("transformer with dropout: residual adds need no own kernel", "[gpu][training]") {
  ap::World world(0, nullptr);
  models::TransformerSize size{4003, 256, 3, 4, 128};
  size.dropout = 0.1;
  const auto step = recorded_step(world, transformer_task(ap::device(world), size), ap::Precision::kBf16Compute);
  check_kernels(step, {"dropout_add_layer_norm_bf16", "dropout_add_layer_norm_gradient_", "add_layer_norm_sums_"});
  CHECK(launches_of(step, "dropout_add_layer_norm_bf16") == 2 * size.layers);
  CHECK(std::ranges::none_of(traces::spans_of(*step.recorded, c10::DeviceType::CPU), [](const auto& span) {
    return span.name == "aten::_fused_dropout" || span.name == "aten::_masked_scale" || span.name == "aten::dropout";
  }));
  CHECK(passes_over_parts(step) == size.layers);
}

TEST_CASE("pure bf16 gated layers: no parameter casts, pointwise fused", "[gpu][training]") {
  ap::World world(0, nullptr);
  const auto step = recorded_step(world, gates_task(ap::device(world)), ap::Precision::kBf16Compute);
  check(step, {{"what is given in single precision",
                [](const Pass& pass) { return pass.operators.starts_with("aten::to"); }, 1}});
  check_kernels(step, {"pointwise_packs", "column_sums_", "adam_bf16"});
}

/// What convolutions and channels-last images are best laid out as.
std::shared_ptr<models::ResNetImpl> channels_last(std::shared_ptr<models::ResNetImpl> net) {
  for (const auto& parameter : net->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  return net;
}

TEST_CASE("bf16 ResNet step: no parameter casts, known copies", "[gpu][training]") {
  ap::World world(0, nullptr);
  auto task = wide_resnet_task(ap::device(world));
  std::int64_t convolutions = 0;
  for (const auto& parameter : task.make()->parameters()) convolutions += parameter.dim() == 4 ? 1 : 0;
  task.make = [make = task.make] { return channels_last(make()); };
  const auto step = recorded_step(world, task, ap::Precision::kBf16);
  check(step, {{"gradients of convolutions, made in 16 bits", is_in("SplitBackward > aten::copy_"), convolutions},
               {"the images, given in single precision",
                [](const Pass& pass) {
                  return pass.operators.starts_with("aten::to") && !pass.given.empty() &&
                         pass.given[0].sizes.size() == 4 && pass.given[0].sizes[1] == 3;
                },
                1},
               {"the gradient of that average, laid out as a norm's images are",
                is_in("BatchNormFunction> > aten::copy_"), 1},
               {"libtorch's average over images, whose result it views with strides", is_in("AsStridedBackward"), 2},
               {"zeros for the statistics of all norms",
                [](const Pass& pass) { return pass.operators.starts_with("aten::zeros"); }, 1},
               counted_labels()});
  check_kernels(step, {"batch_norm_statistics_bf16", "batch_norm_apply_", "batch_norm_gradient_sums_",
                       "batch_norm_coefficients", "max_pool_bf16", "max_pool_gradient_", "cross_entropy_losses_",
                       "cross_entropy_gradients_", "column_sums_", "momentum_bf16"});
}

TEST_CASE("statistics of all norms: three kernels a step", "[gpu][training]") {
  ap::World world(0, nullptr);
  const auto step = recorded_step(world, narrow_resnet_task(ap::device(world)), ap::Precision::kModule, 2);
  for (const char* kernel : {"statistics_sums", "statistics_squares", "statistics_blend"}) {
    INFO(kernel);
    CHECK(launches_of(step, kernel) == 1);
  }
}

}  // namespace gpu_step_kernels_test
