#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <cstdint>
#include <exception>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// An operator that throws, wherever a rank is: capturing, in the prologue, in a compute action, between compute
// actions, in the epilogue, in the optimizer. The rank has its own error, all others one that names it, nobody hangs,
// and the process goes on.
namespace failing_operators_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

/// Below the keys of the tracer and of shares, above everything that computes.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

/// What a rank's thread has called while its operators are counted.
struct Calls {
  std::int64_t count = 0;
  std::int64_t fails_at = -1;
  bool failed = false;
};
thread_local Calls calls;

/// `set_data` compares types and exchanges pointers: nothing in it could fail, and destructors undo with it.
bool can_fail(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name != "aten::set_data" && name != "aten::_has_compatible_shallow_copy_type";
}

void count_and_run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  if (can_fail(op) && calls.count++ == calls.fails_at) {
    calls.failed = true;
    throw std::runtime_error("scripted failure of " + op.schema().name());
  }
  op.callBoxed(stack);
}

void register_key() {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&count_and_run>());
    return made;
  }();
}

/// Targets are counted before the pipeline; the root of the loss is taken behind it.
struct Net : nn::Module {
  explicit Net(bool with_root) : root(with_root) {
    nets::register_all(*this, "table", table, "a", a, "norm", norm, "b", b);
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto h = torch::tanh(b(torch::dropout(torch::relu(norm(a(table(ids).flatten(1)))), 0.2, is_training())));
    const auto loss = F::cross_entropy(F::linear(h, table->weight), y, F::CrossEntropyFuncOptions().ignore_index(0));
    return root ? torch::sqrt(loss + 1e-8) : loss;
  }
  bool root;
  nn::Embedding table{9, 4};
  nn::Linear a{12, 8};
  nn::BatchNorm1d norm{8};
  nn::Linear b{8, 4};
};

struct Training {
  const char* name;
  bool root;
  int ranks;
  ap::Options options;
};

/// Two steps of two calls with everything that a training loop does; this rank's last loss.
double train(ap::World& world, const Training& training) {
  const auto net = nets::made<Net>(5, training.root);
  const c10::impl::IncludeDispatchKeyGuard counted(kKey);
  const auto ids = (torch::arange(12, torch::kLong) * 5 + world.rank()).remainder(9).view({4, 3});
  const auto labels = (torch::arange(4, torch::kLong) * 2 + world.rank()).remainder(9);
  ap::AutoParallel<Net> model(world, net, training.options);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  model->attach(optimizer);
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    {
      const auto guard = model->no_sync();
      model(ids, labels).backward();
    }
    const auto loss = model(ids, labels);
    loss.backward();
    static_cast<void>(model->clip_grad_norm_(1.0));
    optimizer.step();
    last = loss.item<double>();
  }
  static_cast<void>(model->gather_state());
  return last;
}

struct Outcome {
  std::vector<Calls> calls;
  std::vector<std::string> errors;  ///< by rank; empty = none
  std::vector<double> losses;
};

Outcome run(const Training& training, int failing = -1, std::int64_t fails_at = -1) {
  const auto ranks = static_cast<std::size_t>(training.ranks);
  Outcome out{std::vector<Calls>(ranks), std::vector<std::string>(ranks), std::vector<double>(ranks)};
  const auto body = [&](ap::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    calls = {.count = 0, .fails_at = world.rank() == failing ? fails_at : -1};
    try {
      out.losses[r] = train(world, training);
    } catch (const std::exception& error) {
      out.errors[r] = error.what();
      out.calls[r] = calls;
      throw;
    }
    out.calls[r] = calls;
  };
  try {
    ap::loopback::run(training.ranks, body, {.stall = {ap::Seconds(5), ap::Seconds(30)}});  // longer is a hang
  } catch (const std::exception&) {  // the first cause; `out` has all of them
  }
  return out;
}

TEST_CASE("throwing operator on one rank: ends all ranks, anywhere") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  register_key();
  const std::vector<Training> trainings{
      {"1f1b", false, 2, {.stages = 2, .microbatches = 2, .schedule = ap::ScheduleKind::kOneFOneB}},
      {"gpipe, results and an epilogue",
       true,
       2,
       {.stages = 2, .microbatches = 2, .schedule = ap::ScheduleKind::kGPipe}},
      {"interleaved, ZeRO 1",
       false,
       3,
       {.stages = 2, .microbatches = 2, .zero = 1, .replicas = {2, 1}, .schedule = ap::ScheduleKind::kInterleaved}},
      {"zb-h1, ZeRO 2",
       false,
       3,
       {.stages = 2, .microbatches = 2, .zero = 2, .replicas = {1, 2}, .schedule = ap::ScheduleKind::kZbH1}},
      {"zb-v, ZeRO 3, everything is recomputed",
       false,
       3,
       {.stages = 2,
        .microbatches = 2,
        .zero = 3,
        .replicas = {2, 1},
        .schedule = ap::ScheduleKind::kZbV,
        .recompute = ap::Recompute::kAlways}},
  };
  constexpr int kPlaces = 36;
  // As the others are told of them: "forward" is what is before and behind the pipeline, "its program" the optimizer.
  const std::vector<std::string> places{"capturing the model",
                                        "verifying the capture",
                                        "'forward'",
                                        "'forward of stage",
                                        "'backward of stage",
                                        "'input backward of stage",
                                        "'weight backward of stage",
                                        "'send of values",
                                        "'receive of values",
                                        "'send of gradients",
                                        "'receive of gradients",
                                        "'its program'",
                                        "'gather_state'"};
  std::set<std::string> failed;
  for (const auto& training : trainings) {
    const auto whole = run(training);
    for (const auto& error : whole.errors) {
      INFO(training.name << ": " << error);
      REQUIRE(error.empty());
    }
    for (int failing = 0; failing < training.ranks; ++failing) {
      const auto count = whole.calls[static_cast<std::size_t>(failing)].count;
      for (int place = 0; place < kPlaces; ++place) {
        const auto fails_at = (2 * place + 1) * count / (2 * kPlaces);
        INFO(training.name << ", rank " << failing << ", operator " << fails_at << " of " << count);
        const auto out = run(training, failing, fails_at);
        for (int rank = 0; rank < training.ranks; ++rank) {
          const auto& error = out.errors[static_cast<std::size_t>(rank)];
          INFO("rank " << rank << ": " << error);
          if (rank != failing && error.empty()) continue;  // it had nothing to wait for, and has ended
          CHECK(error.find("scripted failure of aten::") != std::string::npos);
          if (rank == failing) continue;
          CHECK(error.find("rank " + std::to_string(failing)) != std::string::npos);
          for (const auto& named : places) {
            if (error.find("failed in " + named) != std::string::npos) failed.insert(named);
          }
        }
        CHECK(out.calls[static_cast<std::size_t>(failing)].failed);
      }
    }
    CHECK(run(training).losses == whole.losses);  // the process goes on
  }
  CHECK(failed == std::set<std::string>(places.begin(), places.end()));
}

}  // namespace failing_operators_test
