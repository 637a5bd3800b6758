#include <autopar/io/profile_file.hpp>

#include <limits>

#include <autopar/cost/tensor_regions.hpp>
#include <autopar/io/file.hpp>

#include "json_reader.hpp"

namespace autopar {

namespace {

using detail::JsonReader;
using detail::kMaxBytes;
using detail::kMaxId;
using detail::OrderedJson;

const std::vector<std::pair<OpClass, const char*>> kClasses{{OpClass::kMatmul, "matmul"},
                                                            {OpClass::kConvolution, "convolution"},
                                                            {OpClass::kAttention, "attention"},
                                                            {OpClass::kMemory, "memory"},
                                                            {OpClass::kView, "view"}};

OrderedJson affine_json(Affine affine) { return {affine.per_sample, affine.fixed}; }

Affine read_affine(JsonReader& reader, const char* key) {
  const auto& pair = reader.list(key);
  constexpr double kLimit = 1e30;
  if (pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number())
    reader.fail(key, "expected [per_sample, fixed]");
  const Affine affine{pair[0].get<double>(), pair[1].get<double>()};
  if (!(affine.per_sample >= 0 && affine.per_sample < kLimit && affine.fixed > -kLimit && affine.fixed < kLimit)) {
    reader.fail(key, "expected finite numbers, and per_sample at least 0");
  }
  return affine;
}

OrderedJson work_json(const Work& work) {
  return {
      {"flops", affine_json(work.flops)}, {"bytes", affine_json(work.bytes)}, {"launches", affine_json(work.launches)}};
}

Work read_work(JsonReader reader) {
  Work work{read_affine(reader, "flops"), read_affine(reader, "bytes"), read_affine(reader, "launches")};
  reader.finish();
  return work;
}

OrderedJson atom_json(const OpProfile& atom) {
  OrderedJson work = OrderedJson::array();
  for (const auto& item : atom.work) {
    const char* class_name = "";
    for (const auto& [value, name] : kClasses) {
      if (value == item.op_class) class_name = name;
    }
    work.push_back({{"class", class_name},
                    {"dtype", std::string(name_of(item.dtype))},
                    {"forward", work_json(item.forward)},
                    {"backward", work_json(item.backward)}});
  }
  OrderedJson json{{"name", atom.name},
                   {"path", atom.path},
                   {"work", std::move(work)},
                   {"saved", affine_json(atom.saved)},
                   {"workspace", affine_json(atom.workspace)},
                   {"forward_workspace", affine_json(atom.forward_workspace)},
                   {"put_off", affine_json(atom.deferred_weight)},
                   {"parameters", detail::id_list(atom.parameters)},
                   {"whole_batch", atom.whole_batch},
                   {"totals", atom.totals.value()},
                   {"batch_statistic", atom.batch_statistic},
                   {"structure", detail::hash_text(atom.structure)},
                   {"ops", detail::id_list(atom.ops)}};
  if (atom.resident > Bytes(0)) json["resident"] = atom.resident.value();
  if (atom.on_each_shard != AtomMemory{}) {
    json["on_each_shard"] = {{"saved", affine_json(atom.on_each_shard.saved)},
                             {"workspace", affine_json(atom.on_each_shard.workspace)},
                             {"forward_workspace", affine_json(atom.on_each_shard.forward_workspace)},
                             {"put_off", affine_json(atom.on_each_shard.deferred_weight)}};
  }
  return json;
}

/// Files of earlier versions have what either way takes.
Affine read_forward_workspace(JsonReader& reader, const Affine& workspace) {
  return reader.has("forward_workspace") ? read_affine(reader, "forward_workspace") : workspace;
}

OpProfile read_atom(JsonReader& reader, std::int64_t parameters) {
  OpProfile atom;
  atom.name = reader.text("name");
  atom.path = reader.text("path");
  reader.each("work", [&](JsonReader& row) {
    WorkItem item;
    item.op_class = row.word("class", kClasses);
    const auto dtype = dtype_named(row.text("dtype"));
    if (!dtype) row.fail("dtype", "unknown element type");
    item.dtype = *dtype;
    item.forward = read_work(row.object("forward"));
    item.backward = read_work(row.object("backward"));
    atom.work.push_back(item);
  });
  atom.saved = read_affine(reader, "saved");
  atom.workspace = read_affine(reader, "workspace");
  atom.forward_workspace = read_forward_workspace(reader, atom.workspace);
  if (reader.has("resident")) atom.resident = Bytes(reader.whole("resident", 0, std::int64_t{1} << 44));
  atom.deferred_weight = read_affine(reader, "put_off");
  if (reader.has("on_each_shard")) {
    JsonReader each = reader.object("on_each_shard");
    auto& on_each = atom.on_each_shard;
    on_each = {read_affine(each, "saved"), read_affine(each, "workspace"), read_affine(each, "put_off"), {}};
    on_each.forward_workspace = read_forward_workspace(each, on_each.workspace);
  }
  atom.parameters = reader.ids<ParameterId>("parameters", 0, parameters - 1);
  atom.whole_batch = reader.flag("whole_batch");
  atom.totals = Bytes(reader.whole("totals", 0, std::int64_t{1} << 40));
  atom.batch_statistic = reader.flag("batch_statistic");
  atom.structure = reader.hash("structure");
  atom.ops = reader.ids<std::int32_t>("ops", 0, kMaxId);
  return atom;
}

OrderedJson region_json(const TensorRegion& region) {
  OrderedJson json{{"atoms", detail::id_list(region.atoms)},
                   {"parameters", detail::id_list(region.parameters)},
                   {"units", region.units},
                   {"even", region.even},
                   {"forward", affine_json(region.forward)},
                   {"forward_calls", region.forward_calls},
                   {"backward", affine_json(region.backward)},
                   {"backward_calls", region.backward_calls}};
  if (region.follows >= 0) json["follows"] = region.follows;
  return json;
}

TensorRegion read_region(JsonReader& reader, std::int64_t atoms, std::int64_t parameters) {
  constexpr std::int64_t kMostCalls = 1 << 20;
  TensorRegion region;
  region.atoms = reader.ids<NodeId>("atoms", 0, atoms - 1);
  region.parameters = reader.ids<ParameterId>("parameters", 0, parameters - 1);
  region.units = reader.whole("units", 1, kMaxBytes);
  region.even = reader.flag("even");
  region.forward = read_affine(reader, "forward");
  region.forward_calls = static_cast<int>(reader.whole("forward_calls", 0, kMostCalls));
  region.backward = read_affine(reader, "backward");
  region.backward_calls = static_cast<int>(reader.whole("backward_calls", 0, kMostCalls));
  if (reader.has("follows")) region.follows = static_cast<int>(reader.whole("follows", 0, kMaxId));
  return region;
}

}  // namespace

std::string to_json(const ModelProfile& profile) {
  OrderedJson parameters = OrderedJson::array();
  for (const auto& parameter : profile.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"bytes", parameter.bytes.value()},
                          {"trainable", parameter.trainable},
                          {"elements", parameter.elements}});
    if (parameter.copy > Bytes(0)) parameters.back()["copy"] = parameter.copy.value();
    if (parameter.copy_by_call) parameters.back()["copy_by_call"] = true;
    if (parameter.highest_zero < 3) parameters.back()["highest_zero"] = parameter.highest_zero;
  }
  OrderedJson atoms = OrderedJson::array();
  OrderedJson edges = OrderedJson::array();
  const auto& graph = profile.graph;
  for (const auto node : graph.nodes()) atoms.push_back(atom_json(graph[node]));
  for (const auto edge : graph.edges()) {
    const auto& value = graph[edge];
    edges.push_back({{"from", graph.source(edge).value()},
                     {"to", graph.target(edge).value()},
                     {"value", value.value},
                     {"bytes", affine_json(value.bytes)},
                     {"differentiable", value.differentiable}});
    if (value.kept) edges.back()["kept"] = true;
    if (value.two_gradients) edges.back()["two_gradients"] = true;
    if (value.for_readers) edges.back()["for_readers"] = true;
  }
  OrderedJson inputs = OrderedJson::array();
  for (const auto& input : profile.inputs) {
    inputs.push_back({{"value", input.value},
                      {"bytes", affine_json(input.bytes)},
                      {"differentiable", input.differentiable},
                      {"readers", detail::id_list(input.readers)}});
  }
  OrderedJson outputs = OrderedJson::array();
  for (const auto& output : profile.outputs) {
    outputs.push_back(
        {{"value", output.value}, {"bytes", affine_json(output.bytes)}, {"writer", output.writer.value()}});
    if (output.kept) outputs.back()["kept"] = true;
  }
  OrderedJson root{{"format", file_mark("profile", profile.hash)},
                   {"version", 3},
                   {"hash", detail::hash_text(profile.hash)},
                   {"loss_mode", profile.loss_mode},
                   {"parameters", std::move(parameters)},
                   {"atoms", std::move(atoms)},
                   {"edges", std::move(edges)},
                   {"inputs", std::move(inputs)},
                   {"outputs", std::move(outputs)}};
  if (profile.chunked_heads) root["chunked_heads"] = true;
  if (profile.layers_by_inputs) root["layers_by_inputs"] = true;
  if (profile.held_beside != Affine{}) root["held_beside"] = affine_json(profile.held_beside);
  if (!profile.tensor_regions.empty()) {
    auto& regions = root["tensor_regions"] = OrderedJson::array();
    for (const auto& region : profile.tensor_regions) regions.push_back(region_json(region));
  }
  return root.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

ModelProfile parse_profile(std::string_view json, const std::string& file) {
  const auto root = detail::parse_json(json, file);
  JsonReader reader(root, file, "");
  ModelProfile profile;
  reader.format("autopar profile");
  if (reader.whole("version", 0, kMaxId) != 3)
    reader.fail("version", "this autopar reads profiles of version 3; write it anew");
  profile.hash = reader.hash("hash");
  reader.format(file_mark("profile", profile.hash));
  profile.loss_mode = reader.flag("loss_mode");
  if (reader.has("chunked_heads")) profile.chunked_heads = reader.flag("chunked_heads");
  if (reader.has("layers_by_inputs")) profile.layers_by_inputs = reader.flag("layers_by_inputs");
  if (reader.has("held_beside")) profile.held_beside = read_affine(reader, "held_beside");
  reader.each("parameters", [&](JsonReader& row) {
    ParameterProfile parameter;
    parameter.name = row.text("name");
    parameter.bytes = Bytes(row.whole("bytes", 0, kMaxBytes));
    parameter.trainable = row.flag("trainable");
    parameter.elements = row.whole("elements", 0, kMaxBytes);
    if (row.has("copy")) parameter.copy = Bytes(row.whole("copy", 0, kMaxBytes));
    if (row.has("copy_by_call")) parameter.copy_by_call = row.flag("copy_by_call");
    if (row.has("highest_zero")) parameter.highest_zero = static_cast<int>(row.whole("highest_zero", 0, 3));
    profile.parameters.push_back(std::move(parameter));
  });
  const auto parameters = static_cast<std::int64_t>(profile.parameters.size());
  reader.each("atoms", [&](JsonReader& row) { profile.graph.add_node(read_atom(row, parameters)); });
  const auto last = static_cast<std::int64_t>(profile.graph.node_count()) - 1;
  reader.each("edges", [&](JsonReader& row) {
    const NodeId from(static_cast<std::int32_t>(row.whole("from", 0, last)));
    const NodeId to(static_cast<std::int32_t>(row.whole("to", 0, last)));
    const auto value = static_cast<std::int32_t>(row.whole("value", -1, kMaxId));
    const auto bytes = read_affine(row, "bytes");
    const bool differentiable = row.flag("differentiable");
    const auto is_said = [&](const char* key) { return row.has(key) && row.flag(key); };
    profile.graph.add_edge(
        from, to, {value, bytes, differentiable, is_said("kept"), is_said("two_gradients"), is_said("for_readers")});
  });
  reader.each("inputs", [&](JsonReader& row) {
    InputProfile input;
    input.value = static_cast<std::int32_t>(row.whole("value", -1, kMaxId));
    input.bytes = read_affine(row, "bytes");
    input.differentiable = row.flag("differentiable");
    input.readers = row.ids<NodeId>("readers", 0, last);
    profile.inputs.push_back(std::move(input));
  });
  reader.each("outputs", [&](JsonReader& row) {
    const auto value = static_cast<std::int32_t>(row.whole("value", -1, kMaxId));
    const auto bytes = read_affine(row, "bytes");
    const NodeId writer(static_cast<std::int32_t>(row.whole("writer", -1, last)));
    profile.outputs.push_back({value, bytes, writer, row.has("kept") && row.flag("kept")});
  });
  if (reader.has("tensor_regions")) {
    reader.each("tensor_regions",
                [&](JsonReader& row) { profile.tensor_regions.push_back(read_region(row, last + 1, parameters)); });
    const auto fault = fault_in_tensor_regions(profile);
    if (!fault.empty()) reader.fail("tensor_regions", fault);
  }
  reader.finish();
  return profile;
}

ModelProfile read_profile(const std::filesystem::path& path) {
  return parse_profile(read_text_file(path, Bytes(std::int64_t{1} << 30)), path.string());
}

void write_profile(const std::filesystem::path& path, const ModelProfile& profile, Overwrite overwrite) {
  write_marked_file(path, to_json(profile), file_mark("profile", profile.hash), overwrite);
}

}  // namespace autopar
