#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/testing/pipelines.hpp>

#include "../unit/schedule/symbolic_model.hpp"

/// An engine without tensors for tests of the executor, and a transport that is watched.
namespace autopar::testing {

/// Buffers that are alive, over all threads of a test.
struct Ledger {
  std::atomic<int> alive{0};
  std::atomic<int> most{0};
};

inline Buffer make_buffer(std::size_t bytes, Ledger& ledger) {
  const int alive = ++ledger.alive;
  for (int most = ledger.most; alive > most && !ledger.most.compare_exchange_weak(most, alive);) {
  }
  std::shared_ptr<std::vector<std::byte>> memory(new std::vector<std::byte>(bytes), [&ledger](auto* bytes_) {
    delete bytes_;
    --ledger.alive;
  });
  return {memory->data(), bytes, memory};
}

/// What a test makes go wrong, or looks at, in an engine.
struct Script {
  std::optional<std::size_t> throw_at;  ///< the call that throws, counted over all calls of the engine
  std::uint32_t bucket_order = 0;       ///< seed of the order in which full buckets are reported
  bool eager = false;                   ///< reports buckets in every backward, although only the last one fills them
  bool in_parts = false;                ///< performs the reductions of buckets with even numbers itself
  std::function<void(const std::string& event)> log;

  [[nodiscard]] bool sums_parts(const Action& reduction) const { return in_parts && reduction.bucket % 2 == 0; }
};

/// The symbolic model behind bytes. A bucket's word travels as four limbs of 16 bits, so that sums do not overflow.
class FakeEngine {
 public:
  FakeEngine(SymbolicRank& model, const std::vector<Action>& actions, Phase phase, Ledger& ledger, Script script = {})
      : model_(model), phase_(phase), ledger_(ledger), script_(std::move(script)) {
    for (const Action& action : actions) {
      if (is_compute(action.kind) && action.kind != ActionKind::kForward) ++backwards_left_[action.stage];
      if (action.kind == ActionKind::kAllReduce || action.kind == ActionKind::kReduceScatter)
        to_report_.push_back(action);
    }
    Dice dice(script_.bucket_order);
    for (std::size_t i = to_report_.size(); i > 1; --i) {
      std::swap(to_report_[i - 1], to_report_[static_cast<std::size_t>(dice.below(static_cast<int>(i)))]);
    }
  }

  void forward(const Action& action) {
    count("forward", action);
    need_parameters(action);
    exchange(action);
    model_.forward(action);
  }

  void backward(const Action& action) { backward_compute("backward", action); }
  void backward_input(const Action& action) { backward_compute("backward_input", action); }
  void backward_weight(const Action& action) { backward_compute("backward_weight", action); }

  Buffer pack(const Action& action) {
    count("pack", action);
    const Words words = model_.pack(action);
    Buffer buffer = make_buffer(words.size() * sizeof(Word), ledger_);
    std::memcpy(buffer.data, words.data(), buffer.bytes);
    return buffer;
  }

  Buffer receive_buffer(const Action& action) {
    count("receive_buffer", action);
    return make_buffer(model_.words(action) * sizeof(Word), ledger_);
  }

  void accept(const Action& action, const Buffer& buffer) {
    count("accept", action);
    require_order(action);
    Words words(buffer.bytes / sizeof(Word));
    std::memcpy(words.data(), buffer.data, buffer.bytes);
    model_.accept(action, words);
  }

  void set_gate(ComputeGate* gate) { gate_ = gate; }

  /// Of a sum into shards every member's part is the whole, so that each can be checked.
  Buffer bucket(const Action& action) {
    count("bucket", action);
    const auto parts = action.kind == ActionKind::kAllReduce ? 1 : model_.members(action);
    const Buffer buffer = limbs_of(take_bucket(action), parts);
    sums_[{action.group, action.bucket, action.microbatch}] = buffer;
    return buffer;
  }
  DType bucket_dtype(const Action&) { return DType::kI64; }

  [[nodiscard]] bool sums_parts(const Action& action) const { return script_.sums_parts(action); }
  /// Every part is the whole, as in `bucket`.
  void sum_parts(const Action& action, PartExchange& exchange) {
    count("sum_parts", action);
    const std::size_t members = model_.members(action), part = sizeof(std::array<std::int64_t, 4>);
    const Buffer halves = limbs_of(take_bucket(action), 2 * members);
    exchange.all_to_all(halves);
    std::array<std::int64_t, 4> sum{};
    for (std::size_t member = 0; member < members; ++member) {
      std::array<std::int64_t, 4> limbs{};
      std::memcpy(limbs.data(), halves.data + (members + member) * part, part);
      for (std::size_t k = 0; k < limbs.size(); ++k) sum[k] += limbs[k];
    }
    const bool whole = action.kind == ActionKind::kAllReduce;
    const Buffer sums = make_buffer(members * part, ledger_);
    std::memcpy(sums.data + model_.position(action) * part, sum.data(), part);
    if (whole) exchange.all_gather(sums);
    for (std::size_t member = 0; member < members && whole; ++member) {
      if (std::memcmp(sums.data + member * part, sum.data(), part) != 0)
        throw std::logic_error(describe(action) + ": a member has another sum");
    }
    sums_[{action.group, action.bucket, action.microbatch}] = sums;
  }

  /// A part names its owner and the bucket.
  Buffer gathering(const Action& action) {
    count("gathering", action);
    const Buffer buffer = make_buffer(model_.members(action) * sizeof(Word), ledger_);
    const Word own = part_of(action, model_.position(action));
    std::memset(buffer.data, 0, buffer.bytes);
    std::memcpy(buffer.data + model_.position(action) * sizeof(Word), &own, sizeof own);
    Gathered& gathered = gathered_[{action.group, action.bucket}];
    gathered.on_their_way.push_back(buffer);
    ++gathered.times;
    return buffer;
  }
  void gathered(const Action& action) {
    count("gathered", action);
    auto& on_their_way = gathered_.at({action.group, action.bucket}).on_their_way;
    const Buffer buffer = on_their_way.front();
    on_their_way.pop_front();
    for (std::size_t member = 0; member < model_.members(action); ++member) {
      Word part = 0;
      std::memcpy(&part, buffer.data + member * sizeof part, sizeof part);
      if (part != part_of(action, member)) throw std::logic_error(describe(action) + ": a part is wrong");
    }
    model_.gather(action);
    if (action.microbatch < 0) gathered_.erase({action.group, action.bucket});
  }
  void reshard(const Action& action) {
    count("reshard", action);
    const auto found = gathered_.find({action.group, action.bucket});
    if (found == gathered_.end()) throw std::logic_error(describe(action) + ": never there");
    if (--found->second.times == 0) gathered_.erase(found);
  }

  void reduced(const Action& action) {
    count("reduced", action);
    std::array<std::int64_t, 4> limbs{};
    const bool is_one = action.kind == ActionKind::kAllReduce && !sums_parts(action);
    const auto own = is_one ? 0 : model_.position(action);
    Buffer& sum = sums_.at({action.group, action.bucket, action.microbatch});
    std::memcpy(limbs.data(), sum.data + own * sizeof limbs, sizeof limbs);
    sum = {};
    Word word = 0;
    for (std::size_t k = 0; k < 4; ++k) word += static_cast<Word>(limbs[k]) << (16 * k);
    if (action.microbatch >= 0)
      model_.add_to_share(action, word);
    else
      model_.bucket(action) = word;
  }

  /// Calls of the engine so far.
  [[nodiscard]] std::size_t calls() const { return calls_; }

 private:
  Word take_bucket(const Action& action) {
    if (is_awaited(action)) {
      throw std::logic_error(describe(action) + ": the bucket is not full");
    }
    const bool of_compute = action.microbatch >= 0;
    if (!of_compute) model_.start_reduction(action);
    return of_compute ? model_.take_bucket(action) : model_.bucket(action);
  }
  Buffer limbs_of(Word word, std::size_t copies) {
    std::vector<std::int64_t> limbs;
    for (std::size_t copy = 0; copy < copies; ++copy) {
      for (std::size_t k = 0; k < 4; ++k) limbs.push_back(static_cast<std::int64_t>(word >> (16 * k) & 0xffff));
    }
    const Buffer buffer = make_buffer(limbs.size() * sizeof limbs[0], ledger_);
    std::memcpy(buffer.data, limbs.data(), buffer.bytes);
    return buffer;
  }

  void backward_compute(const char* call, const Action& action) {
    count(call, action);
    need_parameters(action);
    exchange(action);
    if (action.kind == ActionKind::kBackwardWeight)
      model_.backward_weight(action);
    else
      model_.backward(action, phase_ == Phase::kBackward);
    --backwards_left_[action.stage];
    if (gives_weight_gradients(action.kind)) filled_.insert({action.stage, action.microbatch});
    for (const Action& reduction : to_report_) {
      const bool last = !is_awaited(reduction) && (reduction.stage == action.stage || !reduction.stage.valid());
      if (last || script_.eager) gate_->gradients_ready(reduction.group, reduction.bucket);
    }
    if (script_.log && backwards_left_[action.stage] == 0) script_.log("last backward ends");
  }

  /// Whether backwards that fill the bucket are still to come.
  [[nodiscard]] bool is_awaited(const Action& reduction) const {
    if (reduction.microbatch >= 0) {
      return model_.computes(reduction) && !filled_.contains({reduction.stage, reduction.microbatch});
    }
    return std::any_of(backwards_left_.begin(), backwards_left_.end(), [&](const auto& left) {
      return left.second > 0 && (left.first == reduction.stage || !reduction.stage.valid());
    });
  }

  static Word part_of(const Action& action, std::size_t member) {
    return noise(action.group, action.bucket, static_cast<std::int64_t>(member));
  }

  void need_parameters(const Action& compute) {
    model_.for_each_gathered_by(compute, [&](int group, int bucket) { gate_->unshard(group, bucket); });
  }

  /// Of each kind one with the tensor shards, each of which brings numbers of its own.
  void exchange(const Action& compute) {
    const Mesh& mesh = model_.mesh(compute.stage);
    if (!exchanges_in_compute(mesh, compute.kind)) return;
    const auto shards = static_cast<std::size_t>(mesh.tensor());
    const auto own = static_cast<std::size_t>(*mesh.shard_of(model_.rank()));
    const auto number = [&](std::size_t shard, std::size_t k) {
      return static_cast<std::int64_t>(
          noise(compute.stage.value(), compute.microbatch, static_cast<std::int64_t>(10 * shard + k)) & 0xffff);
    };
    const auto done = [&](Exchange kind, const std::vector<std::int64_t>& numbers) {
      const Buffer buffer = make_buffer(numbers.size() * sizeof numbers[0], ledger_);
      std::memcpy(buffer.data, numbers.data(), buffer.bytes);
      gate_->exchange(kind, buffer, DType::kI64, [&] { count("meanwhile", compute); });
      std::vector<std::int64_t> out(numbers.size());
      std::memcpy(out.data(), buffer.data, buffer.bytes);
      return out;
    };
    std::vector<std::int64_t> mine, sums(shards, 0), firsts;
    for (std::size_t k = 0; k < shards; ++k) mine.push_back(number(own, k));
    for (std::size_t shard = 0; shard < shards; ++shard) {
      for (std::size_t k = 0; k < shards; ++k) sums[k] += number(shard, k);
      firsts.push_back(number(shard, 0));
    }
    std::vector<std::int64_t> first(shards, 0);
    first[own] = number(own, 0);
    const bool right = done(Exchange::kAllReduce, mine) == sums &&
                       done(Exchange::kReduceScatter, mine)[own] == sums[own] &&
                       done(Exchange::kAllGather, first) == firsts;
    if (!right) throw std::logic_error(describe(compute) + ": what its tensor shards exchanged is wrong");
  }

  /// Messages of one compute action: ascending by channel and peer.
  void require_order(const Action& action) {
    if (!action.stage.valid()) return;
    auto& last = last_accepted_[{action.stage, action.microbatch, action.flow}];
    const std::pair here{action.channel, action.peer};
    if (here < last) throw std::logic_error(describe(action) + ": accepted after a later channel or peer");
    last = here;
  }

  void count(const char* call, const Action& action) {
    if (script_.log) script_.log(call + (": " + describe(action)));
    if (script_.throw_at == calls_++) throw std::runtime_error("scripted failure");
  }

  SymbolicRank& model_;
  Phase phase_;
  Ledger& ledger_;
  Script script_;
  ComputeGate* gate_ = nullptr;
  struct Gathered {
    std::deque<Buffer> on_their_way;
    int times = 0;  // that it was, and not resharded since
  };
  std::map<std::pair<int, int>, Gathered> gathered_;
  std::set<std::pair<StageId, int>> filled_;  // by weight gradients of a micro-batch
  std::vector<Action> to_report_;
  std::map<std::tuple<int, int, int>, Buffer> sums_;
  std::size_t calls_ = 0;
  std::map<StageId, int> backwards_left_;
  std::map<std::tuple<StageId, int, Flow>, std::pair<int, Rank>> last_accepted_;
};
static_assert(SplitBackwardEngine<FakeEngine> && ShardingEngine<FakeEngine> && PartSummingEngine<FakeEngine>);

/// A transport that tells what is started, and knows what nobody has seen the end of.
class LoggedTransport {
 public:
  using Ticket = AnyTransport::Ticket;
  explicit LoggedTransport(AnyTransport transport, std::function<void(const std::string&)> log = {})
      : transport_(std::move(transport)), log_(std::move(log)) {}

  [[nodiscard]] Rank rank() const { return transport_.rank(); }
  [[nodiscard]] int size() const { return transport_.size(); }
  [[nodiscard]] bool in_order() const { return transport_.in_order(); }
  GroupId make_group(const std::vector<Rank>& ranks) { return transport_.make_group(ranks); }
  Ticket send(Buffer buffer, Rank peer, Tag tag) {
    tell("send " + std::to_string(tag.microbatch));
    return *open_.insert(transport_.send(std::move(buffer), peer, tag)).first;
  }
  Ticket receive(Buffer buffer, Rank peer, Tag tag) {
    tell("receive " + std::to_string(tag.microbatch));
    return *open_.insert(transport_.receive(std::move(buffer), peer, tag)).first;
  }
  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) {
    tell("all_reduce");
    return *open_.insert(transport_.all_reduce(std::move(buffer), dtype, group)).first;
  }
  Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) {
    tell("reduce_scatter");
    return *open_.insert(transport_.reduce_scatter(std::move(buffer), dtype, group)).first;
  }
  Ticket all_gather(Buffer buffer, GroupId group) {
    tell("all_gather");
    return *open_.insert(transport_.all_gather(std::move(buffer), group)).first;
  }
  Ticket all_to_all(Buffer buffer, GroupId group) {
    tell("all_to_all");
    return *open_.insert(transport_.all_to_all(std::move(buffer), group)).first;
  }
  bool done(const Ticket& ticket) {
    const bool over = transport_.done(ticket);
    if (over) open_.erase(ticket);
    return over;
  }
  void wait(const Ticket& ticket) {
    tell("wait");
    open_.erase(ticket);
    transport_.wait(ticket);
  }

  [[nodiscard]] std::size_t open() const { return open_.size(); }

 private:
  void tell(const std::string& event) {
    if (log_) log_(event);
  }

  AnyTransport transport_;
  std::function<void(const std::string&)> log_;
  std::set<Ticket> open_;
};
static_assert(Transport<LoggedTransport>);

inline std::size_t index_of(const World& world) { return static_cast<std::size_t>(world.rank()); }

std::vector<GroupId> make_groups(auto& transport, const Pipeline& pipeline) {
  std::vector<GroupId> groups;
  for (const auto& group : pipeline.groups) groups.push_back(transport.make_group(group.ranks));
  return groups;
}

/// By stage, the tensor group of this rank's replica.
std::vector<GroupId> make_tensor_groups(auto& transport, const Pipeline& pipeline) {
  std::vector<GroupId> groups(pipeline.stages.size());
  for (std::size_t s = 0; s < groups.size(); ++s) {
    const Mesh& mesh = pipeline.stages[s];
    for (int q = 0; q < mesh.replicas() && mesh.tensor() > 1; ++q) {
      const auto ranks = mesh.tensor_group(q);
      const GroupId group = transport.make_group({ranks.begin(), ranks.end()});
      if (mesh.replica_of(transport.rank()) == q) groups[s] = group;
    }
  }
  return groups;
}

inline std::vector<SymbolicRank> make_models(const PipelineCase& example) {
  std::vector<SymbolicRank> models;
  for (int r = 0; r < example.pipeline.ranks; ++r) models.emplace_back(example.pipeline, example.layout, Rank(r));
  return models;
}

}  // namespace autopar::testing
