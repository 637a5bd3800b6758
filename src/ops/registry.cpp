#include "ops/registry.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "ops/op_list.hpp"

namespace autopar::ops {

namespace {

constexpr std::string_view kAten = "aten::", kOwn = "autopar::";

/// Definitions that are added to the list's: of fused operators and of users. Map nodes keep their addresses.
struct Added {
  std::shared_mutex mutex;
  std::map<std::string, OpDef, std::less<>> defs;
  std::atomic<bool> is_closed = false;
};

Added& added() {
  static Added all;
  return all;
}

using Index = std::unordered_map<std::string_view, const OpDef*>;

const Index& index_of_own() {
  static const Index index = [] {
    Index made;
    for (const auto& def : own_definitions()) made.emplace(def.name, &def);
    return made;
  }();
  return index;
}

const OpDef* find(std::string_view name) {
  const auto& own = index_of_own();
  if (const auto found = own.find(name); found != own.end()) return found->second;
  if (name.starts_with(kAten)) return nullptr;
  auto& others = added();
  const std::shared_lock lock(others.mutex);
  const auto found = others.defs.find(name);
  return found == others.defs.end() ? nullptr : &found->second;
}

OpDef tagged_pointwise() {
  auto def = definition_of_pointwise();
  def.saved = SavedTensors::kInputAndResult;
  return def;
}

std::string with_version(const OpDef& def) { return def.name + " " + std::to_string(def.version); }

bool is_registered(const std::string& name) {
  const auto& all = c10::Dispatcher::singleton().getAllOpNames();
  return std::any_of(all.begin(), all.end(), [&](const c10::OperatorName& each) { return each.name == name; });
}

}  // namespace

const std::vector<OpDef>& own_definitions() {
  static const std::vector<OpDef> defs = op_list();
  return defs;
}

const OpDef& definition_of(std::string_view name) {
  static const OpDef unknown;
  if (const auto* def = find(name)) return *def;
  if (name.ends_with('_')) {
    if (const auto* def = find(name.substr(0, name.size() - 1))) return *def;
  }
  return unknown;
}

const OpDef& definition_of(const c10::OperatorHandle& op) {
  static const OpDef tagged = tagged_pointwise();
  const auto& known = definition_of(op.schema().name());
  return !known.is_known() && op.hasTag(at::Tag::pointwise) ? tagged : known;
}

bool is_of_user(const OpDef& def) {
  return !def.name.empty() && !def.name.starts_with(kAten) && !def.name.starts_with(kOwn);
}

c10::OperatorHandle operator_named(std::string_view name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(std::string(name).c_str(), overload);
}

void define_fused(const OpDef& def) {
  AUTOPAR_ASSERT(def.name.starts_with(kOwn), "a fused operator is one of the library's");
  auto& others = added();
  const std::unique_lock lock(others.mutex);
  auto name = def.name;
  others.defs.try_emplace(std::move(name), def);
}

std::string registered_by_users() {
  std::string names;
  auto& others = added();
  const std::shared_lock lock(others.mutex);
  for (const auto& [name, def] : others.defs) {
    if (is_of_user(def)) names += (names.empty() ? "" : ", ") + with_version(def);
  }
  return names;
}

std::vector<std::string> operators_of_users(const OpGraph& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.ops) {
    const auto& def = definition_of(node.op);
    if (is_of_user(def)) names.insert(with_version(def));
  }
  return {names.begin(), names.end()};
}

void close_registry() { added().is_closed = true; }

}  // namespace autopar::ops

namespace autopar {

void register_op(OpDef def) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument("ap::register_op(\"" + def.name + "\"): " + why);
  };
  const auto colons = def.name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 == def.name.size())
    refuse("the name has no namespace; give it as TORCH_LIBRARY registers it, \"mylib::scale_rows\"");
  if (def.name.starts_with(ops::kAten) || def.name.starts_with(ops::kOwn))
    refuse("operators of libtorch and of autopar have their definitions; register your own under another namespace");
  if (!ops::is_registered(def.name))
    refuse("libtorch knows no operator of that name; link the TORCH_LIBRARY that defines it, and call this after it");
  if (!def.over_samples)
    refuse(
        "over_samples is empty; say what it does to samples, for example ap::ops::samples_first(1), or leave the "
        "operator unregistered: then one slice has the whole batch");
  if (def.gradient_place || def.exchanged || def.makes_class_loss)
    refuse("gradient_place, exchanged and makes_class_loss are of the library's operators alone; leave them out");
  if (def.version < 1) refuse("its version is " + std::to_string(def.version) + "; count from 1");
  auto& others = ops::added();
  const std::unique_lock lock(others.mutex);
  if (others.defs.contains(def.name))
    refuse("it has a definition already, of version " + std::to_string(others.defs.find(def.name)->second.version) +
           "; register an operator once in a process");
  if (others.is_closed)
    refuse("a model has been captured already; register operators before the first call of a model");
  auto name = def.name;
  others.defs.emplace(std::move(name), std::move(def));
}

}  // namespace autopar
