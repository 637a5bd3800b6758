#pragma once

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <autopar/autopar.hpp>
#include <nets.hpp>

#include "setup.hpp"

#include "torch/parameters/part_access.hpp"

/// Equality of a distributed training with the one-process training of the same module, seed and samples (DESIGN §4.1).
namespace numerics {

using nets::generator_mutex;
using torch::Tensor;

/// Where a model's traits differ from batch dimension 0, one differentiable scalar out.
struct Traits {
  std::vector<int> batch_dims;  ///< of the tensor arguments, kShared allowed; empty = all 0
  int64_t output_dim = 0;       ///< batch dimension of batched outputs
  double tolerance = 1e-12;
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  if (got.defined() != want.defined()) {
    throw Failure(what +
                  (got.defined() ? ": defined, but not in one process" : ": undefined, but defined in one process"));
  }
  if (!want.defined()) return;
  const autopar::parameters::PartAccess
      access;  // `got` may be what a rank has of a parameter, beside the same elements of `want`
  if (got.sizes() != want.sizes()) {
    std::ostringstream out;
    out << what << ": sizes " << got.sizes() << " instead of " << want.sizes();
    throw Failure(out.str());
  }
  if (got.scalar_type() != want.scalar_type()) throw Failure(what + ": another element type");
  if (want.numel() == 0) return;
  const auto a = got.detach().cpu().to(torch::kDouble), b = want.detach().cpu().to(torch::kDouble);
  const double error = (a - b).abs().max().item<double>();
  const double bound = tolerance * (1 + b.abs().max().item<double>());
  if (!(error <= bound)) {
    std::ostringstream out;
    out << what << ": differs by " << error << ", allowed is " << bound;
    throw Failure(out.str());
  }
}

/// Named tensors at some moment.
using Snapshot = std::vector<std::pair<std::string, Tensor>>;

/// What one process computes, call by call and step by step.
template <class Args>
struct Reference {
  struct Call {
    Args args;  ///< of all ranks, concatenated
    std::vector<Tensor> outputs;
    std::vector<Tensor> input_gradients;
  };
  std::vector<Call> calls;          ///< steps * accumulate
  std::vector<Snapshot> gradients;  ///< after each step's last backward (and clipping)
  std::vector<double> norms;        ///< gradient norm of each step, if clipped
  Snapshot parameters, buffers;     ///< at the end
};

using Optimizers = std::vector<std::unique_ptr<torch::optim::Optimizer>>;

/// Of handles that have their whole sizes: some optimizers take matrices alone, and leave the rest to another.
inline Optimizers make_optimizers(Optimizer kind, const std::vector<Tensor>& parameters) {
  Optimizers all;
  std::vector<Tensor> matrices, others;
  for (const auto& parameter : parameters) {
    const bool is_matrix = kind == Optimizer::kMuon && parameter.dim() > 1 && !parameter.is_complex();
    (is_matrix ? matrices : others).push_back(parameter);
  }
  if (!matrices.empty())
    all.push_back(std::make_unique<autopar::optim::Muon>(matrices, autopar::optim::MuonOptions(0.02)));
  if (kind == Optimizer::kSgd) {
    all.push_back(std::make_unique<torch::optim::SGD>(others, torch::optim::SGDOptions(0.05).momentum(0.9)));
  } else if (kind == Optimizer::kRmsProp) {
    const auto options = torch::optim::RMSpropOptions(1e-2).eps(1e-3).momentum(0.5);
    all.push_back(std::make_unique<torch::optim::RMSprop>(others, options));
  } else if (kind == Optimizer::kAdagrad) {
    const auto options = torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1);
    all.push_back(std::make_unique<torch::optim::Adagrad>(others, options));
  } else if (kind == Optimizer::kLars) {
    const auto options = autopar::optim::LARSOptions(0.1).trust_coefficient(0.1).weight_decay(0.01).eps(1e-3);
    all.push_back(std::make_unique<autopar::optim::LARS>(others, options));
  } else {
    all.push_back(std::make_unique<torch::optim::AdamW>(others, torch::optim::AdamWOptions(1e-2).eps(1e-3)));
  }
  return all;
}

inline void zero_grads(Optimizers& optimizers) {
  for (auto& optimizer : optimizers) optimizer->zero_grad();
}
inline void step_all(Optimizers& optimizers) {
  for (auto& optimizer : optimizers) optimizer->step();
}

/// The elements that a rank holds, as its handle has them.
inline Tensor held_part(const Tensor& whole, const autopar::ParameterShard& shard) {
  if (!whole.defined() || shard.whole) return whole;
  if (shard.dim >= 0) {
    std::vector<Tensor> pieces;
    for (const auto& [begin, end] : shard.indices) pieces.push_back(whole.slice(shard.dim, begin, end));
    const auto slice = torch::cat(pieces, shard.dim);
    return shard.of_slice ? slice.reshape({-1}).slice(0, shard.of_slice->first, shard.of_slice->second) : slice;
  }
  return whole.reshape({-1}).slice(0, shard.begin, shard.end);
}

/// The scalar that a user makes of results: a loss stays, other results are weighted by sample.
inline Tensor objective(const std::vector<Tensor>& outputs, const std::vector<Tensor>& weights) {
  if (outputs.size() == 1 && outputs[0].dim() == 0) return outputs[0];
  Tensor sum;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto term = (outputs[i] * weights[i].to(outputs[i].device())).sum();
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

inline std::vector<Tensor> weights_like(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> out;
  for (const auto& output : outputs) {
    out.push_back(
        torch::linspace(-1, 2, output.numel(), output.options().requires_grad(false)).cos().view(output.sizes()));
  }
  return out;
}

inline Snapshot gradients_of(const torch::OrderedDict<std::string, Tensor>& parameters) {
  Snapshot out;
  for (const auto& item : parameters) {
    out.emplace_back(item.key(), item.value().grad().defined() ? item.value().grad().clone() : Tensor());
  }
  return out;
}

inline Snapshot copies_of(const torch::OrderedDict<std::string, Tensor>& tensors) {
  Snapshot out;
  for (const auto& item : tensors) out.emplace_back(item.key(), item.value().detach().clone());
  return out;
}

template <class Model, class Args>
auto call(Model& net, const Args& args) {
  return std::apply([&](const auto&... each) { return net(each...); }, args);
}

/// Runs one process. Seeds the default generator; not for two threads at once.
template <class Net>
auto run_reference(const std::function<std::shared_ptr<Net>()>& make, const Setup& setup, uint64_t seed) {
  using Args = decltype(Net::batch(1));
  Reference<Args> reference;
  torch::manual_seed(seed);
  const auto net = make();
  auto optimizers = make_optimizers(setup.optimizer, net->parameters());
  for (const auto& local : setup.local) {
    zero_grads(optimizers);
    const auto samples = std::accumulate(local.begin(), local.end(), int64_t{0});
    for (int k = 0; k < setup.accumulate; ++k) {
      const auto args = Net::batch(samples);
      const auto result = std::apply([&](const auto&... each) { return net->forward(each...); }, args);
      const auto outputs = autopar::flatten(result).tensors;
      objective(outputs, weights_like(outputs)).backward();
      typename Reference<Args>::Call record{args, {}, {}};
      for (const auto& output : outputs) record.outputs.push_back(output.detach());
      for (const auto& input : autopar::flatten(args).tensors) {
        record.input_gradients.push_back(input.requires_grad() && input.grad().defined() ? input.grad().clone()
                                                                                         : Tensor());
      }
      reference.calls.push_back(std::move(record));
    }
    if (setup.clip_norm > 0) {
      reference.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5, setup.clip_norm));
    }
    reference.gradients.push_back(gradients_of(net->named_parameters()));
    step_all(optimizers);
  }
  reference.parameters = copies_of(net->named_parameters());
  reference.buffers = copies_of(net->named_buffers());
  return reference;
}

/// This rank's samples of `tensor`.
inline Tensor share_of(const Tensor& tensor, int64_t dim, const std::vector<int64_t>& local, int rank) {
  const auto begin = std::accumulate(local.begin(), local.begin() + rank, int64_t{0});
  return tensor.slice(dim, begin, begin + local[static_cast<size_t>(rank)]);
}

template <class Args>
Args local_args(const Args& args, const Traits& traits, const std::vector<int64_t>& local, int rank) {
  std::vector<Tensor> out;
  const auto tensors = autopar::flatten(args).tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int dim = traits.batch_dims.empty() ? 0 : traits.batch_dims[i];
    const auto mine = dim == autopar::kShared ? tensors[i] : share_of(tensors[i], dim, local, rank);
    out.push_back(mine.detach().clone().set_requires_grad(tensors[i].requires_grad()));
  }
  return autopar::with_tensors(args, out);
}

template <class Args>
void check_call(const typename Reference<Args>::Call& want, const std::vector<Tensor>& outputs, const Args& args,
                const Traits& traits, const std::vector<int64_t>& local, int rank) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& whole = want.outputs[i];
    const auto mine = whole.dim() == 0 ? whole : share_of(whole, traits.output_dim, local, rank);
    check_close(outputs[i], mine, traits.tolerance, "output " + std::to_string(i));
  }
  const auto inputs = autopar::flatten(args).tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    const auto& whole = want.input_gradients[i];
    const int dim = traits.batch_dims.empty() ? 0 : traits.batch_dims[i];
    const auto mine = whole.defined() ? share_of(whole, dim, local, rank) : whole;
    // A rank without samples has an empty gradient in either form.
    if (inputs[i].numel() == 0) continue;
    check_close(inputs[i].grad(), mine, traits.tolerance, "gradient of argument " + std::to_string(i));
  }
}

inline Tensor find(const Snapshot& snapshot, const std::string& name) {
  for (const auto& [key, tensor] : snapshot) {
    if (key == name) return tensor;
  }
  throw Failure("'" + name + "' is not in the one-process model");
}

/// Trains on this rank and compares everything that it holds. Collective; throws Failure on a difference.
template <class Net, class Model>
void check_rank(autopar::World& world, Model& model, const Reference<decltype(Net::batch(1))>& reference,
                const Setup& setup, const Traits& traits) {
  const int rank = world.rank();
  auto optimizers = make_optimizers(setup.optimizer, model->parameters());
  for (auto& optimizer : optimizers) model->attach(*optimizer);
  size_t call_number = 0;
  for (size_t step = 0; step < setup.local.size(); ++step) {
    zero_grads(optimizers);
    const auto& local = setup.local[step];
    for (int k = 0; k < setup.accumulate; ++k, ++call_number) {
      const auto& want = reference.calls[call_number];
      const auto args = local_args(want.args, traits, local, rank);
      const auto run = [&] {
        const auto outputs = autopar::flatten(call(model, args)).tensors;
        std::vector<Tensor> weights;
        for (const auto& whole : weights_like(want.outputs)) {
          weights.push_back(whole.dim() == 0 ? whole : share_of(whole, traits.output_dim, local, rank));
        }
        objective(outputs, weights).backward();
        check_call<decltype(Net::batch(1))>(want, outputs, args, traits, local, rank);
      };
      if (k + 1 < setup.accumulate) {
        const auto guard = model->no_sync();
        run();
      } else {
        run();
      }
    }
    if (setup.clip_norm > 0) {
      const auto norm = model->clip_grad_norm_(0.5, setup.clip_norm);
      check_close(norm.to(torch::kDouble), torch::tensor(reference.norms[step], torch::kDouble), traits.tolerance,
                  "gradient norm");
    }
    for (const auto& item : model->named_parameters()) {
      if (!model->owns(item.value())) {
        if (item.value().grad().defined())
          throw Failure("gradient of '" + item.key() + "', which this rank does not own");
        continue;
      }
      const auto want = held_part(find(reference.gradients[step], item.key()), model->shard(item.value()));
      check_close(item.value().grad(), want, traits.tolerance,
                  "step " + std::to_string(step) + ", gradient of " + item.key());
    }
    step_all(optimizers);
  }
  bool trains = false, shares = false;
  for (const auto& item : model->named_parameters()) {
    trains = trains || (model->owns(item.value()) && item.value().grad().defined());
    shares = shares || !model->shard(item.value()).whole;
  }
  const auto& replicas = setup.options.replicas;
  if (setup.options.zero > 0 && trains && !shares && replicas.size() == 1 && replicas[0] > 1)
    throw Failure("nothing is in shards");
  const auto state = model->gather_state();
  if (rank != 0) return;
  for (const auto& item : state) {
    const bool parameter = std::any_of(reference.parameters.begin(), reference.parameters.end(),
                                       [&](const auto& entry) { return entry.first == item.key(); });
    check_close(item.value(), find(parameter ? reference.parameters : reference.buffers, item.key()), traits.tolerance,
                "at the end, " + item.key());
  }
  if (state.size() != reference.parameters.size() + reference.buffers.size())
    throw Failure("the gathered state is incomplete");
}

}  // namespace numerics
