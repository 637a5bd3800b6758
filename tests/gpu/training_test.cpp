#include <torch/torch.h>

#include <catch_shim.hpp>

#include <ATen/Context.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>

#include "deterministic_cudnn.hpp"
#include "trained.hpp"

// Trainings with all kernels of the library beside libtorch's: several steps, in every precision, with operators joined
// and apart, of one micro-batch and two. Without dropout, whose draws follow the numbers of operators; with it a
// training repeats itself.
namespace gpu_training_test {

using namespace gpu_tasks;
using precision_test::Comparison;

/// Of a whole tensor: less a matter of chance than its largest element.
double error_norm(const Tensor& a, const Tensor& b) { return (a - b).norm().item<double>(); }

/// 1.5 times libtorch's error; in fp32 as much again as rounding one number gives, else, where libtorch was lucky, as
/// with the loss, a sixteenth of the type's epsilon. On average over tensors: of two such errors one is larger by
/// chance.
double allowed(ap::Precision precision, double of_libtorch, const Tensor& exact) {
  const double size = exact.norm().item<double>();
  if (precision == ap::Precision::kModule) return 1.5 * of_libtorch + 1e-6 * size;
  const bool brain = precision == ap::Precision::kBf16 || precision == ap::Precision::kBf16Compute;
  const double luck = brain ? 0x1p-12 : 0x1p-14;
  return 1.5 * std::max(of_libtorch, luck * size);
}

/// The same training by libtorch alone, exact and with the setting's precision.
template <class Net>
class Beside {
 public:
  explicit Beside(const Task<Net>& task) : task_(task) {}

  /// @param parts  of a batch: micro-batches, where norms take their statistics from one
  const Snapshot& of(std::optional<ap::Precision> precision, int parts) {
    auto& known = known_[{precision, parts}];
    if (known.empty()) known = trained_by_libtorch(task_, precision, parts);
    return known;
  }

 private:
  const Task<Net>& task_;
  std::map<std::pair<std::optional<ap::Precision>, int>, Snapshot> known_;
};

/// A line for people who look for what is lost, or nearly.
void print(const std::string& name, const Setting& setting, const std::vector<Comparison>& compared) {
  const auto ratio = [](const Comparison& each) { return each.allowed > 0 ? each.error / each.allowed : 0; };
  double sum = 0;
  for (const auto& each : compared) sum += ratio(each);
  const auto worst = std::ranges::max_element(compared, {}, ratio);
  std::fprintf(stderr, "%s, %s: errors are %.2f of those allowed, at worst %.2f (%s)\n", name.c_str(),
               setting.describe().c_str(), sum / static_cast<double>(compared.size()), ratio(*worst),
               worst->name.c_str());
}

/// They are three numbers: of two errors of so few one is 2.5 times the other in every twelfth setting.
void check_losses(const Comparison& losses) {
  constexpr double kMostByChance = 4;
  INFO(losses.name << ": error " << losses.error << ", allowed " << losses.allowed);
  REQUIRE(losses.name == "losses");
  CHECK(losses.error <= kMostByChance * losses.allowed);
}

template <class Net>
void check_beside_libtorch(ap::World& world, const Task<Net>& task, const std::vector<Setting>& settings) {
  const precision_test::IeeeOfProcess ieee;
  Beside<Net> beside(task);
  for (const auto& setting : settings) {
    INFO(task.name << ": " << setting.describe());
    const auto made = trained(world, task, setting);
    const auto &exact = beside.of(precision_test::kExactly, setting.microbatches),
               &rounded = beside.of(setting.precision, setting.microbatches);
    std::vector<Comparison> compared;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const auto& [name, value] = exact[i];
      // Of several micro-batches they are those of the whole batch, which libtorch in parts does not make.
      if (setting.microbatches > 1 && name.find("running_") != name.npos) continue;
      if (name.ends_with("num_batches_tracked")) continue;
      compared.push_back({name, error_norm(made[i].second, value),
                          allowed(setting.precision, error_norm(rounded[i].second, value), value)});
    }
    print(task.name, setting, compared);
    check_losses(compared.front());
    precision_test::check_law({compared.begin() + 1, compared.end()}, world.rank(), true);
  }
}

std::vector<Setting> with_all_choices(const std::vector<ap::Precision>& precisions) {
  std::vector<Setting> all;
  for (const ap::Precision precision : precisions) {
    for (const ap::Switch fusion : {ap::Switch::kOn, ap::Switch::kOff}) {
      for (const int microbatches : {1, 2}) all.push_back({precision, fusion, microbatches});
    }
  }
  return all;
}

/// Two of the four, in each of which another choice is made.
std::vector<Setting> with_each_choice(const std::vector<ap::Precision>& precisions) {
  std::vector<Setting> all;
  for (const ap::Precision precision : precisions) {
    all.push_back({precision, ap::Switch::kOn, 2});
    all.push_back({precision, ap::Switch::kOff, 1});
  }
  return all;
}

TEST_CASE("transformer: trains as libtorch, any precision, fused or not", "[gpu][training]") {
  ap::World world(0, nullptr);
  const auto task = small_transformer_task(ap::device(world));
  check_beside_libtorch(world, task,
                        with_all_choices({ap::Precision::kModule, ap::Precision::kBf16, ap::Precision::kBf16Compute}));
  check_beside_libtorch(world, task, with_each_choice({ap::Precision::kTf32, ap::Precision::kFp16}));
}

TEST_CASE("ResNet: trains as libtorch, any precision, fused or not", "[gpu][training]") {
  ap::World world(0, nullptr);
  const auto narrow = narrow_resnet_task(ap::device(world)), wide = wide_resnet_task(ap::device(world));
  {
    const NearestBend bend;
    for (const int parts : {1, 2}) static_cast<void>(trained_by_libtorch(narrow, precision_test::kExactly, parts));
    CHECK(bend.distance() > 1e-5);
  }
  check_beside_libtorch(world, narrow, with_all_choices({ap::Precision::kModule}));
  check_beside_libtorch(world, wide, with_all_choices({ap::Precision::kBf16, ap::Precision::kBf16Compute}));
  check_beside_libtorch(world, wide, with_each_choice({ap::Precision::kTf32, ap::Precision::kFp16}));
}

TEST_CASE("gated layers: train as libtorch, any precision, fused or not", "[gpu][training]") {
  ap::World world(0, nullptr);
  const auto task = gates_task(ap::device(world));
  check_beside_libtorch(world, task,
                        with_all_choices({ap::Precision::kModule, ap::Precision::kBf16, ap::Precision::kBf16Compute}));
  check_beside_libtorch(world, task, with_each_choice({ap::Precision::kTf32, ap::Precision::kFp16}));
}

template <class Net>
void check_repeats(ap::World& world, const Task<Net>& task, const std::vector<Setting>& settings) {
  for (const auto& setting : settings) {
    INFO(task.name << ": " << setting.describe());
    const auto first = trained(world, task, setting), again = trained(world, task, setting);
    for (std::size_t i = 0; i < first.size(); ++i) {
      INFO(first[i].first << ": differs by " << error_norm(first[i].second, again[i].second));
      CHECK(torch::equal(first[i].second, again[i].second));
    }
  }
}

// Not in the list: libtorch's gradient of max-pooling, which adds atomically where windows overlap, so a ResNet whose
// operators are apart. Attention adds the gradient of queries atomically over blocks of keys; here there is one block.
TEST_CASE("training with dropout: bitwise repeatable with all kernels", "[gpu][training]") {
  const DeterministicCuDnn deterministic;
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  check_repeats(world, small_transformer_task(device, 0.1),
                {{ap::Precision::kModule, ap::Switch::kOn, 2},
                 {ap::Precision::kBf16, ap::Switch::kOff, 1},
                 {ap::Precision::kBf16Compute, ap::Switch::kOn, 1}});
  check_repeats(world, wide_resnet_task(device),
                {{ap::Precision::kModule, ap::Switch::kOn, 1}, {ap::Precision::kBf16, ap::Switch::kOn, 2}});
  check_repeats(world, gates_task(device), {{ap::Precision::kBf16Compute, ap::Switch::kOn, 2}});
}

}  // namespace gpu_training_test
