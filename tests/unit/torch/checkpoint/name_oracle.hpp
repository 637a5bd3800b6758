#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <autopar/torch/load_options.hpp>

/// The rules of LoadOptions once more, slowly and without state: what a random load must do. And random loads.
namespace name_oracle {

using autopar::LoadOptions;
using autopar::Missing;

struct Case {
  std::vector<std::string> model, file;
  LoadOptions options;
};

struct Answer {
  std::vector<std::string> faults;            ///< parts of messages, one of which must be said; empty: none
  std::map<std::string, std::string> source;  ///< by name of the model, the name in the file
  std::vector<std::string> missing, unexpected, skipped;
};

inline bool begins(const std::string& name, const std::string& prefix) { return name.rfind(prefix, 0) == 0; }

/// The rule that renames `name`: its index, if there is one.
inline std::optional<std::size_t> rule_of(const std::string& name, const LoadOptions& options) {
  for (std::size_t length = name.size() + 1; length-- > 0;) {
    for (std::size_t i = 0; i < options.rename.size(); ++i) {
      if (options.rename[i].first == name.substr(0, length)) return i;
    }
  }
  return std::nullopt;
}

inline std::string renamed(const std::string& name, const LoadOptions& options) {
  const auto rule = rule_of(name, options);
  if (!rule) return name;
  return options.rename[*rule].second + name.substr(options.rename[*rule].first.size());
}

inline Answer answer(const Case& load) {
  Answer out;
  const auto is_skipped = [&](const std::string& name) {
    return std::ranges::any_of(load.options.skip, [&](const auto& prefix) { return begins(name, prefix); });
  };
  const auto in_model = [&](const std::string& name) { return std::ranges::count(load.model, name) != 0; };
  for (std::size_t i = 0; i < load.options.rename.size(); ++i) {
    const bool hits =
        std::ranges::any_of(load.file, [&](const auto& name) { return rule_of(name, load.options) == i; });
    if (!hits) out.faults.push_back("renames nothing");
  }
  for (const auto& prefix : load.options.skip) {
    const auto hit = [&](const std::string& name) { return begins(name, prefix); };
    const auto hit_renamed = [&](const std::string& name) { return begins(renamed(name, load.options), prefix); };
    if (std::ranges::none_of(load.model, hit) && std::ranges::none_of(load.file, hit_renamed))
      out.faults.push_back("skips nothing");
  }
  for (const auto& name : load.model) {
    if (is_skipped(name)) {
      out.skipped.push_back(name);
      continue;
    }
    std::vector<std::string> sources;
    for (const auto& source : load.file) {
      if (renamed(source, load.options) == name) sources.push_back(source);
    }
    if (sources.size() > 1) out.faults.push_back("would both become");
    if (sources.empty()) out.missing.push_back(name);
    if (!sources.empty()) out.source[name] = sources.front();
  }
  for (const auto& source : load.file) {
    const auto name = renamed(source, load.options);
    if (in_model(name)) continue;
    if (is_skipped(name))
      out.skipped.push_back(name);
    else
      out.unexpected.push_back(source);
  }
  if (!out.missing.empty() && load.options.missing == Missing::kRefused) out.faults.push_back("it lacks");
  if (!out.unexpected.empty() && load.options.unexpected == Missing::kRefused) out.faults.push_back("the model has no");
  return out;
}

/// Few segments, so that prefixes meet, and often overlap.
inline Case random_case(std::mt19937& random) {
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  const auto name = [&] {
    static const std::vector<std::string> kParts{"a", "ab", "b", "head"};
    std::string text;
    for (int i = 1 + draw(3); i > 0; --i) text += kParts[static_cast<std::size_t>(draw(4))] + (i > 1 ? "." : "");
    return text;
  };
  const auto names = [&](int most) {
    std::set<std::string> some;
    for (int i = 1 + draw(most); i > 0; --i) some.insert(name());
    return std::vector<std::string>(some.begin(), some.end());
  };
  const auto prefix = [&](const std::vector<std::string>& of) {
    const auto text = draw(8) == 0 ? name() : of[static_cast<std::size_t>(draw(static_cast<int>(of.size())))];
    return text.substr(0, 1 + static_cast<std::size_t>(draw(static_cast<int>(text.size()))));
  };
  Case load{names(6), names(6), {}};
  if (draw(2) == 0) load.file = load.model;
  load.options.missing = draw(3) == 0 ? Missing::kRefused : Missing::kAllowed;
  load.options.unexpected = draw(3) == 0 ? Missing::kRefused : Missing::kAllowed;
  std::set<std::string> froms;
  for (int i = draw(3); i > 0; --i) {
    const auto from = draw(10) == 0 ? "" : prefix(load.file);
    if (froms.insert(from).second) load.options.rename.emplace_back(from, draw(4) == 0 ? "" : prefix(load.model));
  }
  for (int i = draw(3); i > 0; --i) load.options.skip.push_back(prefix(load.model));
  return load;
}

}  // namespace name_oracle
