#include <autopar/bottleneck/instance_file.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "io/json_reader.hpp"

namespace autopar {
namespace {

using detail::Json;

constexpr double kMost = 1e24;

/// Looks up members and says where one is wrong. Members that it does not know are left alone: such files carry more.
class JsonField {
 public:
  JsonField(const Json& json, std::string file, std::string where)
      : json_(json), file_(std::move(file)), where_(std::move(where)) {
    if (!json_.is_object()) fail("expected an object");
  }

  [[nodiscard]] JsonField of(const std::string& key) const { return {value(key), file_, where_ + "." + key}; }
  [[nodiscard]] const Json& list(const std::string& key) const {
    if (!value(key).is_array()) fail("'" + key + "' is no list");
    return value(key);
  }
  [[nodiscard]] double number(const std::string& key) const {
    const Json& found = value(key);
    const double number = found.is_number() ? found.get<double>() : std::nan("");
    if (!(number >= 0 && number < kMost)) fail("'" + key + "' is not a finite number of at least 0");
    return number;
  }
  [[nodiscard]] std::int64_t whole(const std::string& key, std::int64_t least, std::int64_t most) const {
    const double found = number(key);
    if (found != std::floor(found) || found < static_cast<double>(least) || found > static_cast<double>(most)) {
      fail("'" + key + "' is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return static_cast<std::int64_t>(found);
  }
  [[nodiscard]] std::string text(const std::string& key) const {
    if (!value(key).is_string()) fail("'" + key + "' is no text");
    return value(key).get<std::string>();
  }
  [[nodiscard]] const Json& json() const { return json_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError((where_.empty() ? "" : "in " + where_ + ": ") + what, file_);
  }

 private:
  [[nodiscard]] const Json& value(const std::string& key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail("'" + key + "' is missing");
    return *found;
  }
  const Json& json_;
  std::string file_, where_;
};

constexpr std::int64_t kMostIds = 1'000'000'000;

}  // namespace

class InstanceReader {
 public:
  InstanceReader(const Json& json, std::string file) : file_(std::move(file)), root_(json, file_, "") {}

  [[nodiscard]] PlanningInstance read(const InstanceTarget& target) {
    PlanningInstance instance;
    instance.limits.devices =
        target.devices ? *target.devices : static_cast<int>(root_.whole("maxDevices", 1, 1 << 30));
    instance.limits.memory = target.memory ? *target.memory : root_.number("maxMemoryPerDevice");
    detail::demand(instance.limits.memory > 0 && std::isfinite(instance.limits.memory),
                   "the memory of a device must be positive and finite");
    instance.costs.bandwidth_ = target.bandwidth ? *target.bandwidth : root_.number("bandwidth");
    detail::demand(instance.costs.bandwidth_ > 0 && std::isfinite(instance.costs.bandwidth_),
                   "the bandwidth must be positive and finite");
    instance.costs.microbatches_ = static_cast<int>(root_.whole("mbsInBatch", 1, 1 << 30));
    add_nodes(instance);
    add_edges(instance);
    add_variants(instance);
    (void)topological_order(instance.graph);
    return instance;
  }

 private:
  [[nodiscard]] JsonField node_field(std::size_t i) const {
    return {root_.list("nodes")[i], file_, "nodes[" + std::to_string(i) + "]"};
  }

  void add_nodes(PlanningInstance& instance) {
    const std::size_t count = root_.list("nodes").size();
    std::vector<int> degrees;
    for (std::size_t i = 0; i < count; ++i) {
      const JsonField field = node_field(i);
      const std::int64_t id = field.whole("id", 0, kMostIds);
      if (!by_id_.emplace(id, instance.graph.add_node(id)).second) field.fail("id " + std::to_string(id) + " is taken");
      const JsonField choices = field.of("TMPCs");
      for (const auto& [degree, variants] : choices.json().items()) degrees.push_back(degree_of(choices, degree));
    }
    std::sort(degrees.begin(), degrees.end());
    degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
    instance.costs.degrees_ = std::move(degrees);
  }

  static int degree_of(const JsonField& field, const std::string& text) {
    const bool digits = !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || text.front() == '0') field.fail("'" + text + "' is no tensor degree");
    return std::stoi(text);
  }

  void add_edges(PlanningInstance& instance) {
    const Json& edges = root_.list("edges");
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const JsonField field(edges[i], file_, "edges[" + std::to_string(i) + "]");
      const auto end = [&](const char* key) {
        const auto id = field.whole(key, 0, kMostIds);
        const auto found = by_id_.find(id);
        if (found == by_id_.end()) field.fail("there is no node " + std::to_string(id));
        return found->second;
      };
      instance.graph.add_edge(end("sourceId"), end("destId"), 0);
      bytes_.push_back(field.number("communicationCost"));
    }
  }

  void add_variants(PlanningInstance& instance) {
    auto& costs = instance.costs;
    costs.variants_.assign(instance.graph.node_count(), std::vector<std::vector<NodeVariant>>(costs.degrees_.size()));
    for (std::size_t i = 0; i < instance.graph.node_count(); ++i) {
      const JsonField choices = node_field(i).of("TMPCs");
      for (std::size_t t = 0; t < costs.degrees_.size(); ++t) {
        const std::string degree = std::to_string(costs.degrees_[t]);
        if (!choices.json().contains(degree)) continue;
        const Json& list = choices.list(degree);
        for (std::size_t v = 0; v < list.size(); ++v) {
          const JsonField field(list[v], file_,
                                "nodes[" + std::to_string(i) + "].TMPCs." + degree + "[" + std::to_string(v) + "]");
          costs.variants_[i][t].push_back(variant(instance.graph, NodeId::of(i), field));
        }
      }
    }
  }

  [[nodiscard]] NodeVariant variant(const Graph<std::int64_t, char>& graph, NodeId node, const JsonField& field) const {
    NodeVariant out;
    out.name = field.text("id");
    out.work = field.number("timePerSample");
    out.bytes_in_flight = field.number("memoryUsageA");
    out.bytes = field.number("memoryUsageB");
    out.parameters = field.number("parameterSize");
    for (const EdgeId edge : graph.in_edges(node)) {
      const std::string before = std::to_string(graph[graph.source(edge)]);
      out.in.push_back(2 * (bytes_[edge.index()] + field.of("syncTimeFw").number(before)));
    }
    for (const EdgeId edge : graph.out_edges(node)) {
      const std::string after = std::to_string(graph[graph.target(edge)]);
      out.out.push_back(2 * (bytes_[edge.index()] + field.of("syncTimeBw").number(after)));
    }
    return out;
  }

  std::string file_;
  JsonField root_;
  std::map<std::int64_t, NodeId> by_id_;
  std::vector<double> bytes_;  // by edge
};

std::vector<int> InstanceCosts::replicas(int devices) const {
  std::vector<int> degrees;
  for (int d = 1; d <= microbatches_ / d; ++d) {
    if (microbatches_ % d != 0) continue;
    degrees.push_back(d);
    if (d != microbatches_ / d) degrees.push_back(microbatches_ / d);
  }
  std::erase_if(degrees, [devices](int d) { return d > devices; });
  std::sort(degrees.begin(), degrees.end());
  return degrees;
}

std::vector<NodeVariant> InstanceCosts::variants(const Graph<std::int64_t, char>&, NodeId node, int degree) const {
  const auto at = std::find(degrees_.begin(), degrees_.end(), degree);
  if (at == degrees_.end()) return {};
  return variants_[node.index()][static_cast<std::size_t>(at - degrees_.begin())];
}

PlanningInstance parse_instance(std::string_view json, const std::string& file, const InstanceTarget& target) {
  if (target.devices) {
    detail::demand(*target.devices >= 1, "a plan needs at least one device, not " + std::to_string(*target.devices));
  }
  const Json root = detail::parse_json(json, file);
  return InstanceReader(root, file).read(target);
}

std::string to_json(const PlanningInstance& instance, const std::vector<VariantStage>& stages) {
  detail::OrderedJson list = detail::OrderedJson::array();
  for (const VariantStage& stage : stages) {
    detail::OrderedJson nodes = detail::OrderedJson::array(), variants = detail::OrderedJson::object();
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const std::int64_t id = instance.graph[stage.nodes[i]];
      nodes.push_back(id);
      const auto choices = instance.costs.variants(instance.graph, stage.nodes[i], stage.tensor_degree);
      variants[std::to_string(id)] = choices[static_cast<std::size_t>(stage.variants[i])].name;
    }
    list.push_back({{"nodes", std::move(nodes)},
                    {"dataParallelDegree", stage.replicas},
                    {"tensorParallelDegree", stage.tensor_degree},
                    {"TMPCids", std::move(variants)}});
  }
  return detail::OrderedJson{{"stages", std::move(list)}}.dump(1);
}

std::vector<VariantStage> parse_stages(std::string_view json, const std::string& file, const VariantTables& tables) {
  std::map<std::int64_t, NodeId> by_id;
  for (const NodeId node : tables.graph.nodes()) by_id.emplace(tables.graph[node], node);
  const Json root = detail::parse_json(json, file);
  const Json& list = JsonField(root, file, "").list("stages");
  std::vector<VariantStage> stages;
  for (std::size_t s = 0; s < list.size(); ++s) {
    const JsonField field(list[s], file, "stages[" + std::to_string(s) + "]");
    VariantStage stage;
    stage.replicas = static_cast<int>(field.whole("dataParallelDegree", 1, 1 << 30));
    stage.tensor_degree = static_cast<int>(field.whole("tensorParallelDegree", 1, 1 << 30));
    const auto& degrees = tables.tensor_degrees;
    const auto degree = std::find(degrees.begin(), degrees.end(), stage.tensor_degree);
    if (degree == degrees.end()) field.fail("the instance has no tensor degree " + std::to_string(stage.tensor_degree));
    const JsonField variants = field.of("TMPCids");
    for (const Json& id : field.list("nodes")) {
      const auto node = id.is_number_integer() ? by_id.find(id.get<std::int64_t>()) : by_id.end();
      if (node == by_id.end()) field.fail("a node is not one of the instance");
      const auto& choices = tables.variants[node->second.index()][static_cast<std::size_t>(degree - degrees.begin())];
      const std::string name = variants.text(std::to_string(node->first));
      const auto chosen = std::find_if(choices.begin(), choices.end(), [&](const auto& v) { return v.name == name; });
      if (chosen == choices.end()) {
        field.fail("node " + std::to_string(node->first) + " has no variant '" + name + "' of tensor degree " +
                   std::to_string(stage.tensor_degree));
      }
      stage.nodes.push_back(node->second);
      stage.variants.push_back(static_cast<int>(chosen - choices.begin()));
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace autopar
