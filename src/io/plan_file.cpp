#include <autopar/io/plan_file.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <string_view>

#include <autopar/io/file.hpp>
#include <autopar/plan/report/kept_options.hpp>
#include <autopar/schedule/traits.hpp>

#include "json_reader.hpp"

namespace autopar {

namespace {

using detail::JsonReader;
using detail::kMaxBytes;
using detail::kMaxId;
using detail::OrderedJson;

constexpr std::int64_t kMaxSamples = std::int64_t{1} << 36;
constexpr std::int64_t kMaxMicrobatches = 1'000'000;  // as options have it
constexpr double kMaxSeconds = 1e30;                  // sums and ratios of such are numbers
constexpr double kMaxGap = 1e100;
constexpr double kMaxStateFactor = 1e3;

Seconds read_seconds(JsonReader& reader, const char* key) { return Seconds(reader.number(key, 0, kMaxSeconds)); }

/// What a rank of a synthesised schedule does in turn: "F2.0" is the forward of stage 2, micro-batch 0; D a whole
/// backward, B that of inputs, W that of weights.
constexpr std::string_view kComputeLetters = "FDBW";
constexpr int kMostShards = 1 << 16;
constexpr std::array kComputeKinds{ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput,
                                   ActionKind::kBackwardWeight};

OrderedJson stage_json(const StagePlan& stage) {
  OrderedJson recomputed = OrderedJson::array();
  for (const auto& segment : stage.recomputed) recomputed.push_back(detail::id_list(segment));
  return {{"ranks", detail::id_list(stage.mesh.ranks())},
          {"tensor", stage.mesh.tensor()},
          {"atoms", detail::id_list(stage.atoms)},
          {"ops", detail::id_list(stage.ops)},
          {"recomputed", std::move(recomputed)},
          {"parameters", detail::id_list(stage.parameters)},
          {"parameter_bytes", stage.parameter_bytes.value()},
          {"parameter_elements", stage.parameter_elements},
          {"forward_s", stage.forward.value()},
          {"backward_s", stage.backward.value()},
          {"communication_s", stage.communication.value()},
          {"reduction_s", stage.reduction.value()},
          {"peak_memory_bytes", stage.peak_memory.value()},
          {"host_memory_bytes", stage.host_memory.value()}};
}

StagePlan read_stage(JsonReader& reader, int world) {
  StagePlan stage;
  auto ranks = reader.ids<Rank>("ranks", 0, world - 1);
  if (ranks.empty()) reader.fail("ranks", "a stage needs at least one rank");
  const auto tensor = static_cast<int>(reader.whole("tensor", 1, world));
  try {
    stage.mesh = Mesh(std::move(ranks), tensor);
  } catch (const InvalidArgument& error) {
    reader.fail("tensor", error.what());
  }
  stage.atoms = reader.ids<NodeId>("atoms", 0, kMaxId);
  stage.ops = reader.ids<std::int32_t>("ops", 0, kMaxId);
  stage.recomputed = reader.id_lists<NodeId>("recomputed", 0, kMaxId);
  stage.parameters = reader.ids<ParameterId>("parameters", 0, kMaxId);
  stage.parameter_bytes = Bytes(reader.whole("parameter_bytes", 0, kMaxBytes));
  stage.parameter_elements = reader.whole("parameter_elements", 0, kMaxBytes);
  stage.forward = read_seconds(reader, "forward_s");
  stage.backward = read_seconds(reader, "backward_s");
  stage.communication = read_seconds(reader, "communication_s");
  stage.reduction = read_seconds(reader, "reduction_s");
  stage.peak_memory = Bytes(reader.whole("peak_memory_bytes", 0, kMaxBytes));
  stage.host_memory = Bytes(reader.whole("host_memory_bytes", 0, kMaxBytes));
  return stage;
}

OrderedJson orders_json(const std::vector<std::vector<ComputeAction>>& orders) {
  OrderedJson ranks = OrderedJson::array();
  for (const auto& computes : orders) {
    std::string text;
    for (const ComputeAction compute : computes) {
      const auto kind = std::find(kComputeKinds.begin(), kComputeKinds.end(), compute.kind) - kComputeKinds.begin();
      text += (text.empty() ? "" : " ") + std::string(1, kComputeLetters.at(static_cast<std::size_t>(kind))) +
              std::to_string(compute.stage.value()) + "." + std::to_string(compute.microbatch);
    }
    ranks.push_back(std::move(text));
  }
  return ranks;
}

std::vector<std::vector<ComputeAction>> read_orders(JsonReader& reader) {
  std::vector<std::vector<ComputeAction>> orders;
  for (const auto& item : reader.list("orders")) {
    if (!item.is_string()) reader.fail("orders", "expected text");
    std::istringstream words(item.get<std::string>());
    orders.emplace_back();
    for (std::string word; words >> word;) {
      const auto kind = kComputeLetters.find(word.front());
      int stage = -1, microbatch = -1;
      const char* end = word.data() + word.size();
      const auto first = std::from_chars(word.data() + 1, end, stage);
      const bool dot = first.ptr != end && *first.ptr == '.';
      const auto second = dot ? std::from_chars(first.ptr + 1, end, microbatch) : first;
      if (kind == std::string_view::npos || !dot || second.ptr != end || stage < 0 || microbatch < 0) {
        reader.fail("orders",
                    "'" + word + "' is no compute action, such as F2.0 for the forward of stage 2, micro-batch 0");
      }
      orders.back().push_back({kComputeKinds[kind], microbatch, StageId(stage)});
    }
  }
  return orders;
}

OrderedJson certificate_json(const Certificate& certificate) {
  OrderedJson cases = OrderedJson::array();
  for (const auto& one : certificate.cases) {
    cases.push_back({{"because", to_string(one.kind)},
                     {"microbatches_from", one.from},
                     {"microbatches_to", one.to},
                     {"seconds", one.seconds.value()}});
  }
  OrderedJson json{{"lower_bound_s", certificate.lower_bound.value()},
                   {"gap", certificate.gap},
                   {"cases", std::move(cases)},
                   {"searched_bound_s", certificate.searched_bound.value()},
                   {"searched_to_end", certificate.searched_to_end}};
  if (certificate.tensor_parallel > 1) json["tensor_parallel"] = certificate.tensor_parallel;
  return json;
}

Certificate read_certificate(JsonReader reader) {
  Certificate certificate;
  certificate.lower_bound = read_seconds(reader, "lower_bound_s");
  certificate.gap = reader.number("gap", -1, kMaxGap);
  reader.each("cases", [&](JsonReader& one) {
    const auto kind = one.word<BoundKind>("because");
    const auto from = static_cast<int>(one.whole("microbatches_from", 1, kMaxId));
    const auto to = static_cast<int>(one.whole("microbatches_to", 0, kMaxId));
    certificate.cases.push_back({kind, from, to, read_seconds(one, "seconds")});
  });
  certificate.searched_bound = read_seconds(reader, "searched_bound_s");
  certificate.searched_to_end = reader.flag("searched_to_end");
  if (reader.has("tensor_parallel"))
    certificate.tensor_parallel = static_cast<int>(reader.whole("tensor_parallel", 1, kMostShards));
  reader.finish();
  return certificate;
}

/// "mylib::scale_rows 1"
bool is_versioned_operator(std::string_view text) {
  const auto colons = text.find("::"), space = text.rfind(' ');
  if (colons == 0 || colons == text.npos || space == text.npos || space <= colons + 2) return false;
  const auto version = text.substr(space + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !version.empty() && version.front() != '0' && std::all_of(version.begin(), version.end(), is_digit) &&
         text.substr(0, space).find(' ') == text.npos;
}

std::vector<std::string> read_operators(JsonReader& reader) {
  std::vector<std::string> operators;
  for (const auto& one : reader.list("operators")) {
    const auto text = one.is_string() ? one.get<std::string>() : std::string();
    if (!is_versioned_operator(text))
      reader.fail("operators", "'" + text + "' is no operator with its version, such as mylib::scale_rows 1");
    operators.push_back(text);
  }
  return operators;
}

/// @throws what the reader does if another autopar wrote the plan
void require_version(const JsonReader& reader, int version) {
  if (version == kPlanVersion) return;
  reader.fail("version", "this autopar reads plans of version " + std::to_string(kPlanVersion) + ", not " +
                             std::to_string(version) +
                             (version == 1   ? ", which has no certificate"
                              : version == 2 ? ", which says nothing of ZeRO and recomputation"
                              : version == 3 ? ", which counted each gradient twice and says nothing of element types"
                              : version == 4 ? ", which says nothing of what is in host memory"
                              : version == 5 ? ", which says nothing of buckets and tensor shards"
                                             : "") +
                             "; remove the file to plan again");
}

}  // namespace

std::string to_json(const Plan& plan) {
  OrderedJson stages = OrderedJson::array();
  for (const auto& stage : plan.stages) stages.push_back(stage_json(stage));
  OrderedJson runners_up = OrderedJson::array();
  for (const auto& other : plan.runners_up) {
    runners_up.push_back({{"summary", other.summary}, {"reason", other.reason}, {"step_s", other.step.value()}});
  }
  OrderedJson root{{"format", file_mark("plan", plan.model)},
                   {"version", plan.version},
                   {"model", detail::hash_text(plan.model)},
                   {"world", plan.world},
                   {"batch", plan.batch},
                   {"microbatches", plan.microbatches},
                   {"schedule", to_string(plan.schedule)},
                   {"zero", plan.zero},
                   {"offload", to_string(plan.offload)},
                   {"bucket_bytes", plan.buckets.size.value()},
                   {"precision", to_string(plan.precision)},
                   {"stages", std::move(stages)},
                   {"device", plan.device},
                   {"device_memory_bytes", plan.device_memory.value()},
                   {"host_memory_bytes", plan.host_memory.value()},
                   {"gradient_copies", plan.gradient_copies},
                   {"optimizer_state_factor", plan.optimizer_state_factor},
                   {"step_s", plan.step.value()},
                   {"bubble", plan.bubble},
                   {"binding", to_string(plan.binding)},
                   {"runners_up", std::move(runners_up)},
                   {"notes", plan.notes},
                   {"certificate", certificate_json(plan.certificate)}};
  if (plan.sequence_parallel) root["sequence_parallel"] = true;
  if (plan.chunked_heads) root["chunked_heads"] = true;
  if (plan.layers_by_inputs) root["layers_by_inputs"] = true;
  if (plan.buckets.reduce_dtype != ReduceDtype::kFp32) root["reduce_dtype"] = to_string(plan.buckets.reduce_dtype);
  if (!plan.operators.empty()) root["operators"] = plan.operators;
  if (!plan.constraints.empty()) root["constraints"] = plan.constraints;
  if (traits_of(plan.schedule).orders_in_plan) root["orders"] = orders_json(plan.orders);
  return root.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Plan parse_plan(std::string_view json, const std::string& file) {
  const auto root = detail::parse_json(json, file);
  JsonReader reader(root, file, "");
  Plan plan;
  reader.format("autopar plan");
  plan.version = static_cast<int>(reader.whole("version", 0, kMaxId));
  require_version(reader, plan.version);
  plan.model = reader.hash("model");
  reader.format(file_mark("plan", plan.model));
  plan.world = static_cast<int>(reader.whole("world", 1, 1 << 24));
  plan.batch = reader.whole("batch", 0, kMaxSamples);
  plan.microbatches = static_cast<int>(reader.whole("microbatches", 1, kMaxMicrobatches));
  plan.schedule = reader.word<ScheduleKind>("schedule");
  if (reader.has("sequence_parallel")) plan.sequence_parallel = reader.flag("sequence_parallel");
  if (reader.has("chunked_heads")) plan.chunked_heads = reader.flag("chunked_heads");
  if (reader.has("layers_by_inputs")) plan.layers_by_inputs = reader.flag("layers_by_inputs");
  plan.zero = static_cast<int>(reader.whole("zero", 0, 3));
  plan.offload = reader.word<Offload>("offload");
  plan.buckets.size = Bytes(reader.whole("bucket_bytes", 1, BucketPolicy::kLargest.value()));
  if (reader.has("reduce_dtype")) plan.buckets.reduce_dtype = reader.word<ReduceDtype>("reduce_dtype");
  plan.precision = reader.word<Precision>("precision");
  if (traits_of(plan.schedule).orders_in_plan) plan.orders = read_orders(reader);
  reader.each("stages", [&](JsonReader& stage) { plan.stages.push_back(read_stage(stage, plan.world)); });
  if (plan.stages.empty()) reader.fail("stages", "a plan needs at least one stage");
  plan.device = reader.text("device");
  plan.device_memory = Bytes(reader.whole("device_memory_bytes", 0, kMaxBytes));
  plan.host_memory = Bytes(reader.whole("host_memory_bytes", 0, kMaxBytes));
  plan.gradient_copies = static_cast<int>(reader.whole("gradient_copies", 1, 2));
  plan.optimizer_state_factor = reader.number("optimizer_state_factor", 0, kMaxStateFactor);
  plan.step = read_seconds(reader, "step_s");
  plan.bubble = reader.number("bubble", 0, 1);
  plan.binding = reader.word<Binding>("binding");
  reader.each("runners_up", [&](JsonReader& other) {
    RunnerUp row;
    row.summary = other.text("summary");
    row.reason = other.text("reason");
    row.step = read_seconds(other, "step_s");
    plan.runners_up.push_back(std::move(row));
  });
  if (reader.has("operators")) plan.operators = read_operators(reader);
  if (reader.has("constraints")) {
    for (const auto& constraint : reader.list("constraints")) {
      const auto text = constraint.is_string() ? constraint.get<std::string>() : std::string();
      if (!is_kept_option(text))
        reader.fail("constraints", "'" + text + "' is no option that plans keep, such as stages=4");
      plan.constraints.push_back(text);
    }
  }
  for (const auto& note : reader.list("notes")) {
    if (!note.is_string()) reader.fail("notes", "expected text");
    plan.notes.push_back(note.get<std::string>());
  }
  plan.certificate = read_certificate(reader.object("certificate"));
  reader.finish();
  return plan;
}

Plan read_plan(const std::filesystem::path& path) { return parse_plan(read_text_file(path), path.string()); }

void write_plan(const std::filesystem::path& path, const Plan& plan, Overwrite overwrite) {
  write_marked_file(path, to_json(plan), file_mark("plan", plan.model), overwrite);
}

}  // namespace autopar
