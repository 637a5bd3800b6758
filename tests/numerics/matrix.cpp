#include "matrix.hpp"

#include <autopar/autopar.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>

#include <autopar/plan/chunked_staging.hpp>
#include <autopar/plan/runnable.hpp>
#include <autopar/schedule/synthesised.hpp>

#include "../unit/schedule/equal_times.hpp"
#include "models.hpp"

namespace numerics {

namespace {

/// Plans what a setup wants of several stages a rank, other setups as usual. On fewer positions where the model has not so
/// many operators that may be separated.
struct MatrixPlanner {
  static thread_local const Setup* wanted;  ///< of the rank that plans

  template <class Costs>
  autopar::Plan plan(const autopar::ModelProfile& profile, const Costs& costs, const autopar::Cluster& cluster,
                     autopar::PlanRequest request) const {
    if (wanted == nullptr || wanted->chunks == 0) return autopar::plan_with_defaults(profile, costs, cluster, request);
    autopar::ModelProfile pipelined = profile;
    pipelined.loss_mode = true;  // the order is the schedule's in each direction, whatever comes between them
    auto& replicas = request.options.replicas;
    const int nodes = static_cast<int>(profile.graph.node_count()), chunks = std::min(nodes, wanted->chunks);
    while (static_cast<int>(replicas.size()) * chunks > nodes) replicas.pop_back();
    request.options.stages = static_cast<int>(replicas.size());
    if (chunks == 1) request.options.schedule = "zb-h1";
    autopar::Planner<autopar::ChunkedStaging> planner;
    planner.staging.max_chunks = chunks;
    auto plan = planner.plan(pipelined, costs, cluster, request);
    if (wanted->synthesise) synthesise(plan);
    return plan;
  }

  static void synthesise(autopar::Plan& plan) {
    auto pipeline = autopar::testing::in_a_row(autopar::stages_of(plan).stages);
    pipeline.ranks = plan.world;
    const auto layout = autopar::testing::even_layout(pipeline, plan.microbatches);
    const autopar::Synthesised<autopar::testing::EqualTimes> policy{
        .costs = {}, .local = layout.local, .parts_backwards = true, .budget = 40};
    plan.orders = policy.rank_orders(pipeline, plan.microbatches);
    plan.schedule = autopar::ScheduleKind::kSynthesised;
  }
};
thread_local const Setup* MatrixPlanner::wanted = nullptr;

template <class Net>
MatrixModel model(std::string name, int max_stages, Traits traits = {}, autopar::Options extra = {},
                  std::function<std::shared_ptr<Net>()> make = [] { return std::make_shared<Net>(); }) {
  const auto prepare = [make, traits, extra](const Setup& setup, uint64_t seed) {
    const auto reference = std::make_shared<const decltype(run_reference<Net>(make, setup, seed))>(run_reference<Net>(make, setup, seed));
    return [=](autopar::World& world) {
      auto options = setup.options;
      options.batch_dims = traits.batch_dims;
      options.batch_norm = extra.batch_norm;
      const auto net = [&] {
        const std::lock_guard lock(generator_mutex());
        torch::manual_seed(seed);
        return make();
      }();
      MatrixPlanner::wanted = &setup;
      autopar::AutoParallel<Net, MatrixPlanner> distributed(world, net, options);
      check_rank<Net>(world, distributed, *reference, setup, traits);
      const auto once = [](const autopar::StagePlan& stage) { return stage.recomputed.empty(); };
      if (options.recompute == "full" && std::ranges::any_of(distributed->plan().stages, once)) {
        throw Failure("a stage runs nothing again");
      }
    };
  };
  return {std::move(name), max_stages, true, extra.batch_norm == "exact", prepare};
}

MatrixModel with_outputs(MatrixModel model) {
  model.loss_inside = false;
  return model;
}

struct Shape {
  int ranks;
  std::vector<int> replicas;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{1, {1}},       {2, {2}},       {2, {1, 1}},    {2, {1}},       {3, {3}},
                                         {3, {2, 1}},    {3, {1, 2}},    {3, {1, 1, 1}}, {3, {1, 1}},    {4, {4}},
                                         {4, {3, 1}},    {4, {1, 3}},    {4, {2, 2}},    {4, {1, 2, 1}}, {4, {2, 1, 1}},
                                         {4, {1, 1, 2}}, {4, {1, 1, 1, 1}}};
  return all;
}

constexpr int kMicrobatches[] = {1, 2, 4, 3, 40};
constexpr int kAccumulate[] = {1, 2, 4};
constexpr double kClip[] = {0, 2, std::numeric_limits<double>::infinity()};
constexpr int kSteps = 3;
constexpr int kZeroLevels = 4;

/// Samples of each rank: even, ragged, one rank with none, or another number at each step.
std::vector<std::vector<int64_t>> layout(int kind, int ranks) {
  std::vector<std::vector<int64_t>> out;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> local(static_cast<size_t>(ranks), 4);
    if (kind == 1) {
      for (int r = 0; r < ranks; ++r) local[static_cast<size_t>(r)] = 3 + 2 * ((r + 1) % 3);
    } else if (kind == 2) {
      local.assign(static_cast<size_t>(ranks), 5);
      if (ranks > 1) local[static_cast<size_t>((step + 1) % ranks)] = 0;
    } else if (kind == 3) {
      for (int r = 0; r < ranks; ++r) local[static_cast<size_t>(r)] = 3 + step + r;
    }
    out.push_back(std::move(local));
  }
  return out;
}

/// What a row's factors of training say, whichever plan runs it: layout of samples, optimizer, accumulation, clipping, ZeRO.
void set_training(Setup& setup, int ranks, std::span<const int, 5> factors) {
  setup.local = layout(factors[0], ranks);
  setup.optimizer = static_cast<Optimizer>(factors[1]);
  setup.accumulate = kAccumulate[factors[2]];
  setup.clip_norm = kClip[factors[3]];
  setup.options.zero = factors[4];
}

}  // namespace

const std::vector<MatrixModel>& matrix_models() {
  const autopar::Options exact{.batch_norm = "exact"};
  static const std::vector<MatrixModel> all = {
      model<zoo::LeNet>("LeNet", 4),
      with_outputs(model<zoo::ThreeLinears>("three bias-free linears", 3)),
      model<zoo::HandLinears>("linear layers by hand", 4),
      model<zoo::Nested>("nested modules, mean squared error", 4),
      model<zoo::WeightedCrossEntropy>("cross-entropy with class weights and ignored labels", 3),
      model<zoo::SumLoss>("sum reduction", 3),
      model<zoo::TwoTerms>("two terms with different counts", 4),
      model<zoo::MaskedMean>("masked mean by division", 3),
      model<zoo::Regularised>("weight regulariser", 3),
      model<zoo::SharedLinear>("shared linear", 4),
      model<zoo::TiedEmbedding>("tied embedding", 4),
      model<zoo::ForkJoin>("fork and join", 4),
      with_outputs(model<zoo::Skips>("skips over stages", 4)),
      model<zoo::HandLayerNorm>("hand-written layer norm", 4),
      model<zoo::BatchNormNet<true, true>>("batch norm, exact", 3, {}, exact),
      model<zoo::BatchNormNet<true, false>>("batch norm, affine only, exact", 3, {}, exact),
      model<zoo::BatchNormNet<false, true>>("batch norm, running statistics only, exact", 3, {}, exact),
      model<zoo::BatchNormNet<false, false>>("batch norm, neither, exact", 3, {}, exact),
      with_outputs(model<zoo::EmbeddingNet>("embedding with int64 input", 3)),
      with_outputs(model<zoo::NoParameters>("no parameters", 2)),
      model<zoo::InPlaceViews>("in-place and view operators", 3),
      model<zoo::Pieces>("chunk, split, stack, index, masked_fill, arange", 4),
      with_outputs(model<zoo::SeveralOutputs>("several outputs", 3)),
      with_outputs(model<zoo::Structs>("struct in and out", 3)),
      with_outputs(model<zoo::BatchInDim1>("batch in dim 1", 3, {{1}, 1})),
      with_outputs(model<zoo::SharedArgument>("shared argument", 3, {{0, autopar::kShared}})),
      with_outputs(model<zoo::DropoutNet>("dropout, p = 0", 3)),
      model<zoo::Transformer>("transformer encoder", 4),
      model<zoo::ResNet>("residual network", 4, {}, exact),
      model<zoo::LstmNet>("LSTM", 2),
      with_outputs(model<zoo::RootMeanSquare>("root of a mean", 3)),
      model<zoo::SumOverBatchSize>("sum over the batch size", 3),
      model<zoo::NumbersOfBatch>("numbers made of the batch size", 3),
      with_outputs(model<zoo::NumbersAround>("numbers made of the batch size around a pipeline", 3)),
      model<zoo::StyleNet>("norms of each sample", 3),
      model<zoo::Transcriber>("sequences and their labels", 3),
      model<zoo::WindowAttention>("attention in windows", 4),
      model<zoo::RotaryDecoder>("rotary decoder", 4),
      model<zoo::WrittenRows>("written rows and complex values", 4),
      model<zoo::Codebook>("bags and a codebook", 3),
      model<zoo::Advantages>("advantages normalised over the batch", 3),
      with_outputs(model<zoo::UNet>("encoder and decoder, ratio of sums", 4)),
      with_outputs(model<zoo::LossAndMore>("loss and more", 3)),
  };
  return all;
}

std::vector<int> MatrixFactors::levels() {
  return {static_cast<int>(matrix_models().size()), static_cast<int>(shapes().size()), 5, 2, 4, 4, 3, 3, kZeroLevels};
}

int MatrixFactors::ranks(const std::vector<int>& row) { return shapes()[static_cast<size_t>(row[1])].ranks; }

std::optional<Setup> MatrixFactors::setup(const std::vector<int>& row) {
  const auto& shape = shapes()[static_cast<size_t>(row[1])];
  const auto stages = static_cast<int>(shape.replicas.size());
  const auto& model = matrix_models()[static_cast<size_t>(row[0])];
  if (stages > model.max_stages) return std::nullopt;
  Setup setup;
  setup.options.stages = stages;
  setup.options.replicas = shape.replicas;
  setup.options.microbatches = model.one_microbatch ? 1 : kMicrobatches[row[2]];
  setup.options.schedule = row[3] == 0 || !model.loss_inside ? "gpipe" : "1f1b";
  set_training(setup, shape.ranks, std::span(row).last<5>());
  return setup;
}

std::string MatrixFactors::describe(const std::vector<int>& row) {
  const auto plan = setup(row);
  return matrix_models()[static_cast<size_t>(row[0])].name + " on " + std::to_string(ranks(row)) + " ranks: " +
         (plan ? plan->describe() : "not allowed by the model");
}

// ---------------------------------------------------------------- several stages a rank, backwards in parts

namespace {

struct ChunkedKind {
  const char* schedule;
  int chunks;
  bool synthesise;
};
constexpr ChunkedKind kChunkedKinds[] = {{"interleaved", 2, false}, {"interleaved", 3, false}, {"zb-h1", 1, false},
                                         {"zb-v", 2, false},        {"zb-v", 2, true},         {"interleaved", 2, true}};

const std::vector<Shape>& positions() {
  static const std::vector<Shape> all = {{1, {1}}, {2, {1, 1}}, {2, {2}}, {3, {1, 2}}, {3, {1, 1, 1}}, {4, {2, 2}}};
  return all;
}

}  // namespace

std::vector<int> ChunkedFactors::levels() {
  return {static_cast<int>(matrix_models().size()), static_cast<int>(std::size(kChunkedKinds)),
          static_cast<int>(positions().size()), 5, 4, 4, 2, 2, kZeroLevels};
}

int ChunkedFactors::ranks(const std::vector<int>& row) { return positions()[static_cast<size_t>(row[2])].ranks; }

std::optional<Setup> ChunkedFactors::setup(const std::vector<int>& row) {
  const auto& model = matrix_models()[static_cast<size_t>(row[0])];
  const auto& kind = kChunkedKinds[row[1]];
  const auto& shape = positions()[static_cast<size_t>(row[2])];
  Setup setup;
  setup.chunks = kind.chunks;
  setup.synthesise = kind.synthesise;
  setup.options.schedule = kind.schedule;
  setup.options.stages = static_cast<int>(shape.replicas.size());
  setup.options.replicas = shape.replicas;
  setup.options.microbatches = model.one_microbatch ? 1 : kMicrobatches[row[3]];
  set_training(setup, shape.ranks, std::span(row).last<5>());
  return setup;
}

std::string ChunkedFactors::describe(const std::vector<int>& row) {
  return matrix_models()[static_cast<size_t>(row[0])].name + " on " + std::to_string(ranks(row)) + " ranks: " +
         setup(row)->describe();
}

}  // namespace numerics
