#include "torch/placement/state_placer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/calls/handshake.hpp"
#include "torch/placement/program_partitioner.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/staging/shard_units.hpp"

namespace autopar::placement {

namespace {

/// How many dotted parts two names have in common at their start.
std::size_t common_parts(const std::string& a, const std::string& b) {
  std::size_t parts = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size() && a[i] == b[i]; ++i) parts += a[i] == '.' ? 1 : 0;
  return parts;
}

/// What reading a tensor that this rank does not hold says.
std::string describe_absence(const parameters::ManagedTensor& tensor, int rank) {
  std::string ranks;
  for (const auto holder : tensor.holders) ranks += (ranks.empty() ? "" : ", ") + std::to_string(holder.value());
  return std::string(tensor.is_parameter ? "parameter '" : "buffer '") + tensor.name() + "' has no data on rank " +
         std::to_string(rank) + "; it lives on rank " + ranks +
         ": use model->gather(p) for its value, model->owned_parameters() for what is here, "
         "ap::for_whole_parameters(model, "
         "fn) to change it, model->call(&Net::method, arguments...) for methods of the module, model->save(folder) or "
         "model->gather_state() for files; write into it where model->owns(p)";
}

void add_once(std::vector<StageId>& stages, StageId stage) {
  const auto at = std::lower_bound(stages.begin(), stages.end(), stage);
  if (at == stages.end() || *at != stage) stages.insert(at, stage);
}

/// Tells values apart at the speed of memory: gigabytes of parameters are compared at a first call.
std::uint64_t hash_values(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
  constexpr std::size_t kLanes = 4, kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4};
  const auto mix = [](std::uint64_t state, std::uint64_t word) {
    state = (state ^ word) * kPrime;
    return state ^ (state >> 29);
  };
  std::size_t at = 0;
  for (; at + kLanes * kWord <= bytes.size(); at += kLanes * kWord) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  auto state = calls::hash_bytes(bytes.data() + at, bytes.size() - at);
  for (const auto lane : lanes) state = mix(state, lane);
  return state;
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), static_cast<std::size_t>(contiguous.nbytes())};
}

/// Parameters of a unit, or of several.
struct UnitInMaking {
  std::vector<std::vector<std::string>> names;
  std::vector<parameters::GradientForm> forms;

  void add(const std::vector<std::string>& its_names, const std::vector<std::int64_t>& sizes, c10::ScalarType type) {
    forms.push_back({names.size(), sizes, type});
    names.push_back(its_names);
  }
};

/// What no known mode uses may be needed by another: it goes with what is registered nearest to it.
void place_unused(std::vector<parameters::ManagedTensor>& tensors) {
  const auto placed = tensors;
  for (auto& tensor : tensors) {
    if (!tensor.stages.empty()) continue;
    std::size_t best = 0;
    tensor.stages = {StageId(0)};
    for (const auto& other : placed) {
      const auto parts = common_parts(tensor.name(), other.name());
      if (other.stages.empty() || parts <= best) continue;
      best = parts;
      tensor.stages = {other.stages.back()};
    }
  }
}

/// The ranks of its stages.
void find_holders(parameters::ManagedTensor& tensor, const Plan& plan) {
  for (const auto stage : tensor.stages) {
    const auto& ranks = plan.stages[stage.index()].mesh.ranks();
    tensor.holders.insert(tensor.holders.end(), ranks.begin(), ranks.end());
  }
  std::sort(tensor.holders.begin(), tensor.holders.end());
  tensor.holders.erase(std::unique(tensor.holders.begin(), tensor.holders.end()), tensor.holders.end());
  if (tensor.stages.size() != 1) return;  // that several stages hold, has no part in one's shards
  const auto& mesh = plan.stages[tensor.stages.front().index()].mesh;
  for (int shard = 0; mesh.tensor() > 1 && shard < mesh.tensor(); ++shard) {
    tensor.replicas_of_shard.push_back(mesh.replica_group(shard));
    std::sort(tensor.replicas_of_shard.back().begin(), tensor.replicas_of_shard.back().end());
  }
}

}  // namespace

void StatePlacer::place(const programs::CapturedProgram& program, const std::vector<StageId>& stage_of,
                        const std::vector<std::shared_ptr<programs::CapturedProgram>>& others) {
  const auto place = [&](const programs::CapturedProgram& mode, const std::vector<StageId>& its_stage_of,
                         const auto& is_free) {
    for (std::size_t i = 0; i < its_stage_of.size(); ++i) {
      if (!mode.plan.ops[i].in_stage) continue;
      for_each_input(mode.graph.ops[i], [&](ValueId value) {
        const auto& info = mode.graph.value(value);
        const bool is_state = info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer;
        if (is_state && is_free(info.name)) add_once(parameters_.named(info.name).stages, its_stage_of[i]);
      });
    }
  };
  place(program, stage_of, [](const std::string&) { return true; });
  for (const auto& mode : others) {
    const auto homes = homes_in(mode->graph, parameters_);
    std::set<std::string> known;
    for (const auto& tensor : parameters_.tensors()) {
      if (!tensor.stages.empty()) known.insert(tensor.names.begin(), tensor.names.end());
    }
    try {
      const auto atoms = cost::partition_into_atoms(mode->graph, mode->plan);
      place(*mode,
            staging::place_by_parameters(mode->graph, mode->plan, atoms, homes,
                                         static_cast<int>(deployment_.plan().stages.size())),
            [&](const std::string& name) { return known.count(name) == 0; });
    } catch (const CaptureError&) {  // its call says so, if there is one
    }
  }
  place_unused(parameters_.tensors());
  std::vector<Rank> everyone;
  for (int r = 0; r < ranks_.size(); ++r) everyone.push_back(Rank(r));
  for (auto& tensor : parameters_.tensors()) find_holders(tensor, deployment_.plan());
  for (const auto leaf : program.plan.prologue_leaves) {
    parameters_.named(program.graph.value(leaf).name).holders = everyone;
  }
}

std::uint64_t StatePlacer::make_values() {
  const auto own_seed = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  const auto seed = ranks_.broadcast(ranks::blob_of(std::to_string(own_seed)), Rank(0), "agreeing on the seed");
  if (init_ != nullptr) agree_on_generator();
  std::vector<at::Tensor> own;  // what is held in units or slices is made as they are
  for (auto& tensor : parameters_.tensors()) {
    if (parameters_.holds(tensor) && tensor.units.empty() && !tensor.slices) own.push_back(tensor.handle);
  }
  if (init_)
    init_->materialise(own);
  else
    take_values_of_rank_0();
  for (auto& tensor : parameters_.tensors()) {
    if (parameters_.holds(tensor)) continue;
    const auto description = describe_absence(tensor, ranks_.rank().value());
    if (trace::is_fake(tensor.handle))
      trace::describe_fake(tensor.handle, description);
    else
      trace::turn_into_fake(tensor.handle, description);
  }
  const at::NoGradGuard no_grad;
  for (auto& tensor : parameters_.tensors()) {
    const bool is_made = parameters_.holds(tensor) && tensor.units.empty() && !tensor.slices;
    const bool moves = is_made && tensor.handle.device() != deployment_.device();
    if (moves) tensor.handle.set_data(tensor.handle.to(deployment_.device()));
  }
  return static_cast<std::uint64_t>(std::stoll(ranks::text_of(seed)));
}

// Ranks that draw their own samples are seeded apart, and go on drawing apart.
void StatePlacer::agree_on_generator() {
  const auto& own = init_->generator_state();
  auto state = ranks_.broadcast(Blob(bytes_of(own).begin(), bytes_of(own).end()), Rank(0), "agreeing on the generator");
  if (std::equal(state.begin(), state.end(), bytes_of(own).begin(), bytes_of(own).end())) return;
  ranks_.logger(LogModule::kSession)
      .info("this rank's random generator differed from rank 0's when the model was constructed, whose values it has");
  auto shared = at::empty_like(own);
  std::memcpy(shared.data_ptr(), state.data(), state.size());
  static_cast<void>(init_->rebase(shared));
}

// The model was constructed on every rank: rank 0's values win, and only what differs is sent.
void StatePlacer::take_values_of_rank_0() {
  if (ranks_.size() == 1) return;
  const at::NoGradGuard no_grad;
  auto& tensors = parameters_.tensors();
  std::vector<at::Tensor> host(tensors.size());
  std::vector<std::uint64_t> hashes(tensors.size(), 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool is_compared =
        tensors[i].holders != std::vector{Rank(0)} && (ranks_.is_first() || parameters_.holds(tensors[i]));
    if (!is_compared) continue;
    host[i] = tensors[i].handle.detach().to(at::kCPU).contiguous();
    if (host[i].numel() > 0) hashes[i] = hash_values(bytes_of(host[i]));
  }
  const auto all = ranks_.all_gather(std::as_bytes(std::span(hashes)), "comparing parameters");
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].size() != all[0].size()) {
      throw InvalidArgument("rank " + std::to_string(r) +
                            " has another number of parameters and buffers than rank 0; " +
                            "construct the same model on every rank");
    }
  }
  const auto hash_at = [&](std::size_t r, std::size_t i) {
    std::uint64_t hash = 0;
    std::memcpy(&hash, all[r].data() + i * sizeof(hash), sizeof(hash));
    return hash;
  };
  std::vector<std::string> differing;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const auto rank : tensors[i].holders) {
      if (rank == Rank(0) || hash_at(rank.index(), i) == hash_at(0, i)) continue;
      if (ranks_.is_first()) ranks_.send(bytes_of(host[i]), rank, "sending a parameter");
      if (ranks_.rank() != rank) continue;
      differing.push_back(tensors[i].name());
      auto received = at::empty_like(host[i]);
      ranks_.receive({static_cast<std::byte*>(received.data_ptr()), static_cast<std::size_t>(received.nbytes())},
                     Rank(0), "receiving a parameter");
      tensors[i].handle.copy_(received);
    }
  }
  if (differing.empty()) return;
  ranks_.logger(LogModule::kSession)
      .warn("'" + differing.front() + "'" +
            (differing.size() == 1 ? " differs"
                                   : " and " + std::to_string(differing.size() - 1) + " other tensors differ") +
            " from rank 0's, which is used");
}

// ---------------------------------------------------------------- units

void StatePlacer::add_units(const programs::CapturedProgram& program, const cost::AtomPartition& atoms) {
  const auto& plan = deployment_.plan();
  if (plan.zero > 0) {
    const auto tensor_of = [&](ValueId value) -> const parameters::ManagedTensor& {
      return parameters_.named(program.graph.value(value).name);
    };
    for (auto& unit :
         staging::shard_units(program.graph, program.plan, program.partition.staged, atoms, plan, tensor_of)) {
      const auto gathered = unit.gathered;
      parameters_.add_units({std::move(unit)}, gathered);
    }
  }
  offload_rest(program);
}

// What the first program trains and no one shares, each holder's whole on its host.
void StatePlacer::offload_rest(const programs::CapturedProgram& program) {
  if (deployment_.plan().offload == Offload::kNone) return;
  const auto outside = algebra::read_outside_stages(program.graph, program.plan);
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  using Kind = std::tuple<int, std::vector<Rank>, c10::ScalarType>;  // tensor shard, holders, what they compute with
  std::map<Kind, UnitInMaking> by_kind;
  std::set<const parameters::ManagedTensor*> seen;  // what has several names comes once for each
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parameters_.named(name);
    if (!seen.insert(&tensor).second) continue;
    if (!program.graph.value(value).requires_grad || outside[value.index()] || !tensor.units.empty()) continue;
    const auto type = tensor.handle.scalar_type();
    const auto gathered = reads[value.index()].smaller_copy(type).value_or(type);
    for (int shard = 0; shard < tensor.shards(); ++shard)
      by_kind[{shard, tensor.holders_of_shard(shard), gathered}].add(tensor.names, tensor.sizes_of_shard(shard), type);
  }
  for (const auto& [kind, parameters] : by_kind) {
    const auto& [shard, holders, gathered] = kind;
    parameters_.add_units(
        parameters::make_units(parameters.names, parameters.forms, holders, 0, deployment_.plan().buckets.size, true),
        gathered);
  }
}

}  // namespace autopar::placement
