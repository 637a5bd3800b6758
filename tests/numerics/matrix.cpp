#include "matrix.hpp"

#include <autopar/autopar.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "matrix_models.hpp"
#include "own_operators.hpp"
#include "pairwise.hpp"

namespace numerics {

namespace {

/// Plans as the setup of its rank wants.
struct MatrixPlanner {
  static thread_local const Setup* wanted;  ///< of the rank that plans

  autopar::Plan plan(const autopar::ModelProfile& profile, const autopar::ProfiledCost& costs,
                     const autopar::Cluster& cluster, const autopar::PlanRequest& request) const {
    return wanted == nullptr ? autopar::plan_with_defaults(profile, costs, cluster, request)
                             : plan_of(*wanted, profile, costs, cluster, request);
  }
};
thread_local const Setup* MatrixPlanner::wanted = nullptr;

template <class Net>
MatrixModel model(
    std::string name, int max_stages, Traits traits = {}, autopar::Options extra = {},
    std::function<std::shared_ptr<Net>()> make = [] { return std::make_shared<Net>(); }) {
  const auto prepare = [make, traits, extra](const Setup& setup, uint64_t seed) {
    const auto reference =
        std::make_shared<const decltype(run_reference<Net>(make, setup, seed))>(run_reference<Net>(make, setup, seed));
    return [=](autopar::World& world) {
      auto options = setup.options;
      options.batch_dims = traits.batch_dims;
      options.batch_norm = extra.batch_norm;
      const auto net = nets::seeded(seed, make);
      MatrixPlanner::wanted = &setup;
      autopar::AutoParallel<Net, MatrixPlanner> distributed(world, net, options);
      check_rank<Net>(world, distributed, *reference, setup, traits);
      const auto once = [](const autopar::StagePlan& stage) { return stage.recomputed.empty(); };
      if (options.recompute == autopar::Recompute::kAlways && std::ranges::any_of(distributed->plan().stages, once)) {
        throw Failure("a stage runs nothing again");
      }
      if (options.recompute == autopar::Recompute::kNever && !std::ranges::all_of(distributed->plan().stages, once)) {
        throw Failure("a stage runs something again");
      }
    };
  };
  MatrixModel made{.name = std::move(name), .max_stages = max_stages, .prepare = prepare};
  made.one_microbatch = extra.batch_norm == autopar::BatchNorm::kExact;
  return made;
}

MatrixModel with_mixed_samples(MatrixModel model) {
  model.one_microbatch = model.one_replica = true;
  return model;
}

MatrixModel with_ties(MatrixModel model) {
  model.ties = true;
  return model;
}

MatrixModel with_head(MatrixModel model) {
  model.has_head = true;
  return model;
}

MatrixModel with_outputs(MatrixModel model) {
  model.loss_inside = false;
  return model;
}

/// How many ranks the positions of a pipeline have.
enum class Replicas : std::uint8_t { kOne, kOneAndIdle, kMoreAtFirst, kMoreAtLast, kTwo, kManyAtFirst };
constexpr int kReplicaKinds = 6, kMostRanks = 4, kMostPositions = 4;

std::vector<int> replicas_of(int positions, Replicas kind) {
  std::vector<int> out(static_cast<std::size_t>(positions), kind == Replicas::kTwo ? 2 : 1);
  if (kind == Replicas::kMoreAtFirst) out.front() = 2;
  if (kind == Replicas::kMoreAtLast) out.back() = 2;
  if (kind == Replicas::kManyAtFirst) out.front() = positions == 1 ? 4 : 3;
  return out;
}

int ranks_of(int positions, Replicas kind) {
  const auto replicas = replicas_of(positions, kind);
  return std::accumulate(replicas.begin(), replicas.end(), kind == Replicas::kOneAndIdle ? 1 : 0);
}

/// A schedule, with several stages a rank or with orders made for its stages.
struct ScheduleLevel {
  autopar::ScheduleKind kind;
  int chunks;
  bool synthesise;
};
using Kind = autopar::ScheduleKind;
constexpr ScheduleLevel kSchedules[] = {{Kind::kGPipe, 0, false},       {Kind::kOneFOneB, 0, false},
                                        {Kind::kInterleaved, 2, false}, {Kind::kInterleaved, 3, false},
                                        {Kind::kZbH1, 1, false},        {Kind::kZbV, 2, false},
                                        {Kind::kZbV, 2, true},          {Kind::kInterleaved, 2, true}};

constexpr int kMicrobatchCounts[] = {1, 2, 4, 3, 40};
constexpr int kCallsOfAStep[] = {1, 2, 4};
constexpr double kClipNorms[] = {0, 2, std::numeric_limits<double>::infinity()};
constexpr int kSteps = 3;
constexpr int kZeroLevels = 4;
enum class Again : std::uint8_t { kNone, kFull, kSome };
constexpr int kAgain = 3;
// bf16 and fp16 need float32 and have a law of their own (precision_test.cpp).
constexpr autopar::Precision kPrecisions[] = {autopar::Precision::kModule, autopar::Precision::kTf32};
constexpr int kTensorShards[] = {1, 2};
constexpr autopar::ClassHead kClassHeads[] = {autopar::ClassHead::kAuto, autopar::ClassHead::kChunked};
constexpr autopar::Switch kFusions[] = {autopar::Switch::kAuto, autopar::Switch::kOn};
// Gradients in double precision are never rounded.
constexpr autopar::ReduceDtype kReduceDtypes[] = {autopar::ReduceDtype::kFp32, autopar::ReduceDtype::kBf16};

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

}  // namespace

const std::vector<MatrixModel>& matrix_models() {
  const autopar::Options exact{.batch_norm = autopar::BatchNorm::kExact};
  own_operators::register_all();
  static const std::vector<MatrixModel> all = {
      with_head(model<zoo::LeNet>("LeNet", 4)),
      with_outputs(model<zoo::ThreeLinears>("three bias-free linears", 3)),
      model<zoo::HandLinears>("linear layers by hand", 4),
      model<zoo::Nested>("nested modules, mean squared error", 4),
      with_head(model<zoo::WeightedCrossEntropy>("cross-entropy with class weights and ignored labels", 3)),
      model<zoo::SumLoss>("sum reduction", 3),
      with_head(model<zoo::TwoTerms>("two terms with different counts", 4)),
      model<zoo::MaskedMean>("masked mean by division", 3),
      with_head(model<zoo::Regularised>("weight regulariser", 3)),
      with_ties(model<zoo::SharedLinear>("shared linear", 4)),
      with_head(with_ties(model<zoo::TiedEmbedding>("tied embedding", 4))),
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
      with_ties(model<zoo::RotaryDecoder>("rotary decoder", 4)),
      model<zoo::WrittenRows>("written rows and complex values", 4),
      with_ties(model<zoo::Codebook>("bags and a codebook", 3)),
      model<zoo::Advantages>("advantages normalised over the batch", 3),
      with_outputs(model<zoo::UNet>("encoder and decoder, ratio of sums", 4)),
      with_outputs(model<zoo::LossAndMore>("loss and more", 3)),
      with_ties(model<zoo::TeacherForcing>("teacher forcing", 4)),
      with_mixed_samples(model<zoo::Contrastive>("every sample with every other", 4)),
      model<zoo::Experts>("experts", 4),
      with_ties(model<zoo::SlowTeacher>("buffers that follow parameters and samples", 3)),
      model<own_operators::Net>("operators of a user's library", 4),
      model<zoo::EncoderModule>("encoder module, a weight made of weights", 4),
  };
  return all;
}

std::vector<int> MatrixFactors::levels() {
  std::vector<int> levels(kFactors);
  levels[kModel] = static_cast<int>(matrix_models().size());
  levels[kSchedule] = static_cast<int>(std::size(kSchedules));
  levels[kPositions] = kMostPositions;
  levels[kReplicas] = kReplicaKinds;
  levels[kMicrobatches] = static_cast<int>(std::size(kMicrobatchCounts));
  levels[kLayout] = 4;
  levels[kOptimizer] = 6;
  levels[kAccumulate] = static_cast<int>(std::size(kCallsOfAStep));
  levels[kClip] = static_cast<int>(std::size(kClipNorms));
  levels[kZero] = kZeroLevels;
  levels[kRecompute] = kAgain;
  levels[kPrecision] = static_cast<int>(std::size(kPrecisions));
  levels[kTensor] = static_cast<int>(std::size(kTensorShards));
  levels[kClassHead] = static_cast<int>(std::size(kClassHeads));
  levels[kFusion] = static_cast<int>(std::size(kFusions));
  levels[kReduceDtype] = static_cast<int>(std::size(kReduceDtypes));
  return levels;
}

bool MatrixFactors::possible(std::size_t f, int a, std::size_t g, int b) {
  if (f == kModel) {
    const auto& model = matrix_models()[static_cast<std::size_t>(a)];
    if (g == kPositions) return b < model.max_stages;
    if (g == kTensor) return !model.ties || b == 0;
    if (g == kClassHead) return model.has_head || b == 0;
    if (g == kMicrobatches) return !model.one_microbatch || b == 0;
    if (g == kReplicas && model.one_replica) {
      return static_cast<Replicas>(b) == Replicas::kOne || static_cast<Replicas>(b) == Replicas::kOneAndIdle;
    }
    // What a user does between the directions leaves nothing to alternate.
    if (g == kSchedule) return model.loss_inside || kSchedules[b].kind != Kind::kOneFOneB;
  }
  if (f == kPositions && g == kReplicas) {
    const auto kind = static_cast<Replicas>(b);
    const bool as_before = a == 0 && (kind == Replicas::kMoreAtLast || kind == Replicas::kTwo);
    return ranks_of(a + 1, kind) <= kMostRanks && !as_before;
  }
  return true;
}

std::vector<std::vector<int>> MatrixFactors::pairwise() { return pairwise_rows(levels(), 20261122, possible); }

void MatrixFactors::for_each_choice(const std::function<void(const std::vector<int>& row)>& visit) {
  constexpr Factor kTurns[] = {kModel, kPositions, kMicrobatches, kOptimizer, kClassHead, kFusion, kReduceDtype};
  const auto levels = MatrixFactors::levels();
  const auto takes_turns = [&](std::size_t f) {
    return std::ranges::any_of(kTurns, [f](Factor factor) { return static_cast<std::size_t>(factor) == f; });
  };
  const auto is_possible = [&](const std::vector<int>& row) {
    for (std::size_t f = 0; f < row.size(); ++f) {
      for (std::size_t g = f + 1; g < row.size(); ++g) {
        if (!possible(f, row[f], g, row[g])) return false;
      }
    }
    return true;
  };
  std::vector<int> row(kFactors, 0);
  int turn = 0;
  for (bool more = true; more;) {
    do {  // the next model, and so on, that can run the choice
      ++turn;
      int rest = turn;
      for (const auto factor : kTurns) {
        row[factor] = (turn + rest) % levels[factor];
        rest /= levels[factor];
      }
    } while (!is_possible(row));
    visit(row);
    more = false;
    for (std::size_t f = 0; f < row.size() && !more; ++f) {
      if (takes_turns(f)) continue;
      more = ++row[f] < levels[f];
      if (!more) row[f] = 0;
    }
  }
}

int MatrixFactors::ranks(const std::vector<int>& row) {
  return ranks_of(row[kPositions] + 1, static_cast<Replicas>(row[kReplicas])) * kTensorShards[row[kTensor]];
}

Setup MatrixFactors::setup(const std::vector<int>& row) {
  const auto& model = matrix_models()[static_cast<std::size_t>(row[kModel])];
  const auto& schedule = kSchedules[row[kSchedule]];
  const auto again = static_cast<Again>(row[kRecompute]);
  Setup setup;
  setup.chunks = schedule.chunks;
  setup.synthesise = schedule.synthesise;
  setup.options.schedule = schedule.kind;
  setup.options.stages = row[kPositions] + 1;
  setup.options.replicas = replicas_of(row[kPositions] + 1, static_cast<Replicas>(row[kReplicas]));
  setup.options.microbatches = model.one_microbatch ? 1 : kMicrobatchCounts[row[kMicrobatches]];
  setup.local = layout(row[kLayout], ranks(row));
  setup.optimizer = static_cast<Optimizer>(row[kOptimizer]);
  setup.accumulate = kCallsOfAStep[row[kAccumulate]];
  setup.clip_norm = kClipNorms[row[kClip]];
  setup.options.zero = row[kZero];
  setup.options.recompute = again == Again::kNone ? autopar::Recompute::kNever : autopar::Recompute::kAlways;
  setup.some_recomputed = again == Again::kSome;
  setup.options.precision = kPrecisions[row[kPrecision]];
  setup.tensor = kTensorShards[row[kTensor]];
  setup.options.class_head = kClassHeads[row[kClassHead]];
  setup.options.fusion = kFusions[row[kFusion]];
  setup.options.reduce_dtype = kReduceDtypes[row[kReduceDtype]];
  return setup;
}

std::string MatrixFactors::describe(const std::vector<int>& row) {
  return matrix_models()[static_cast<std::size_t>(row[kModel])].name + " on " + std::to_string(ranks(row)) +
         " ranks: " + setup(row).describe();
}

}  // namespace numerics
