#include <autopar/io/cost_file.hpp>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "json_reader.hpp"

namespace autopar {

namespace {

using detail::Json;
using detail::JsonReader;
using detail::OrderedJson;

constexpr std::int64_t kCostFormat = 13;
constexpr std::int64_t kMaxRanks = 1 << 24;
constexpr double kMaxCost = 1e18;  // seconds or bytes

bool is_part(const Json& number) {
  return number.is_number() && number.get<double>() >= 0 && number.get<double>() <= 1;
}

OrderedJson curve_json(const CostCurve& curve) {
  OrderedJson points = OrderedJson::array();
  for (const MeasuredPoint& point : curve.points()) points.push_back({point.x, point.y});
  return points;
}

CostCurve curve_of(JsonReader& reader, const char* key, const Json& pairs) {
  std::vector<MeasuredPoint> points;
  if (!pairs.is_array()) reader.fail(key, "expected pairs [size, seconds]");
  for (const auto& pair : pairs) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number();
    if (!is_pair) reader.fail(key, "expected pairs [size, seconds]");
    points.push_back({pair[0].get<double>(), pair[1].get<double>()});
    if (!(points.back().x <= kMaxCost && points.back().y <= kMaxCost)) reader.fail(key, "expected finite numbers");
  }
  try {
    CostCurve curve(points);
    if (curve.points() != points)
      reader.fail(key, "a larger size takes less time, or more time for each sample or byte");
    return curve;
  } catch (const InvalidArgument& error) {
    reader.fail(key, error.what());
  }
}

CostCurve read_curve(JsonReader& reader, const char* key) { return curve_of(reader, key, reader.list(key)); }

/// Of what takes no time, or was not measured: no pairs.
CostCurve read_optional(JsonReader& reader, const char* key, const Json& pairs) {
  return pairs.empty() ? CostCurve() : curve_of(reader, key, pairs);
}

OrderedJson times_json(const AtomTimes& times) { return {curve_json(times.forward), curve_json(times.backward)}; }

/// Of an atom without a backward, that takes no time.
AtomTimes read_times(JsonReader& reader, const char* key) {
  const auto& curves = reader.list(key);
  if (curves.size() != 2) reader.fail(key, "expected [forward, backward]");
  const auto part = [&](const Json& pairs) { return read_optional(reader, key, pairs); };
  return {part(curves[0]), part(curves[1])};
}

/// @param expected  names both
std::pair<double, double> read_parts(JsonReader& reader, const char* key, const char* expected) {
  const auto& parts = reader.list(key);
  if (parts.size() != 2 || !is_part(parts[0]) || !is_part(parts[1]))
    reader.fail(key, std::string("expected ") + expected + ", each from 0 to 1");
  return {parts[0].get<double>(), parts[1].get<double>()};
}

Contention read_contention(JsonReader& reader, const char* key) {
  const auto [of_computing, of_exchange] = read_parts(reader, key, "[of computing, of exchange]");
  return {of_computing, of_exchange};
}

std::optional<Undivided> read_undivided(JsonReader& reader, const char* key) {
  if (!reader.has(key)) return std::nullopt;
  const auto [forward, backward] = read_parts(reader, key, "[forward, backward]");
  return Undivided{forward, backward};
}

SampleRange read_range(JsonReader& reader) {
  const auto& ends = reader.list("samples");
  if (ends.size() != 2 || !ends[0].is_number_integer() || !ends[1].is_number_integer())
    reader.fail("samples", "expected [least, most]");
  const SampleRange range{ends[0].get<std::int64_t>(), ends[1].get<std::int64_t>()};
  if (range.least < 0 || range.most < range.least) reader.fail("samples", "expected 0 <= least <= most");
  return range;
}

/// FNV-1a over the text of everything but the checksum itself, with members sorted by name.
std::string cost_checksum(Json root) {
  root.erase("checksum");
  std::uint64_t state = 0xcbf29ce484222325ULL;
  for (const char c : root.dump()) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return detail::hash_text(state);
}

void require_equal(JsonReader& reader, const char* key, const std::string& expected) {
  const auto found = reader.text(key);
  if (found == expected) return;
  reader.fail(key, "the costs were measured with '" + found + "', this is '" + expected + "'; measure again");
}

void read_links(JsonReader links, MeasuredLinks& out) {
  const auto taken = [](JsonReader& row) { row.fail("class", "is there twice"); };
  const auto class_of = [](JsonReader& row) { return static_cast<LinkClass>(row.whole("class", 1, kMaxRanks)); };
  links.each("messages", [&](JsonReader& row) {
    const auto link = class_of(row);
    if (!out.messages.emplace(link, read_curve(row, "seconds")).second) taken(row);
  });
  links.each("all_reduces", [&](JsonReader& row) {
    const auto link = class_of(row);
    const auto ranks = static_cast<int>(row.whole("ranks", 2, kMaxRanks));
    if (!out.all_reduces.emplace(std::pair(link, ranks), read_curve(row, "seconds")).second) taken(row);
  });
  links.each("contention", [&](JsonReader& row) {
    const auto link = class_of(row);
    const auto ranks = static_cast<int>(row.whole("ranks", 2, kMaxRanks));
    if (!out.contention.emplace(std::pair(link, ranks), read_contention(row, "delays")).second) taken(row);
  });
  links.each("message_delays", [&](JsonReader& row) {
    const auto link = class_of(row);
    const double delay = row.number("delay", 0, 1);
    if (!out.message_delays.emplace(link, delay).second) taken(row);
  });
  links.finish();
}

void read_updates(JsonReader& reader, const char* key, std::map<int, CostCurve>& out) {
  constexpr std::int64_t kMostState = 1000;
  reader.each(key, [&](JsonReader& row) {
    const auto factor = static_cast<int>(row.whole("state_factor", 0, kMostState));
    if (!out.emplace(factor, read_curve(row, "seconds")).second) row.fail("state_factor", "is there twice");
  });
}

OrderedJson updates_json(const std::map<int, CostCurve>& updates) {
  OrderedJson rows = OrderedJson::array();
  for (const auto& [factor, curve] : updates)
    rows.push_back({{"state_factor", factor}, {"seconds", curve_json(curve)}});
  return rows;
}

}  // namespace

std::string to_json(const MeasuredCosts& costs, const CostOrigin& origin) {
  OrderedJson atoms = OrderedJson::array(), messages = OrderedJson::array(), all_reduces = OrderedJson::array();
  for (const auto& [structure, atom] : costs.atoms) {
    OrderedJson row{{"structure", detail::hash_text(structure)},
                    {"in_step", times_json({atom.forward, atom.backward})},
                    {"alone", times_json(atom.alone)},
                    {"samples", {atom.samples.least, atom.samples.most}}};
    if (atom.undivided) row["undivided"] = {atom.undivided->forward, atom.undivided->backward};
    atoms.push_back(std::move(row));
  }
  for (const auto& [link, curve] : costs.links.messages) {
    messages.push_back({{"class", link}, {"seconds", curve_json(curve)}});
  }
  for (const auto& [group, curve] : costs.links.all_reduces) {
    all_reduces.push_back({{"class", group.first}, {"ranks", group.second}, {"seconds", curve_json(curve)}});
  }
  OrderedJson contention = OrderedJson::array();
  for (const auto& [group, measured] : costs.links.contention) {
    contention.push_back(
        {{"class", group.first}, {"ranks", group.second}, {"delays", {measured.of_computing, measured.of_exchange}}});
  }
  OrderedJson message_delays = OrderedJson::array();
  for (const auto& [link, delay] : costs.links.message_delays) {
    message_delays.push_back({{"class", link}, {"delay", delay}});
  }
  OrderedJson links{{"messages", std::move(messages)},
                    {"all_reduces", std::move(all_reduces)},
                    {"contention", std::move(contention)},
                    {"message_delays", std::move(message_delays)}};
  OrderedJson root{{"format", kCostMark},
                   {"version", kCostFormat},
                   {"device", origin.device},
                   {"libtorch", origin.libtorch},
                   {"autopar", origin.autopar},
                   {"atoms", std::move(atoms)},
                   {"links", std::move(links)},
                   {"updates", updates_json(costs.updates)},
                   {"joint_updates", updates_json(costs.joint_updates)},
                   {"host", {{"copy", curve_json(costs.host.copy)}, {"updates", updates_json(costs.host.updates)}}}};
  root["checksum"] = cost_checksum(Json(root));
  return root.dump() + "\n";
}

namespace {

/// @param expected  nullptr = any
CostFile parse(std::string_view json, const std::string& file, const CostOrigin* expected) {
  const Json root = detail::parse_json(json, file);
  JsonReader reader(root, file, "");
  reader.format(kCostMark);
  const auto version = reader.whole("version", 0, std::numeric_limits<std::int32_t>::max());
  if (version != kCostFormat) {
    reader.fail("version", "the costs have format " + std::to_string(version) + ", this autopar reads " +
                               std::to_string(kCostFormat) + "; measure again");
  }
  const CostOrigin origin{reader.text("device"), reader.text("libtorch"), reader.text("autopar")};
  if (expected) {
    require_equal(reader, "device", expected->device);
    require_equal(reader, "libtorch", expected->libtorch);
    require_equal(reader, "autopar", expected->autopar);
  }
  if (reader.text("checksum") != cost_checksum(root)) reader.fail("checksum", "the costs were altered; measure again");

  MeasuredCosts costs;
  reader.each("atoms", [&](JsonReader& row) {
    const auto structure = row.hash("structure");
    const auto [forward, backward] = read_times(row, "in_step");
    const MeasuredAtom atom{forward, backward, read_times(row, "alone"), read_range(row),
                            read_undivided(row, "undivided")};
    if (!costs.atoms.emplace(structure, atom).second) row.fail("structure", "is there twice");
  });
  read_links(reader.object("links"), costs.links);
  read_updates(reader, "updates", costs.updates);
  read_updates(reader, "joint_updates", costs.joint_updates);
  auto host = reader.object("host");
  costs.host.copy = read_optional(host, "copy", host.list("copy"));
  read_updates(host, "updates", costs.host.updates);
  host.finish();
  reader.finish();
  return {origin, std::move(costs)};
}

}  // namespace

MeasuredCosts parse_costs(std::string_view json, const std::string& file, const CostOrigin& expected) {
  return parse(json, file, &expected).costs;
}
CostFile parse_costs(std::string_view json, const std::string& file) { return parse(json, file, nullptr); }
CostFile read_costs(const std::filesystem::path& path) { return parse_costs(read_text_file(path), path.string()); }

MeasuredCosts read_costs(const std::filesystem::path& path, const CostOrigin& expected) {
  return parse_costs(read_text_file(path), path.string(), expected);
}

void write_costs(const std::filesystem::path& path, const MeasuredCosts& costs, const CostOrigin& origin,
                 Overwrite overwrite) {
  write_marked_file(path, to_json(costs, origin), kCostMark, overwrite);
}

}  // namespace autopar
