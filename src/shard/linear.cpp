#include <autopar/shard/linear.hpp>

#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/nn/init.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>

#include "shard/draws.hpp"

namespace autopar {

namespace {

void require_known_dim(std::optional<int> dim) {
  if (!dim.has_value() || (*dim >= -1 && *dim <= 1)) return;
  throw InvalidArgument("a parallel linear layer of dim " + std::to_string(*dim) +
                        "; 1 or -1 cuts its outputs (column parallel), 0 its inputs (row parallel), none neither");
}

[[noreturn]] void refuse_input(const char* layer, const Placed& x, const std::string& fix) {
  throw InvalidArgument(std::string(layer) + " does not take " + to_string(x) + "; " + fix);
}

/// What a layer that is cut takes, whichever way.
void require_input(const char* layer, const Placed& x, std::int64_t features, const Group& group) {
  if (!x.group().is_alone() && !(x.group() == group)) {
    throw InvalidArgument(std::string(layer) + ": " + to_string(x) +
                          " is of another group of ranks than the layer; use one group throughout");
  }
  if (x.dim() < 1 || x.size(-1) != features) {
    throw InvalidArgument(std::string(layer) + ": " + to_string(x) + " has not the " + std::to_string(features) +
                          " features in its last dim that the layer takes");
  }
  if (x.placement().is_partial()) refuse_input(layer, x, "reduce(x) adds the terms up");
}

/// As torch::nn::init::kaiming_uniform_(weight, √5) has it, to the last bit.
double weight_bound(std::int64_t in_features) {
  const double gain = torch::nn::init::calculate_gain(torch::kLeakyReLU, std::sqrt(5));
  return std::sqrt(3.0) * (gain / std::sqrt(in_features));
}

}  // namespace

ParallelLinearImpl::ParallelLinearImpl(ParallelLinearOptions given) : options(std::move(given)) {
  reset();  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
}

ParallelLinearImpl::ParallelLinearImpl(const torch::nn::LinearImpl& dense, int dim, Group group, std::int64_t unit)
    : options(ParallelLinearOptions(dense.options.in_features(), dense.options.out_features())
                  .bias(dense.options.bias())
                  .dim(dim)
                  .group(std::move(group))
                  .unit(unit)) {
  require_known_dim(dim);
  const auto like = [](const at::Tensor& part, const at::Tensor& whole) {
    return part.detach().clone().set_requires_grad(whole.requires_grad());
  };
  weight = register_parameter("weight", like(own_part(dense.weight, sharded_dim()), dense.weight),
                              dense.weight.requires_grad());
  if (!dense.bias.defined()) return;
  bias = register_parameter("bias", like(is_column() ? own_part(dense.bias, 0) : dense.bias, dense.bias),
                            dense.bias.requires_grad());
  train(dense.is_training());
}

Split ParallelLinearImpl::split() const {
  return Split::even(is_column() ? options.out_features() : options.in_features(), options.group().size(),
                     options.unit());
}

at::Tensor ParallelLinearImpl::own_part(const at::Tensor& whole, int dim) const {
  if (is_dense()) return whole;
  const int place = options.group().place();
  return whole.narrow(dim, split().begin(place), split().length(place));
}

void ParallelLinearImpl::reset() {
  require_known_dim(options.dim());
  const auto in = options.in_features(), out = options.out_features();
  if (is_dense()) {
    weight = register_parameter("weight", at::empty({out, in}));
    if (options.bias()) bias = register_parameter("bias", at::empty({out}));
    torch::nn::init::kaiming_uniform_(weight, std::sqrt(5));
    if (bias.defined()) torch::nn::init::uniform_(bias, -1 / std::sqrt(in), 1 / std::sqrt(in));
    return;
  }
  const detail::SharedDraws draws(options.group());
  const int place = options.group().place();
  const auto uniform = [](double bound) {
    return [bound](at::Tensor& block, const at::Generator& generator) { block.uniform_(-bound, bound, generator); };
  };
  weight = register_parameter("weight", detail::slice_of_draw(out, in, sharded_dim(), split().begin(place),
                                                              split().length(place), draws, uniform(weight_bound(in))));
  if (!options.bias()) return;
  auto whole = at::empty({out});
  uniform(1 / std::sqrt(in))(whole, draws.generator());
  bias = register_parameter("bias", is_column() ? own_part(whole, 0).clone() : whole);
}

void ParallelLinearImpl::shard(int dim, Group group, std::int64_t unit) {
  if (!is_dense())
    throw InvalidArgument("this parallel linear layer has been cut already, along dim " +
                          std::to_string(*options.dim()) + "; make another one");
  require_known_dim(dim);
  (void)Split::even(dim == 0 ? options.in_features() : options.out_features(), group.size(), unit);  // before a change
  const at::NoGradGuard no_grad;
  options.dim(dim).group(std::move(group)).unit(unit);
  weight.set_data(own_part(weight, sharded_dim()).clone());
  if (bias.defined() && is_column()) bias.set_data(own_part(bias, 0).clone());
}

void ParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "autopar::ParallelLinear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << (options.bias() ? "true" : "false");
  if (!is_dense()) stream << ", dim=" << *options.dim() << ", ranks=" << options.group().size();
  stream << ")";
}

Placed ParallelLinearImpl::forward(const Placed& x) {
  if (!is_dense()) return is_column() ? forward_column(x) : forward_row(x);
  if (!x.placement().is_replicate()) {
    refuse_input("a linear layer without a dim", x, "gather(x), or give the layer a dim and the group");
  }
  return Placed::replicate(at::linear(x.local(), weight, bias), x.group());
}

Placed ParallelLinearImpl::forward_column(const Placed& x) {
  constexpr auto kLayer = "a column parallel linear layer";
  const auto& group = options.group();
  require_input(kLayer, x, options.in_features(), group);
  const int last = x.dim() - 1;
  if (x.placement().is_shard(last)) refuse_input(kLayer, x, "a row parallel layer (dim 0) takes it, or gather(x)");
  const auto whole = x.placement().is_shard() ? gather(x, Placement::partial()) : copy(x, group);
  return Placed::shard(at::linear(whole.local(), weight, bias), group, last, split());
}

Placed ParallelLinearImpl::forward_row(const Placed& x) {
  constexpr auto kLayer = "a row parallel linear layer";
  const auto& group = options.group();
  require_input(kLayer, x, options.in_features(), group);
  const int last = x.dim() - 1;
  if (x.placement().is_shard() && !x.placement().is_shard(last)) {
    refuse_input(kLayer, x, "it takes slices of the last dim; gather(x) first");
  }
  const auto slice = x.placement().is_replicate() ? scatter(x, group, last, split()) : x;
  if (!(slice.split() == split())) {
    refuse_input(kLayer, x, "its weight is cut into " + to_string(split()) + "; give both layers the same unit");
  }
  const auto y = reduce(Placed::partial(at::linear(slice.local(), weight), group));
  return bias.defined() ? Placed::replicate(y.local() + bias, group) : y;
}

std::vector<ShardedParameter> ParallelLinearImpl::shards() const {
  if (is_dense()) return {};
  std::vector<ShardedParameter> sharded{{"weight", options.group(), sharded_dim(), split()}};
  if (bias.defined() && is_column()) sharded.push_back({"bias", options.group(), 0, split()});
  return sharded;
}

Placed ParallelLinearImpl::placed_weight() const {
  if (is_dense()) return weight;
  return Placed::shard(weight, options.group(), sharded_dim(), split());
}

std::optional<Placed> ParallelLinearImpl::placed_bias() const {
  if (!bias.defined()) return std::nullopt;
  if (is_dense() || is_row()) return bias;
  return Placed::shard(bias, options.group(), 0, split());
}

std::shared_ptr<torch::nn::Module> GatheredLinearImpl::clone(const std::optional<torch::Device>& device) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<GatheredLinearImpl>(*this);
  copy->parameters_.clear();
  copy->reset();
  for (const auto& item : named_parameters(false)) {
    const auto& tensor = item.value();
    copy->parameters_[item.key()].set_data(device && *device != tensor.device() ? tensor.to(*device) : tensor.clone());
  }
  return copy;
}

at::Tensor GatheredLinearImpl::forward(const at::Tensor& x) {
  const auto y = ParallelLinearImpl::forward(x);
  return y.placement().is_shard() ? gather(y) : y;
}

}  // namespace autopar
