#include <autopar/capture/module_paths.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace autopar {

namespace {

/// The names of a path: "layers.3" is {"layers", "3"}.
using Path = std::vector<std::string>;

Path split(std::string_view text) {
  Path path;
  while (!text.empty()) {
    const auto end = std::min(text.find('.'), text.size());
    path.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return path;
}

std::string join(const Path& path) {
  std::string text;
  for (const auto& name : path) text += (text.empty() ? "" : ".") + name;
  return text;
}

Path owner_of(std::string_view leaf) {
  auto path = split(leaf);
  if (!path.empty()) path.pop_back();
  return path;
}

Path common(const Path& a, const Path& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return {a.begin(), end};
}

std::optional<int> number_in(const Path& path, std::size_t depth) {
  if (depth >= path.size()) return std::nullopt;
  const auto& name = path[depth];
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

/// One pass over the operators for those that read leaves, and one for the rest.
class Modules {
 public:
  explicit Modules(const OpGraph& graph) : graph_(graph), from_(graph.values.size()), paths_(graph.ops.size()) {
    for (const auto* leaves : {&graph.parameters, &graph.buffers}) {
      for (const auto& [name, value] : *leaves) names_[value.value()].push_back(owner_of(name));
    }
  }

  std::vector<std::string> find() && {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) read_leaves(i);
    std::size_t first = 0;
    for (std::size_t i = 0; i <= graph_.ops.size(); ++i) {
      if (i < graph_.ops.size() && !paths_[i]) continue;
      fill(first, i);
      first = i + 1;
    }
    std::vector<std::string> out;
    for (const auto& path : paths_) out.push_back(join(*path));
    return out;
  }

 private:
  /// What a value that comes from leaves alone was made of.
  struct FromLeaves {
    std::vector<std::int32_t> leaves;
    std::vector<std::size_t> makers;
  };

  void read_leaves(std::size_t i) {
    FromLeaves read;
    bool reads_others = false;
    for_each_input(graph_.ops[i], [&](ValueId value) {
      if (names_.contains(value.value())) {
        read.leaves.push_back(value.value());
      } else if (const auto& made = from_[value.index()]) {
        read.leaves.insert(read.leaves.end(), made->leaves.begin(), made->leaves.end());
        read.makers.insert(read.makers.end(), made->makers.begin(), made->makers.end());
      } else {
        reads_others = true;
      }
    });
    if (read.leaves.empty()) return;
    if (!reads_others) {
      paths_[i] = owner(read.leaves, /*is_use=*/false);  // of a result that nobody reads with other values
      read.makers.push_back(i);
      for_each_output(graph_.ops[i], [&](ValueId value) { from_[value.index()] = read; });
      return;
    }
    paths_[i] = owner(read.leaves, /*is_use=*/true);
    for (const auto maker : read.makers) {
      if (placed_.insert(maker).second) paths_[maker] = paths_[i];
    }
  }

  /// The innermost module that owns all of these.
  Path owner(const std::vector<std::int32_t>& leaves, bool is_use) {
    std::optional<Path> path;
    for (const auto leaf : std::set<std::int32_t>(leaves.begin(), leaves.end())) {
      const auto& names = names_.at(leaf);
      auto& uses = uses_[leaf];
      const auto& name = names[std::min(uses, names.size() - 1)];
      if (is_use) ++uses;
      path = path ? common(*path, name) : name;
    }
    return *path;
  }

  /// The operators from `first` up to `after`, which come after one that reads leaves and before the next such one.
  void fill(std::size_t first, std::size_t after) {
    if (first == after) return;
    const auto last = first > 0 ? *paths_[first - 1] : Path();
    const auto next = after < paths_.size() ? *paths_[after] : Path();
    const auto around = common(last, next);
    const auto depth = around.size();
    const auto from = number_in(last, depth), to = number_in(next, depth);
    const bool is_in_block = last.size() > depth + 1;
    if (from && to && *to == *from + 1 && is_in_block) {
      list_ = around;
      end_ = {first, after};
      return place(first, after, {last.begin(), last.begin() + static_cast<std::ptrdiff_t>(depth) + 1});
    }
    const auto kept = end_of_last_block(last, first, after);
    if (kept > first) place(first, kept, {last.begin(), last.begin() + static_cast<std::ptrdiff_t>(list_.size()) + 1});
    auto path = around;
    if (from && to && *to == *from + 2) path.push_back(std::to_string(*from + 1));
    place(kept, after, path);
  }

  void place(std::size_t first, std::size_t after, const Path& path) {
    std::fill(paths_.begin() + static_cast<std::ptrdiff_t>(first), paths_.begin() + static_cast<std::ptrdiff_t>(after),
              path);
  }

  /// After the last block of a list, as many operators end it as ended the block before. @return after them
  [[nodiscard]] std::size_t end_of_last_block(const Path& last, std::size_t first, std::size_t after) const {
    const bool is_in_list = end_.second > 0 && last.size() > list_.size() + 1 && common(last, list_) == list_;
    if (!is_in_list || !number_in(last, list_.size())) return first;
    auto i = first;
    for (auto k = end_.first; k < end_.second && i < after && graph_.ops[k].op == graph_.ops[i].op; ++k) ++i;
    return i;
  }

  const OpGraph& graph_;
  std::map<std::int32_t, std::vector<Path>> names_;  ///< owners of a parameter or buffer, by each of its names
  std::map<std::int32_t, std::size_t> uses_;
  std::vector<std::optional<FromLeaves>> from_;
  std::vector<std::optional<Path>> paths_;
  std::set<std::size_t> placed_;               ///< makers that a reader has placed
  Path list_;                                  ///< of the latest block that another one followed
  std::pair<std::size_t, std::size_t> end_{};  ///< the operators that ended it
};

}  // namespace

std::vector<std::string> module_paths(const OpGraph& graph) { return Modules(graph).find(); }

}  // namespace autopar
