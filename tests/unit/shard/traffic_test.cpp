#include "on_ranks.hpp"

#include <catch_shim.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/embedding.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/shard/top_k.hpp>

#include <memory>
#include <utility>

#include "shard/group_state.hpp"

// What the layers' tables say that travels.
namespace ap = autopar;
using ap::Placed;
using namespace shard_test;

namespace {

/// Of one rank.
struct Traffic {
  int reduces = 0, gathers = 0, scatters = 0;
  std::size_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// A group whose messages are counted.
class Counted : public ap::detail::GroupState {
 public:
  Counted(std::shared_ptr<GroupState> inner, Traffic& traffic)
      : GroupState(inner->ranks(), inner->place()), inner_(std::move(inner)), traffic_(traffic) {}

  void all_reduce(const Tensor& tensor, const std::function<void()>& meanwhile) override {
    count(traffic_.reduces, tensor);
    inner_->all_reduce(tensor, meanwhile);
  }
  void reduce_scatter(const Tensor& parts, const std::function<void()>& meanwhile) override {
    count(traffic_.scatters, parts);
    inner_->reduce_scatter(parts, meanwhile);
  }
  void all_gather(const Tensor& parts) override {
    count(traffic_.gathers, parts);
    inner_->all_gather(parts);
  }
  void send(const Tensor& tensor, int to_place) override { inner_->send(tensor, to_place); }
  void receive(const Tensor& tensor, int from_place) override { inner_->receive(tensor, from_place); }

 private:
  template <class Number>
  void count(Number& calls, const Tensor& tensor) {
    ++calls;
    traffic_.bytes += tensor.nbytes();
  }

  std::shared_ptr<GroupState> inner_;
  Traffic& traffic_;
};

/// All ranks of a world.
ap::Group counted_group(ap::World& world, Traffic& traffic) {
  return ap::Group(std::make_shared<Counted>(ap::init_groups(world, world.size(), torch::kCPU).world.state(), traffic));
}

/// What `work` sends.
Traffic sent_by(Traffic& traffic, const std::function<void()>& work) {
  traffic = {};
  work();
  return traffic;
}

}  // namespace

TEST_CASE("traffic: forward and backward send what is documented") {
  const DoublePrecision doubles;
  constexpr int kRanks = 2, kRows = 3, kIn = 4, kOut = 6;
  constexpr std::size_t kElement = 8;
  const auto samples = torch::ones({kRows, kIn});
  const auto target = torch::tensor({0, 5, 2});
  ap::loopback::run(kRanks, [&](ap::World& world) {
    Traffic traffic;
    const auto g = counted_group(world, traffic);
    ap::ParallelLinear column(ap::ParallelLinearOptions(kIn, kOut).dim(1).group(g));
    ap::ParallelLinear row(ap::ParallelLinearOptions(kIn, kOut).dim(0).group(g));
    Tensor out;
    const auto check = [&](const std::string& what, const Traffic& forward, const Traffic& backward,
                           const std::function<Tensor()>& work) {
      must_be(sent_by(traffic, [&] { out = work(); }) == forward, what + ": forward");
      must_be(sent_by(traffic, [&] { out.sum().backward(); }) == backward, what + ": backward");
    };
    check("column", {}, {.reduces = 1, .bytes = kRows * kIn * kElement}, [&] { return column(leaf(samples)).local(); });
    check("column of own samples", {.gathers = 1, .bytes = 2 * kRows * kIn * kElement},
          {.scatters = 1, .bytes = 2 * kRows * kIn * kElement}, [&] {
            return column(Placed::shard(leaf(samples), g, 0, ap::Split({kRows, kRows}))).local();
          });
    check("row of slices", {.reduces = 1, .bytes = kRows * kOut * kElement}, {}, [&] {
      return row(Placed::shard(leaf(samples.slice(1, 0, 2)), g, 1, ap::Split({2, 2}))).local();
    });
    check("row", {.reduces = 1, .bytes = kRows * kOut * kElement}, {.gathers = 1, .bytes = kRows * kIn * kElement},
          [&] { return row(leaf(samples)).local(); });

    const auto logits = [&] {
      return Placed::shard(leaf(torch::zeros({kRows, kOut / 2})) * 1, g, 1, ap::Split({3, 3}));
    };
    constexpr std::size_t kHead = 32;
    check("cross-entropy", {.gathers = 1, .bytes = kRanks * (kHead + 3 * kRows * kElement)}, {},
          [&] { return ap::parallel_cross_entropy(logits(), target); });
    ap::ParallelCrossEntropyOptions smooth;
    smooth.label_smoothing(0.1);
    check("cross-entropy, smoothing", {.gathers = 1, .bytes = kRanks * (kHead + 4 * kRows * kElement)}, {},
          [&] { return ap::parallel_cross_entropy(logits(), target, smooth); });
    check("linear cross-entropy", {.gathers = 1, .bytes = kRanks * (kHead + 3 * kRows * kElement)},
          {.reduces = 1, .bytes = kRows * kIn * kElement},
          [&] { return ap::linear_cross_entropy(leaf(samples), column, target); });

    ap::ParallelEmbedding words(ap::ParallelEmbeddingOptions(kOut, kIn).dim(0).group(g));
    ap::ParallelEmbedding features(ap::ParallelEmbeddingOptions(kOut, kIn).dim(1).group(g));
    check("embedding of words", {.reduces = 1, .bytes = kRows * kIn * kElement}, {},
          [&] { return words(target).local(); });
    check("embedding of features", {}, {}, [&] { return features(target).local(); });
    const auto candidates = sent_by(traffic, [&] { (void)ap::top_k(logits(), 2); });
    must_be(candidates == Traffic{.gathers = 1, .bytes = kRanks * 16 * kRows * 2}, "top-k");
  });
}

TEST_CASE("traffic: an in-place loss gives its gradient in the logits") {
  const DoublePrecision doubles;
  const auto target = torch::tensor({0, 5, 2});
  on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
    for (const bool in_place : {true, false}) {
      const auto z = leaf(torch::zeros({3, 3})) * 1;
      const void* lies = nullptr;
      (void)z.register_hook([&](const Tensor& gradient) { lies = gradient.const_data_ptr(); });
      ap::ParallelCrossEntropyOptions options;
      options.in_place(in_place);
      ap::parallel_cross_entropy(Placed::shard(z, groups.tensor, 1), target, options).backward();
      must_be((lies == z.const_data_ptr()) == in_place, "memory");
    }
  });
}
