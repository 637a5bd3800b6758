#include "torch/cost/profile.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>

#include "capture/algebra/parameter_reads.hpp"
#include "capture/ir/graph_hash.hpp"
#include "capture/ir/shown_name.hpp"
#include "capture/ir/tensor_form.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/cost/atom_memory.hpp"
#include "torch/fused/fp8.hpp"
#include "torch/tensor_parallel/followers.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::cost {
namespace {

/// Whether the op is a fused linear cross entropy: a layer and the loss of its outputs, in chunks.
bool is_chunked_head(const OpGraph& graph, OpId op) {
  const auto& layer = ops::definition_of(graph.op(op).op).layer;
  return layer && layer->makes_loss;
}

/// FNV-1a over numbers and text.
class StructureHash {
 public:
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(number >> (8 * i)));
  }
  void add(std::string_view text) {
    for (const char c : text) byte(static_cast<unsigned char>(c));
    byte(0);
  }
  void add(const std::vector<SizeExpr>& sizes) {
    add(sizes.size());
    for (const auto size : sizes) {
      add(static_cast<std::uint64_t>(size.per_sample));
      add(static_cast<std::uint64_t>(size.fixed));
    }
  }
  void add(const c10::IValue& value) {
    if (value.isInt())
      add(static_cast<std::uint64_t>(value.toInt()));
    else if (value.isBool())
      add(std::uint64_t{value.toBool()});
    else if (value.isDouble())
      add(std::bit_cast<std::uint64_t>(value.toDouble()));
    else if (value.isString())
      add(std::string_view(value.toStringRef()));
    else if (value.isIntList())
      for (const auto element : value.toIntVector()) add(static_cast<std::uint64_t>(element));
    else
      add(std::string_view(value.isNone() ? "none" : "other"));
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  void byte(unsigned char value) { state_ = (state_ ^ value) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

class Profiler {
 public:
  Profiler(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::DeviceType device,
           tensor_parallel::SingleLayers singles, const std::vector<std::string>& in_8_bits)
      : graph_(graph),
        plan_(plan),
        singles_(singles),
        options_{.device = device},
        reads_(algebra::parameter_reads(graph, plan)),
        highest_zero_(algebra::highest_zero_levels(graph, plan, {})) {
    profile_.in_8_bits = in_8_bits;
  }

  GraphProfile run(const std::vector<std::vector<OpId>>& ties) && {
    profile_.atoms = partition_into_atoms(graph_, plan_, ties);
    memory_.emplace(graph_, plan_, profile_.atoms, options_);
    list_parameters();
    for (const auto& ops : profile_.atoms.atoms) add_atom(ops);
    find_copies_by_call();
    add_memory();
    add_edges();
    add_inputs();
    add_outputs();
    add_tensor_regions();
    model().loss_mode = plan_.loss_mode;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      model().chunked_heads = model().chunked_heads || is_chunked_head(graph_, OpId::of(i));
    model().hash = with_operators(hash_with(ties));
    return std::move(profile_);
  }

 private:
  /// Users' definitions of operators affect costs and plans, so the hash includes them.
  [[nodiscard]] std::uint64_t with_operators(std::uint64_t program) const {
    const auto operators = ops::operators_of_users(graph_);
    if (operators.empty()) return program;
    StructureHash hash;
    hash.add(program);
    for (const auto& one : operators) hash.add(std::string_view(one));
    return hash.value();
  }

  [[nodiscard]] std::uint64_t hash_with(const std::vector<std::vector<OpId>>& ties) const {
    if (ties.empty()) return autopar::ir::hash_without_strides(graph_);
    StructureHash hash;
    hash.add(autopar::ir::hash_without_strides(graph_));
    for (const auto& tie : ties) {
      hash.add(tie.size());
      for (const auto op : tie) hash.add(static_cast<std::uint64_t>(op.value()));
    }
    return hash.value();
  }

  ModelProfile& model() { return profile_.model; }
  [[nodiscard]] OpCall context(OpId id) const { return {graph_, plan_.values, options_, id}; }

  void list_parameters() {
    profile_.parameter_ids.assign(graph_.values.size(), ParameterId::none());
    const bool trains =
        std::any_of(graph_.ops.begin(), graph_.ops.end(), [](const OpNode& op) { return op.grad_enabled; });
    const auto list = [&](const std::vector<NamedValue>& names, bool parameters) {
      for (const auto& named : names) {
        auto& id = profile_.parameter_ids[named.value.index()];
        if (id.valid()) continue;
        id = ParameterId::of(profile_.parameter_values.size());
        profile_.parameter_values.push_back(named.value);
        const auto bytes = ops::bytes_of(graph_, named.value);
        const auto count = ops::elements(graph_.value(named.value).sizes);
        model().parameters.push_back({named.name, Bytes(static_cast<std::int64_t>(bytes.fixed)),
                                      parameters && trains && graph_.value(named.value).requires_grad,
                                      parameters ? static_cast<std::int64_t>(count.fixed) : 0,
                                      Bytes(parameters ? copy_bytes(named.value) : 0),
                                      highest_zero_[named.value.index()]});
      }
    };
    list(in_order_of_last_reads(), true);
    list(graph_.buffers, false);
  }

  /// Ascending by last read: the reverse of the order in stages' reduction groups.
  [[nodiscard]] std::vector<NamedValue> in_order_of_last_reads() const {
    auto last = algebra::last_reads(graph_, plan_);
    auto parameters = graph_.parameters;
    std::stable_sort(parameters.begin(), parameters.end(), [&](const NamedValue& a, const NamedValue& b) {
      return std::pair(last[a.value], a.value) < std::pair(last[b.value], b.value);
    });
    return parameters;
  }

  /// Bytes of the smaller copy that all operators read instead of a parameter.
  [[nodiscard]] std::int64_t copy_bytes(ValueId parameter) const {
    const auto& info = graph_.value(parameter);
    const auto type = reads_[parameter.index()].smaller_copy(info.dtype);
    if (!type) return 0;
    return static_cast<std::int64_t>(ops::elements(info.sizes).fixed) *
           static_cast<std::int64_t>(c10::elementSize(*type));
  }

  // Only a copy with its parameter's layout is kept across calls (Stage::kept_copy). On CPUs other copies are kept
  // until the call ends.
  void find_copies_by_call() {
    if (options_.device != c10::DeviceType::CUDA) return;
    const auto uses = graph_.uses();
    std::vector<std::set<NodeId>> readers(model().parameters.size());
    std::vector<bool> is_kept(readers.size(), false);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (!plan_.ops[i].once) continue;
      const auto parameter = graph_.input(OpId::of(i), 0), copy = graph_.output(OpId::of(i));
      const auto id = profile_.parameter_ids[parameter.index()];
      if (!id.valid()) continue;
      for (const auto reader : uses[copy.index()]) readers[id.index()].insert(profile_.atoms.atom_of[reader.index()]);
      if (!ir::is_channels_last(graph_.value(copy)) || lies_channels_last(graph_.value(parameter)))
        is_kept[id.index()] = true;
    }
    for (std::size_t p = 0; p < readers.size(); ++p) {
      auto& parameter = model().parameters[p];
      parameter.copy_by_call = parameter.copy > Bytes(0) && readers[p].size() == 1 && !is_kept[p];
    }
  }
  /// A value with four dims is channels-last. In values of one element strides do not matter.
  [[nodiscard]] static bool lies_channels_last(const ValueInfo& info) {
    return ir::is_channels_last(info) || (info.sizes[2].fixed == 1 && info.sizes[3].fixed == 1);
  }

  // An operand that the same atom makes cannot be sent between replicas.
  void add_collective(OpProfile& atom, const std::vector<OpId>& ops, const OpCall& op,
                      const ir::Collective& collective) const {
    const auto operand = op.first_tensor();
    const Bytes bytes(static_cast<std::int64_t>(ops::bytes_of(graph_, operand).fixed));
    atom.totals += collective.all_reduced(bytes);
    atom.whole_batch = atom.whole_batch || std::binary_search(ops.begin(), ops.end(), graph_.value(operand).definer);
  }

  void add_atom(const std::vector<OpId>& ops) {
    OpProfile atom;
    atom.name = ir::shown_name(graph_, heaviest(ops));
    atom.path = graph_.op(heaviest(ops)).path;
    StructureHash structure;
    for (const auto id : ops) {
      const auto op = context(id);
      const auto in_8_bits = layer_in_8_bits(id);
      if (plan_.handling(id).once) {
        const bool counts_with_parameter = copy_bytes(graph_.input(id, 0)) > 0;
        const auto bytes = static_cast<std::int64_t>(ops::bytes_of(graph_, op.results().front()).fixed);
        if (!counts_with_parameter) atom.resident += Bytes(bytes);
      } else {
        add_work(atom, in_8_bits ? add_casts(atom, op, *in_8_bits) : ops::work_of(op));
      }
      add_structure(structure, op, ops);
      if (in_8_bits) structure.add(std::string_view("in 8 bits"));
      atom.whole_batch = atom.whole_batch || plan_.handling(id).whole_batch;
      if (const auto* collective = plan_.handling(id).collective) add_collective(atom, ops, op, *collective);
      atom.batch_statistic = atom.batch_statistic || plan_.normalises_by_slice(id);
      atom.ops.push_back(id.value());
      for (const auto value : op.tensors()) {
        if (const auto parameter = profile_.parameter_ids[value.index()];
            parameter.valid() && !plan_.is_prologue(value)) {
          atom.parameters.push_back(parameter);
        }
      }
    }
    std::sort(atom.parameters.begin(), atom.parameters.end());
    atom.parameters.erase(std::unique(atom.parameters.begin(), atom.parameters.end()), atom.parameters.end());
    atom.structure = structure.value();
    model().graph.add_node(std::move(atom));
  }

  /// The op that an atom is named after: the one with most work, the first among equal ones.
  [[nodiscard]] OpId heaviest(const std::vector<OpId>& ops) const {
    OpId best = ops.front();
    double most = -1;
    for (const auto id : ops) {
      if (plan_.handling(id).once) continue;
      const auto work = ops::work_of(context(id)).forward;
      const double weight = work.flops.at(1) + work.bytes.at(1);
      if (weight <= most) continue;
      most = weight;
      best = id;
    }
    return best;
  }

  /// The layer that the op is, if its products run in 8 bits.
  [[nodiscard]] std::optional<autograd::SplitBackward> layer_in_8_bits(OpId op) const {
    if (profile_.in_8_bits.empty()) return std::nullopt;
    auto layer = autograd::split_backward_of(graph_, plan_, op);
    if (!layer || !layer->is_product_of_cast()) return std::nullopt;
    const auto found = std::ranges::find(profile_.in_8_bits, graph_.value(layer->weight).name);
    return found == profile_.in_8_bits.end() ? std::nullopt : layer;
  }

  /// Input and weight are cast in the forward, the gradient in the backward. @return the work of the products
  [[nodiscard]] WorkItem add_casts(OpProfile& atom, const OpCall& op, const autograd::SplitBackward& layer) const {
    const auto bytes_of = [&](ValueId value) {
      return ops::elements(graph_.value(value).sizes) * fused::kBytesOfFp8Cast;
    };
    auto products = ops::work_of(op);
    WorkItem casts{OpClass::kMemory, products.dtype, {}, {}};
    casts.forward.bytes = bytes_of(graph_.input(op.id(), layer.x_at));
    casts.forward.bytes += bytes_of(graph_.input(op.id(), layer.weight_at));
    casts.backward.bytes = bytes_of(graph_.output(op.id()));
    casts.forward.launches.fixed = 2;
    casts.backward.launches.fixed = 1;
    add_work(atom, casts);
    for (auto* work : {&products.forward, &products.backward}) work->flops = work->flops * fused::kTimeOfFp8Product;
    return products;
  }

  static void add_work(OpProfile& atom, const WorkItem& item) {
    if (item.forward == Work{} && item.backward == Work{}) return;
    for (auto& known : atom.work) {
      if (known.op_class != item.op_class || known.dtype != item.dtype) continue;
      known.forward += item.forward;
      known.backward += item.backward;
      return;
    }
    atom.work.push_back(item);
  }

  void add_structure(StructureHash& hash, const OpCall& op, const std::vector<OpId>& ops) const {
    hash.add(std::string_view(graph_.name(op.id())));
    hash.add(std::string_view(op.overload()));
    for (const auto& argument : op.node().args) hash.add(argument);
    for (const auto& integer : op.node().integers) {
      hash.add(static_cast<std::uint64_t>(integer.expr.per_sample));
      hash.add(static_cast<std::uint64_t>(integer.expr.fixed));
      hash.add(static_cast<std::uint64_t>(integer.form));
      hash.add(std::bit_cast<std::uint64_t>(integer.factor));
    }
    for (const auto value : op.tensors()) {
      const auto& info = graph_.value(value);
      const auto made = std::lower_bound(ops.begin(), ops.end(), info.definer);
      const bool inside = info.definer.valid() && made != ops.end() && *made == info.definer;
      hash.add(inside ? static_cast<std::uint64_t>(made - ops.begin()) : ~std::uint64_t{0});
      hash.add(static_cast<std::uint64_t>(info.dtype));
      hash.add(info.sizes);
      hash.add(std::uint64_t{info.requires_grad});
      hash.add(std::uint64_t{ir::is_channels_last(info)});  // kernel times depend on the layout
    }
    const auto& handling = plan_.handling(op.id());
    hash.add(std::uint64_t{handling.whole_batch});
    hash.add(std::uint64_t{handling.scale_output});
  }

  void add_memory() {
    for (const auto node : model().graph.nodes()) {
      const auto& takes = memory_->of(node);
      auto& atom = model().graph[node];
      atom.saved = takes.saved;
      atom.workspace = takes.workspace;
      atom.forward_workspace = takes.forward_workspace;
      atom.deferred_weight = takes.deferred_weight;
    }
  }

  void add_edges() {
    for (std::size_t k = 0; k < profile_.atoms.atoms.size(); ++k) {
      std::vector<ValueId> seen;
      for (const auto id : profile_.atoms.atoms[k]) {
        for_each_input(graph_.op(id), [&](ValueId value) {
          const auto& info = graph_.value(value);
          if (!info.definer.valid() || plan_.is_prologue(value)) return;
          const auto from = profile_.atoms.atom_of[info.definer.index()];
          if (!from.valid() || from == NodeId::of(k)) return;
          if (std::find(seen.begin(), seen.end(), value) != seen.end()) return;
          seen.push_back(value);
          model().graph.add_edge(
              from, NodeId::of(k),
              {value.value(), ops::bytes_of(graph_, value), info.requires_grad, memory_->is_kept_by(from, value),
               memory_->takes_two_gradients(from, value), memory_->is_kept_for_readers(from, value)});
        });
      }
    }
  }

  void add_inputs() {
    std::vector<InputProfile> by_value(graph_.values.size());
    for (std::size_t k = 0; k < profile_.atoms.atoms.size(); ++k) {
      for (const auto id : profile_.atoms.atoms[k]) {
        for_each_input(graph_.op(id), [&](ValueId value) {
          if (graph_.value(value).kind != ValueKind::kInput) return;
          auto& readers = by_value[value.index()].readers;
          if (readers.empty() || readers.back() != NodeId::of(k)) readers.push_back(NodeId::of(k));
        });
      }
    }
    for (const auto value : graph_.inputs) {
      auto& input = by_value[value.index()];
      model().inputs.push_back(
          {value.value(), ops::bytes_of(graph_, value), graph_.value(value).requires_grad, std::move(input.readers)});
    }
  }

  void add_outputs() {
    const auto add = [&](ValueId value) {
      const auto definer = graph_.value(value).definer;
      if (!definer.valid()) return;
      const auto writer = profile_.atoms.atom_of[definer.index()];
      if (!writer.valid()) return;
      model().outputs.push_back(
          {value.value(), ops::bytes_of(graph_, value), writer, memory_->is_kept_by(writer, value)});
    };
    for (const auto& output : plan_.outputs) {
      if (output.kind == algebra::OutputKind::kBatched || output.kind == algebra::OutputKind::kPartialSum ||
          output.kind == algebra::OutputKind::kReplicated) {
        add(output.value);
      }
    }
    for (const auto& input : plan_.epilogue_inputs) add(input.value);
  }

  /// Exchanged bytes: all-reduces of partial sums, and of gradients of copied values. Gathering the gradient of a value
  /// that is read in slices counts as half an all-reduce. A loss gathers a few numbers for each row.
  void add_tensor_regions() {
    std::vector<tensor_parallel::TensorCandidate> taken;
    for (auto& candidate : tensor_parallel::find_tensor_candidates(graph_, plan_, singles_)) {
      TensorRegion region;
      region.units = candidate.units;
      region.even = false;
      std::set<NodeId> atoms;
      for (const auto op : candidate.ops) atoms.insert(profile_.atoms.atom_of[op.index()]);
      region.atoms.assign(atoms.begin(), atoms.end());
      for (const auto& [leaf, slices] : candidate.leaves)
        region.parameters.push_back(profile_.parameter_ids[leaf.index()]);
      std::ranges::sort(region.parameters);
      for (const auto value : candidate.added_up) region.forward += ops::bytes_of(graph_, value);
      for (const auto value : candidate.copied) region.backward += ops::bytes_of(graph_, value);
      for (const auto value : candidate.spread) {
        const auto bytes = ops::bytes_of(graph_, value);
        region.backward += Affine{bytes.per_sample / 2, bytes.fixed / 2};
      }
      for (const auto loss : candidate.class_losses) region.forward += statistics_of(loss);
      region.forward_calls = static_cast<int>(candidate.added_up.size() + candidate.class_losses.size());
      region.backward_calls = static_cast<int>(candidate.copied.size() + candidate.spread.size());
      const bool is_free = std::ranges::none_of(region.atoms, [&](NodeId atom) { return in_region_.contains(atom); });
      if (!is_free || is_read_outside(region)) continue;
      in_region_.insert(region.atoms.begin(), region.atoms.end());
      model().tensor_regions.push_back(std::move(region));
      profile_.region_slices.push_back(candidate.leaves);
      model().layers_by_inputs = model().layers_by_inputs || candidate.by_inputs;
      taken.push_back(std::move(candidate));
    }
    const auto on_each = memory_on_each_shard(graph_, profile_.atoms, taken, *memory_, options_);
    for (const auto node : model().graph.nodes()) model().graph[node].on_each_shard = on_each[node.index()];
    add_followers(taken);
  }
  /// A reduce-scatter into slices and an all-gather count as half an all-reduce each, in forward and backward.
  void add_followers(const std::vector<tensor_parallel::TensorCandidate>& candidates) {
    if (candidates.empty()) return;
    const auto followers = tensor_parallel::find_followers(graph_, plan_, candidates);
    const auto on_each = memory_on_each_shard(graph_, profile_.atoms, followers, *memory_, options_);
    std::set<OpId> in_slices;
    for (const auto& follower : followers.all) in_slices.insert(follower.ops.begin(), follower.ops.end());
    for (const auto& follower : followers.all) {
      TensorRegion region;
      region.follows = static_cast<int>(follower.leader);
      region.units = follower.tokens;
      region.even = false;
      std::set<NodeId> atoms;
      for (const auto op : follower.ops) {
        const auto atom = profile_.atoms.atom_of[op.index()];
        const auto& ops = profile_.atoms.atoms[atom.index()];
        const bool is_all = std::ranges::all_of(ops, [&](OpId other) { return in_slices.contains(other); });
        if (is_all && !in_region_.contains(atom)) atoms.insert(atom);
      }
      if (atoms.empty()) continue;
      region.atoms.assign(atoms.begin(), atoms.end());
      const auto bytes = [&](const std::vector<ValueId>& values, bool gradients) {
        Affine sum;
        for (const auto value : values) {
          if (!gradients || graph_.value(value).has_gradient()) sum += ops::bytes_of(graph_, value);
        }
        return sum;
      };
      const auto half = [](const Affine& more, const Affine& less) {
        return Affine{std::max(0.0, more.per_sample - less.per_sample) / 2, std::max(0.0, more.fixed - less.fixed) / 2};
      };
      region.forward = half(bytes(follower.brought, false), bytes(follower.sums, false));
      region.forward_calls = static_cast<int>(follower.brought.size());
      auto back = bytes(follower.sums, true);
      back += bytes(follower.spread, true);
      back += bytes(follower.copied, true) * 2;
      region.backward = half(back, bytes(follower.assembled, true));
      region.backward_calls = static_cast<int>(follower.sums.size() + follower.spread.size() + follower.copied.size());
      in_region_.insert(atoms.begin(), atoms.end());
      for (const auto atom : atoms) model().graph[atom].on_each_shard = on_each[atom.index()];
      model().tensor_regions.push_back(std::move(region));
      profile_.region_slices.emplace_back();
    }
  }
  [[nodiscard]] bool is_read_outside(const TensorRegion& region) const {
    const auto& graph = profile_.model.graph;
    return std::ranges::any_of(graph.nodes(), [&](NodeId atom) {
      if (std::ranges::binary_search(region.atoms, atom)) return false;
      return std::ranges::any_of(graph[atom].parameters,
                                 [&](ParameterId id) { return std::ranges::binary_search(region.parameters, id); });
    });
  }
  /// Bytes of four numbers for each row, in double precision: maximum, sum of exponentials, target's logit and one
  /// more.
  [[nodiscard]] Affine statistics_of(ValueId loss) const {
    constexpr double kBytesOfRow = 4 * sizeof(double);
    const auto op = graph_.value(loss).definer;
    const auto target = context(op).tensor("target");
    return ops::elements(graph_.value(target).sizes) * kBytesOfRow;
  }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const tensor_parallel::SingleLayers singles_;
  const AlgebraOptions options_;
  GraphProfile profile_;
  std::optional<ProgramMemory> memory_;
  std::set<NodeId> in_region_;
  std::vector<algebra::ParameterReads> reads_;  ///< by value
  std::vector<int> highest_zero_;               ///< by value
};

}  // namespace

GraphProfile profile_graph(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::DeviceType device,
                           const std::vector<std::vector<OpId>>& ties, tensor_parallel::SingleLayers singles,
                           const std::vector<std::string>& in_8_bits) {
  return Profiler(graph, plan, device, singles, in_8_bits).run(ties);
}

}  // namespace autopar::cost
