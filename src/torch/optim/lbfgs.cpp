#include <autopar/torch/optim/lbfgs.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/error.hpp>

#include "torch/optim/tensor_lists.hpp"

namespace autopar::optim {

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kLeastCurvature = 1e-10;  // smallest curvature of a pair that is kept
constexpr double kArmijo = 1e-4, kWolfe = 0.9;
constexpr int kMostTrials = 25;
constexpr double kNarrowest = 1e-9;  // bracket of the line search, as the change of one element

std::int64_t most_evaluations(const LBFGSOptions& options) {
  return options.max_eval().value_or(options.max_iter() * 5 / 4);
}

/// A point on the line of the line search.
struct Point {
  double t = 0, loss = 0, slope = 0;
  Tensors gradient{};
};

/// The minimum, within bounds, of the cubic through two points with their slopes.
double cubic_minimum(const Point& a, const Point& b, double lower, double upper) {
  const auto& [left, right] = a.t <= b.t ? std::tie(a, b) : std::tie(b, a);
  const double mean = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.t - right.t);
  const double square = mean * mean - left.slope * right.slope;
  if (!(square >= 0)) return (lower + upper) / 2;
  const double root = std::sqrt(square);
  const double width = right.t - left.t;
  const double found = right.t - width * ((right.slope + root - mean) / (right.slope - left.slope + 2 * root));
  return std::min(std::max(found, lower), upper);
}

/// One step. Vectors over all parameters are lists of this rank's tensors, for parameters that have a gradient or had
/// one in an earlier step.
class LbfgsRun {
 public:
  LbfgsRun(torch::optim::Optimizer& optimizer, ParameterCollectives& ranks,
           const torch::optim::Optimizer::LossClosure& closure)
      : optimizer_(optimizer), ranks_(ranks), closure_(closure) {}

  at::Tensor run();

 private:
  [[nodiscard]] const LBFGSOptions& options() const {
    return static_cast<const LBFGSOptions&>(optimizer_.param_groups().front().options());
  }
  [[nodiscard]] const Tensors& handles() const { return optimizer_.param_groups().front().params(); }
  double evaluate();
  void find_parameters();
  void take_gradients();
  void resume();
  void add_pair();
  [[nodiscard]] Tensors direction() const;
  void begin_iteration();
  bool iterate(std::int64_t iteration);
  [[nodiscard]] Point try_at(double t);
  [[nodiscard]] Point search(const Point& start, double t);
  [[nodiscard]] Point zoom(std::array<Point, 2> bracket, const Point& start, int trials);

  [[nodiscard]] Tensors for_all(const Tensors& own) const;
  [[nodiscard]] double dot(const Tensors& a, const Tensors& b) const;
  [[nodiscard]] double largest(const Tensors& vector) const;
  [[nodiscard]] double most_of_ranks(double mine) const;
  [[nodiscard]] Tensors pairs(std::size_t index, bool of_moves) const;
  void move_by(double t) {
    if (!parameters_.empty()) at::_foreach_add_(parameters_, along_, t);
  }

  torch::optim::Optimizer& optimizer_;
  ParameterCollectives& ranks_;
  const torch::optim::Optimizer::LossClosure& closure_;
  std::vector<std::size_t> places_;  ///< by entry of the following lists: index among the handles
  Tensors parameters_, gradient_, along_;
  std::vector<LBFGSParamState*> states_;
  at::Tensor loss_;  ///< of the latest evaluation
  double loss_here_ = 0;
  std::int64_t evaluations_ = 0;
  std::int64_t steps_ = 0;                  ///< iterations, including earlier steps
  std::vector<double> inverse_curvatures_;  ///< by pair
  double scale_ = 1;                        ///< of the first guess of the inverse Hessian
};

// ---------------------------------------------------------------- vectors

Tensors LbfgsRun::for_all(const Tensors& own) const {
  Tensors all(handles().size());
  for (std::size_t k = 0; k < places_.size(); ++k) all[places_[k]] = own[k];
  return all;
}

double LbfgsRun::dot(const Tensors& a, const Tensors& b) const {
  return ranks_.dot(handles(), for_all(a), for_all(b)).item<double>();
}

double LbfgsRun::largest(const Tensors& vector) const {
  return ranks_.norms(handles(), for_all(vector), std::numeric_limits<double>::infinity()).max().item<double>();
}

double LbfgsRun::most_of_ranks(double mine) const {
  const auto all = ranks_.of_ranks(mine);
  return *std::max_element(all.begin(), all.end());
}

Tensors LbfgsRun::pairs(std::size_t index, bool of_moves) const {
  Tensors vector;
  for (auto* state : states_) vector.push_back((of_moves ? state->old_moves() : state->old_gradients())[index]);
  return vector;
}

// ---------------------------------------------------------------- the closure

double LbfgsRun::evaluate() {
  loss_ = detail::loss_of(closure_);
  ++evaluations_;
  if (!loss_.defined() || loss_.numel() != 1)
    throw InvalidArgument("autopar::optim::LBFGS: the closure must return the loss, a tensor of one element");
  const double loss = loss_.item<double>();
  const auto all = ranks_.of_ranks(loss);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (std::bit_cast<std::uint64_t>(all[r]) == std::bit_cast<std::uint64_t>(all[0])) continue;
    std::ostringstream text;
    text.precision(17);
    text << "autopar::optim::LBFGS: the closure returned " << all[0] << " on rank 0 and " << all[r] << " on rank " << r
         << ", but all ranks search along one line: return the loss of all ranks' samples, as the model or "
            "ap::global_mean gives it";
    throw InvalidArgument(text.str());
  }
  if (evaluations_ == 1) find_parameters();
  take_gradients();
  return loss;
}

void LbfgsRun::find_parameters() {
  detail::require_dense_real(optimizer_, "LBFGS");
  for (std::size_t i = 0; i < handles().size(); ++i) {
    const auto& state = optimizer_.state();
    const bool has_state = state.find(handles()[i].unsafeGetTensorImpl()) != state.end();
    if (!handles()[i].grad().defined() && !has_state) continue;
    places_.push_back(i);
    parameters_.push_back(handles()[i]);
  }
}

// All holders of a parameter agree whether it has a gradient, but other ranks do not know it.
void LbfgsRun::take_gradients() {
  constexpr int kNone = 0, kSome = 1, kNew = 2;
  int found = kNone;
  gradient_.clear();
  for (std::size_t i = 0, k = 0; i < handles().size(); ++i) {
    const auto& gradient = handles()[i].grad();
    const bool is_known = k < places_.size() && places_[k] == i;
    if (gradient.defined()) found = std::max(found, is_known ? kSome : kNew);
    if (!is_known) continue;
    gradient_.push_back(gradient.defined() ? gradient.clone() : at::zeros_like(handles()[i]));
    ++k;
  }
  const auto most = most_of_ranks(found);
  if (most == kNew)
    throw InvalidArgument(
        "autopar::optim::LBFGS: a later call of the closure makes a gradient for a parameter that had none after the "
        "first; the closure must compute the same loss each time");
  if (most == kNone && evaluations_ > 1)
    throw InvalidArgument(
        "autopar::optim::LBFGS: a later call of the closure made no gradients, as a step that overflows in fp16 does; "
        "call backward in it, and train with precision = bf16 or module");
}

// ---------------------------------------------------------------- iterations

/// Restores the state of earlier steps.
void LbfgsRun::resume() {
  std::size_t pairs_here = 0;
  for (std::size_t k = 0; k < places_.size(); ++k) {
    auto& state = optimizer_.state()[parameters_[k].unsafeGetTensorImpl()];
    if (state == nullptr) state = std::make_unique<LBFGSParamState>();
    states_.push_back(static_cast<LBFGSParamState*>(state.get()));
    steps_ = std::max(steps_, states_.back()->step());
    pairs_here = std::max(pairs_here, states_.back()->old_moves().size());
  }
  steps_ = static_cast<std::int64_t>(most_of_ranks(static_cast<double>(steps_)));
  const auto count = static_cast<std::size_t>(most_of_ranks(static_cast<double>(pairs_here)));
  for (std::size_t k = 0; k < places_.size(); ++k) {
    auto& state = *states_[k];
    for (auto* tensor : {&state.gradient(), &state.move()}) {
      if (!tensor->defined()) *tensor = at::zeros_like(gradient_[k]);
    }
    for (auto* list : {&state.old_gradients(), &state.old_moves()}) {
      while (list->size() < count) list->push_front(at::zeros_like(gradient_[k]));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto gradients = pairs(i, false);
    const double curvature = dot(gradients, pairs(i, true));
    inverse_curvatures_.push_back(1 / curvature);
    if (i + 1 == count) scale_ = curvature / dot(gradients, gradients);
  }
}

void LbfgsRun::add_pair() {
  Tensors gradients, moves;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    gradients.push_back(gradient_[k] - states_[k]->gradient());
    moves.push_back(states_[k]->move());
  }
  const double curvature = dot(gradients, moves);
  if (!(curvature > kLeastCurvature)) return;
  if (options().history_size() < 1) return;
  const auto most = static_cast<std::size_t>(options().history_size());
  const auto drops = inverse_curvatures_.size() < most ? 0 : inverse_curvatures_.size() - most + 1;
  const auto drop = [drops](auto& list) {
    list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(drops));
  };
  drop(inverse_curvatures_);
  for (std::size_t k = 0; k < states_.size(); ++k) {
    auto& state = *states_[k];
    drop(state.old_gradients());
    drop(state.old_moves());
    state.old_gradients().push_back(gradients[k]);
    state.old_moves().push_back(moves[k].clone());
  }
  inverse_curvatures_.push_back(1 / curvature);
  scale_ = curvature / dot(gradients, gradients);
}

Tensors LbfgsRun::direction() const {
  auto vector = gradient_.empty() ? Tensors() : at::_foreach_neg(gradient_);
  const auto add = [&](const Tensors& other, double factor) {
    if (!vector.empty()) at::_foreach_add_(vector, other, factor);
  };
  std::vector<double> factors(inverse_curvatures_.size());
  for (std::size_t i = factors.size(); i-- > 0;) {
    factors[i] = dot(pairs(i, true), vector) * inverse_curvatures_[i];
    add(pairs(i, false), -factors[i]);
  }
  if (!vector.empty()) at::_foreach_mul_(vector, scale_);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double back = dot(pairs(i, false), vector) * inverse_curvatures_[i];
    add(pairs(i, true), factors[i] - back);
  }
  return vector;
}

void LbfgsRun::begin_iteration() {
  if (++steps_ > 1) add_pair();
  along_ = direction();
  for (std::size_t k = 0; k < states_.size(); ++k) {
    states_[k]->step(steps_);
    states_[k]->gradient().copy_(gradient_[k]);
  }
}

/// Runs one iteration.
/// @return whether another one follows
bool LbfgsRun::iterate(std::int64_t iteration) {
  begin_iteration();
  const Point start{0, loss_here_, dot(gradient_, along_), gradient_};
  double t = options().lr();
  if (steps_ == 1) t *= std::min(1.0, 1 / ranks_.norms(handles(), for_all(gradient_), 1).sum().item<double>());
  const bool descends = !(start.slope > -options().tolerance_change());
  const bool is_last = iteration == options().max_iter();
  if (descends && options().line_search_fn()) {
    auto found = search(start, t);
    t = found.t;
    loss_here_ = found.loss;
    gradient_ = std::move(found.gradient);
    move_by(t);
  } else if (descends) {
    move_by(t);
    if (!is_last) loss_here_ = evaluate();
  }
  for (std::size_t k = 0; k < states_.size(); ++k) states_[k]->move().copy_(along_[k]).mul_(t);
  if (!descends || is_last || evaluations_ >= most_evaluations(options())) return false;
  if (largest(gradient_) <= options().tolerance_grad()) return false;
  if (largest(along_) * t <= options().tolerance_change()) return false;
  return !(std::abs(loss_here_ - start.loss) < options().tolerance_change());
}

// ---------------------------------------------------------------- line search

/// Evaluates the point at `t`; the parameters are restored afterwards.
Point LbfgsRun::try_at(double t) {
  Tensors before;
  for (const auto& parameter : parameters_) before.push_back(parameter.clone());
  move_by(t);
  Point point{t, evaluate(), 0, {}};
  point.gradient = std::move(gradient_);
  point.slope = dot(point.gradient, along_);
  if (!before.empty()) at::_foreach_copy_(parameters_, before);
  return point;
}

bool is_too_high(const Point& point, const Point& start) {
  return point.loss > start.loss + kArmijo * point.t * start.slope;
}
bool is_flat(const Point& point, const Point& start) { return std::abs(point.slope) <= -kWolfe * start.slope; }

/// A point that satisfies the strong Wolfe conditions, or the best point found.
Point LbfgsRun::search(const Point& start, double t) {
  Point previous = start, now = try_at(t);
  int trials = 0;
  for (; trials < kMostTrials; ++trials) {
    if (is_too_high(now, start) || (trials > 1 && now.loss >= previous.loss)) break;
    if (is_flat(now, start)) return now;
    if (now.slope >= 0) break;
    t = cubic_minimum(previous, now, now.t + 0.01 * (now.t - previous.t), now.t * 10);
    previous = std::move(now);
    now = try_at(t);
  }
  if (trials == kMostTrials) return start.loss <= now.loss ? start : now;
  return zoom({std::move(previous), std::move(now)}, start, trials);
}

Point LbfgsRun::zoom(std::array<Point, 2> bracket, const Point& start, int trials) {
  const double longest = largest(along_);
  std::size_t low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
  bool stalled = false;
  for (; trials < kMostTrials; ++trials) {
    const auto [lower, upper] = std::minmax(bracket[0].t, bracket[1].t);
    double t = cubic_minimum(bracket[0], bracket[1], lower, upper);
    const double margin = 0.1 * (upper - lower);
    const bool is_near_end = std::min(upper - t, t - lower) < margin;
    if (is_near_end && (stalled || t >= upper || t <= lower)) {
      t = std::abs(t - upper) < std::abs(t - lower) ? upper - margin : lower + margin;
      stalled = false;
    } else {
      stalled = is_near_end;
    }
    auto now = try_at(t);
    if (is_too_high(now, start) || now.loss >= bracket[low].loss) {
      bracket[1 - low] = std::move(now);
      low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
    } else {
      const bool is_found = is_flat(now, start);
      if (!is_found && now.slope * (bracket[1 - low].t - bracket[low].t) >= 0)
        bracket[1 - low] = std::move(bracket[low]);
      bracket[low] = std::move(now);
      if (is_found) break;
    }
    if (std::abs(bracket[1].t - bracket[0].t) * longest < kNarrowest) break;
  }
  return bracket[low];
}

at::Tensor LbfgsRun::run() {
  loss_here_ = evaluate();
  const auto first = loss_;
  if (largest(gradient_) <= options().tolerance_grad()) return first;
  resume();
  for (std::int64_t iteration = 1; iteration <= options().max_iter() && iterate(iteration);) ++iteration;
  return first;
}
}  // namespace

// ---------------------------------------------------------------- state

void LBFGSParamState::serialize(torch::serialize::OutputArchive& archive) const {
  using torch::optim::deque_to_list;
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(gradient);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(move);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG_DEQUE(old_gradients);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG_DEQUE(old_moves);
}

void LBFGSParamState::serialize(torch::serialize::InputArchive& archive) {
  using torch::optim::list_to_deque;
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, gradient);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, move);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG_DEQUE(std::deque<torch::Tensor>, old_gradients);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG_DEQUE(std::deque<torch::Tensor>, old_moves);
}

// ---------------------------------------------------------------- LBFGS

LBFGS::LBFGS(const std::vector<torch::optim::OptimizerParamGroup>& groups,
             LBFGSOptions defaults)  // NOLINT(performance-unnecessary-value-param): as torch::optim declares it
    : Optimizer(groups, std::make_unique<LBFGSOptions>(defaults)) {
  TORCH_CHECK(param_groups_.size() == 1, "LBFGS takes one group of parameters, which are one vector; got ",
              param_groups_.size());
  const auto& options = static_cast<const LBFGSOptions&>(param_groups_.front().options());
  TORCH_CHECK(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  TORCH_CHECK(options.max_iter() >= 0, "Invalid max_iter value: ", options.max_iter());
  TORCH_CHECK(options.history_size() >= 0, "Invalid history_size value: ", options.history_size());
  TORCH_CHECK(!options.line_search_fn() || *options.line_search_fn() == "strong_wolfe",
              "only 'strong_wolfe' is supported as line_search_fn, not '", *options.line_search_fn(), "'");
}

const OptimizerDescriptor& LBFGS::descriptor() const {
  using Range = OptimizerDescriptor::Range;
  const auto history = [](const LBFGSOptions& options) { return options.history_size(); };
  static const OptimizerDescriptor kDescriptor =
      describe_optimizer<LBFGS, LBFGSOptions, LBFGSParamState>("LBFGS", StepNeeds::kNorms)
          .counter("step", &LBFGSParamState::step)
          .tensor("gradient", &LBFGSParamState::gradient)
          .tensor("move", &LBFGSParamState::move)
          .tensors(
              "old_gradients", [](LBFGSParamState & state) -> auto& { return state.old_gradients(); }, history)
          .tensors(
              "old_moves", [](LBFGSParamState & state) -> auto& { return state.old_moves(); }, history)
          .option("lr", &LBFGSOptions::lr, Range::kNotNegative)
          .option("max_iter", &LBFGSOptions::max_iter, Range::kCount)
          .option(
              "max_eval", [](const LBFGSOptions& options) { return static_cast<double>(most_evaluations(options)); },
              [](LBFGSOptions& options, double value) { options.max_eval(static_cast<std::int64_t>(value)); },
              Range::kCount)
          .option("tolerance_grad", &LBFGSOptions::tolerance_grad, Range::kNotNegative)
          .option("tolerance_change", &LBFGSOptions::tolerance_change, Range::kNotNegative)
          .option("history_size", &LBFGSOptions::history_size, Range::kCount)
          .option(
              "strong_wolfe", [](const LBFGSOptions& options) { return options.line_search_fn() ? 1.0 : 0.0; },
              [](LBFGSOptions& options, double value) {
                options.line_search_fn(value == 0 ? std::optional<std::string>() : "strong_wolfe");
              },
              Range::kFlag)
          .temporaries(6);
  return kDescriptor;
}

at::Tensor LBFGS::step(LossClosure closure) {
  if (closure == nullptr) {
    throw InvalidArgument(
        "autopar::optim::LBFGS: step takes a closure that makes gradients of the loss and returns it: "
        "opt.step([&] { opt.zero_grad(); auto loss = model(x, y); loss.backward(); return loss; })");
  }
  const at::NoGradGuard no_grad;
  return LbfgsRun(*this, collectives(), closure).run();
}

void LBFGS::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LBFGSParamState, LBFGSOptions>(archive, *this);
}
void LBFGS::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LBFGSParamState, LBFGSOptions>(archive, *this);
}

}  // namespace autopar::optim
