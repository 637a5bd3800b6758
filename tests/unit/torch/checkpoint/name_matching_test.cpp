#include "torch/checkpoint/name_matching.hpp"

#include <catch_shim.hpp>
#include <says.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "name_oracle.hpp"

// Which tensor of a file is loaded into which of the model, by names alone.
namespace name_matching_test {

using namespace autopar;
using checkpoint::FileNames;
using checkpoint::match_names;
using checkpoint::ModelNames;
using Names = std::vector<std::string>;

TensorEntry vector_of(const std::string& name, std::int64_t size = 3) { return {name, DType::kF32, {size}}; }

/// Parameters with one state, "moment", if `states`.
ModelNames model_of(const std::vector<Names>& tensors, bool states = false) {
  ModelNames model{tensors};
  for (std::size_t i = 0; i < tensors.size(); ++i) model.items.push_back({i, "", vector_of(tensors[i].front())});
  for (std::size_t i = 0; states && i < tensors.size(); ++i)
    model.items.push_back({i, "moment", vector_of("optimizer." + tensors[i].front() + ".moment")});
  return model;
}

FileNames file_of(const Names& model, const Names& state = {}) {
  FileNames file;
  for (const auto& name : model) file.model.push_back({name, vector_of("disk:" + name)});
  for (const auto& name : state) file.state.push_back({name, vector_of("disk:" + name)});
  return file;
}

Names match(const std::vector<Names>& model, const Names& file, const LoadOptions& options = {}) {
  return match_names(model_of(model), file_of(file), options).names;
}

void refused(const std::string& part, const std::vector<Names>& model, const Names& file,
             const LoadOptions& options = {}) {
  CAPTURE(part);
  CHECK_THAT(said_by([&] { static_cast<void>(match(model, file, options)); }),
             Catch::Matchers::ContainsSubstring(part));
}

constexpr auto kAllowed = Missing::kAllowed;

TEST_CASE("match_names: equal names by default, all of them") {
  CHECK(match({{"a"}, {"b"}}, {"b", "a"}) == Names{"disk:a", "disk:b"});
  refused("it lacks 'b'; to leave what it lacks as it is, pass {.missing", {{"a"}, {"b"}}, {"a"});
  refused("the model has no 'disk:c'; to load the rest, pass {.unexpected", {{"a"}}, {"a", "c"});
}

TEST_CASE("match_names: longest prefix is renamed, once") {
  const LoadOptions options{.rename = {{"a.", "b."}, {"a.x.", "c."}, {"b.", "a."}}};
  CHECK(match({{"b.w"}, {"c.w"}, {"a.w"}}, {"a.w", "a.x.w", "b.w"}, options) ==
        Names{"disk:a.w", "disk:a.x.w", "disk:b.w"});
  CHECK(match({{"x.a"}}, {"a"}, {.rename = {{"", "x."}}}) == Names{"disk:a"});
  CHECK(match({{"a"}}, {"x.a"}, {.rename = {{"x.", ""}}}) == Names{"disk:x.a"});
  refused("'disk:a.w' and 'disk:b.w' would both become 'b.w'", {{"b.w"}}, {"a.w", "b.w"}, {.rename = {{"a.", "b."}}});
  refused(".rename has 'a.' twice", {{"b.w"}}, {"a.w"}, {.rename = {{"a.", "b."}, {"a.", "c."}}});
  refused("the model has no 'disk:a.w', renamed 'c.w'", {{"b.w"}}, {"b.w", "a.w"}, {.rename = {{"a.", "c."}}});
}

TEST_CASE("match_names: a pattern that hits nothing is refused") {
  refused(".rename = {{'bakbone.', 'b.'}} renames nothing", {{"a"}}, {"a"}, {.rename = {{"bakbone.", "b."}}});
  refused(".rename = {{'a', 'b'}} renames nothing", {{"c.w"}}, {"a.w"}, {.rename = {{"a", "b"}, {"a.", "c."}}});
  refused(".skip = {'haed.'} skips nothing", {{"a"}, {"head.w"}}, {"a", "head.w"}, {.skip = {"haed."}});
  refused("an empty prefix", {{"a"}}, {"a"}, {.skip = {""}});
}

TEST_CASE("match_names: what is skipped is neither missing nor unexpected") {
  const auto matches = match_names(model_of({{"head.w"}, {"a"}}), file_of({"old.w", "a", "head.v"}),
                                   {.rename = {{"old.", "head."}}, .skip = {"head."}});
  CHECK(matches.names == Names{"", "disk:a"});
  CHECK(matches.report.loaded == Names{"a"});
  CHECK(matches.report.skipped == Names{"head.w", "head.v"});
  CHECK(matches.report.missing.empty());
  CHECK(matches.report.unexpected.empty());
  CHECK(match({{"head.w"}}, {}, {.skip = {"head."}}) == Names{""});
}

TEST_CASE("match_names: other sizes or types are skipped, or refused") {
  for (const auto& entry : {vector_of("w", 4), TensorEntry{"w", DType::kF64, {3}}, TensorEntry{"w", DType::kF32, {}}}) {
    const FileNames file{{{"w", entry}}};
    const LoadOptions lax{.missing = kAllowed, .unexpected = kAllowed};
    const auto message = said_by([&] { static_cast<void>(match_names(model_of({{"w"}}), file, lax)); });
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring("the model has f32 with sizes [3]; to leave"));
    CHECK(match_names(model_of({{"w"}}), file, {.skip = {"w"}}).names == Names{""});
  }
}

TEST_CASE("match_names: a tied tensor is found under each of its names") {
  const std::vector<Names> model{{"table", "decoder"}, {"a"}};
  CHECK(match(model, {"decoder", "a"}) == Names{"disk:decoder", "disk:a"});
  CHECK(match_names(model_of(model), file_of({"decoder", "a"}), {}).report.loaded == Names{"table", "a"});
  CHECK(match(model, {"decoder", "a"}, {.skip = {"table"}}) == Names{"", "disk:a"});
  CHECK(match(model, {"table", "a"}, {.skip = {"decoder"}}) == Names{"", "disk:a"});
  refused("'disk:table' and 'disk:decoder' would both become 'table'", model, {"table", "decoder", "a"});
}

TEST_CASE("match_names: state comes where its parameter does") {
  const auto model = model_of({{"n.a"}, {"b"}, {"c"}}, true);
  const auto from = [&](const Names& tensors, const Names& states, const LoadOptions& options) {
    return match_names(model, file_of(tensors, states), options).names;
  };
  const LoadOptions options{.missing = kAllowed, .rename = {{"o.", "n."}}, .skip = {"b"}};
  CHECK(from({"o.a", "b"}, {"o.a.moment", "b.moment"}, options) ==
        Names{"disk:o.a", "", "", "disk:o.a.moment", "", ""});
  CHECK(from({"o.a", "b"}, {}, options) == Names{"disk:o.a", "", "", "", "", ""});  // not stepped
  const auto said = [&](const Names& tensors, const Names& states, const LoadOptions& how) {
    return said_by([&] { static_cast<void>(from(tensors, states, how)); });
  };
  const LoadOptions lax{.missing = kAllowed};
  CHECK_THAT(said({"b"}, {"b.other"}, lax), Catch::Matchers::ContainsSubstring("it lacks 'optimizer.b.moment'"));
  CHECK_THAT(said({"b"}, {"b.moment", "b.other"}, lax),
             Catch::Matchers::ContainsSubstring("the model has no 'disk:b.other'"));
  CHECK_THAT(said({"b"}, {"b.moment", "c.moment"}, lax),
             Catch::Matchers::ContainsSubstring("the model has no 'disk:c.moment'"));
  CHECK_THAT(said({"b", "d"}, {"d.moment"}, lax), Catch::Matchers::ContainsSubstring("the model has no 'disk:d'"));
  const auto matches =
      match_names(model, file_of({"b", "d"}, {"d.moment"}), {.missing = kAllowed, .unexpected = kAllowed});
  CHECK(matches.report.unexpected == Names{"d"});
  CHECK(matches.report.missing == Names{"n.a", "c"});
}

TEST_CASE("match_names: random names and rules, as a slow reading of them") {
  std::mt19937 random(50);
  std::map<std::string, int> seen;
  for (int round = 0; round < 20000; ++round) {
    const auto load = name_oracle::random_case(random);
    const auto want = name_oracle::answer(load);
    std::vector<Names> model;
    for (const auto& name : load.model) model.push_back({name});
    checkpoint::NameMatches got;
    const auto said = said_by([&] { got = match_names(model_of(model), file_of(load.file), load.options); });
    CAPTURE(round, said, load.model, load.file, load.options.rename, load.options.skip);
    if (!want.faults.empty()) {
      const auto fault =
          std::ranges::find_if(want.faults, [&](const auto& part) { return said.find(part) != std::string::npos; });
      REQUIRE(fault != want.faults.end());
      ++seen[*fault];
      continue;
    }
    REQUIRE(said.empty());
    ++seen["loaded"];
    Names loaded;
    for (std::size_t i = 0; i < load.model.size(); ++i) {
      const auto source = want.source.find(load.model[i]);
      REQUIRE(got.names[i] == (source == want.source.end() ? "" : "disk:" + source->second));
      if (source != want.source.end()) loaded.push_back(load.model[i]);
    }
    REQUIRE(got.report.loaded == loaded);
    REQUIRE(got.report.missing == want.missing);
    REQUIRE(got.report.unexpected == want.unexpected);
    REQUIRE(got.report.skipped == want.skipped);
    REQUIRE(checkpoint::count_matches(model_of(model), file_of(load.file), load.options) >= loaded.size());
  }
  CHECK(seen.size() == 6);
  for (const auto& [what, times] : seen) {
    CAPTURE(what);
    CHECK(times > 200);
  }
}

}  // namespace name_matching_test
