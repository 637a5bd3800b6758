#include <autopar/torch/global_mean.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <autopar/core/error.hpp>

#include "torch/results/result_node.hpp"

namespace autopar {

namespace {

/// What a rank brings to a mean.
struct Addend {
  double sum = 0;
  double count = 0;
  std::int64_t differentiated = 0;  ///< or not
  std::int64_t common = 0;          ///< results that the sum depends on and that all ranks have
  std::int64_t results = 0;         ///< models and means that it depends on
  std::int64_t parameter = 0;       ///< elements of a parameter of the model that it contains
};

template <class Value>
std::vector<Value> of_all_ranks(ranks::Ranks& ranks, const Value& mine, const char* action) {
  const auto blobs = ranks.all_gather(std::as_bytes(std::span(&mine, 1)), action);
  std::vector<Value> values(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != sizeof(Value)) {
      throw TransportError("rank " + std::to_string(r) + " made another collective call than " + action +
                               "; every rank must make the same calls in the same order",
                           ranks.rank(), Rank::of(r), action);
    }
    std::memcpy(&values[r], blobs[r].data(), sizeof(Value));
  }
  return values;
}

void require_alike(const std::vector<Addend>& addends) {
  const auto refuse = [](std::size_t rank, const std::string& first, const std::string& other) {
    throw InvalidArgument("global_mean: the sum of rank 0 " + first + ", that of rank " + std::to_string(rank) + " " +
                          other + "; compute it by the same code on every rank, also where a rank has no samples");
  };
  const auto& first = addends.front();
  for (std::size_t r = 1; r < addends.size(); ++r) {
    const auto& other = addends[r];
    if (other.differentiated != first.differentiated) {
      const auto text = [](const Addend& addend) {
        return std::string(addend.differentiated ? "has" : "has no") + " gradient";
      };
      refuse(r, text(first), text(other));
    }
    if (other.common != first.common) {
      const auto text = [](const Addend& addend) {
        return "depends on " + std::to_string(addend.common) + " results that all ranks have";
      };
      refuse(r, text(first), text(other));
    }
  }
}

// Each holder of a parameter would have a part of its gradient only.
void refuse_parameters(const std::vector<Addend>& addends) {
  constexpr auto kWayOut =
      ", whose gradient would be divided among the ranks; add terms of parameters to what global_mean "
      "returns, on the ranks that own them (model->owns(p)), or compute them in forward";
  for (std::size_t r = 0; r < addends.size(); ++r) {
    const auto& addend = addends[r];
    const auto sum = "global_mean: the sum of rank " + std::to_string(r);
    if (addend.parameter > 0) {
      throw InvalidArgument(sum + " contains a parameter of the model (" + std::to_string(addend.parameter) +
                            " elements)" + kWayOut);
    }
    if (addend.differentiated && addend.results == 0) {
      throw InvalidArgument(sum + " depends on no result of a model, only on leaves such as parameters" + kWayOut);
    }
  }
}

/// The gradient of the mean, which is one value, so all ranks must give the same.
void require_same_gradient(ranks::Ranks& ranks, const at::Tensor& gradient) {
  struct Given {
    double value = 0;
    std::int64_t defined = 0;
  };
  const Given mine{gradient.defined() ? gradient.item<double>() : 0, gradient.defined() ? 1 : 0};
  const auto all = of_all_ranks(ranks, mine, "backward of global_mean");
  constexpr double kRounding = 1e-5;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (!all[a].defined || !all[b].defined) continue;
      const auto x = all[a].value, y = all[b].value;
      if (x == y || std::abs(x - y) <= kRounding * std::max(std::abs(x), std::abs(y))) continue;
      if (std::isnan(x) && std::isnan(y)) continue;
      std::ostringstream text;
      text << "global_mean: its gradient is " << x << " on rank " << a << " and " << y << " on rank " << b
           << ", as a loss of each rank's own samples uses it; end that loss with ap::global_mean(world, sum, count), "
              "too";
      throw InvalidArgument(text.str());
    }
  }
}

}  // namespace

at::Tensor global_mean(World& world, const at::Tensor& local_sum, std::int64_t local_count) {
  expect(local_sum.defined() && local_sum.numel() == 1,
         "global_mean: pass the sum over this rank's samples, one number");
  expect(local_count >= 0, "global_mean: the local count is negative");
  const bool differentiates = at::GradMode::is_enabled() && local_sum.requires_grad();
  const auto region = differentiates ? results::region_behind({local_sum}, {true}) : nullptr;
  const auto ranks = std::make_shared<ranks::WorldRanks>(world);
  Addend mine;
  mine.count = static_cast<double>(local_count);
  mine.differentiated = differentiates ? 1 : 0;
  if (local_count > 0) mine.sum = local_sum.detach().item<double>();
  if (region) {
    mine.common = static_cast<std::int64_t>(region->common_ends());
    mine.results = static_cast<std::int64_t>(region->nodes().size());
    mine.parameter = region->elements_of_model_parameter();
  }
  const auto addends = of_all_ranks(*ranks, mine, "global_mean");
  if (ranks->size() > 1) refuse_parameters(addends);
  require_alike(addends);
  double sum = 0, count = 0;
  for (const auto& addend : addends) {
    sum += addend.sum;
    count += addend.count;
  }
  expect(count > 0, "global_mean: no rank has a sample");
  std::vector<at::Tensor> mean;
  {
    const at::NoGradGuard no_grad;
    mean.push_back(at::full_like(local_sum.detach(), sum / count));
  }
  if (!differentiates) return mean[0];
  results::History history;
  history.arguments = {local_sum};
  history.own = {true};
  history.region = region;
  history.common = {true};
  history.gradients = [ranks, count, is_empty = local_count == 0](const torch::autograd::variable_list& given,
                                                                  const results::GradientRequest&) {
    if (ranks->size() > 1) require_same_gradient(*ranks, given[0]);
    torch::autograd::variable_list out(1);
    if (given[0].defined() && !is_empty) out[0] = given[0].div(count);
    return out;
  };
  results::attach_history(ranks, mean, std::move(history));
  return mean[0];
}

}  // namespace autopar
