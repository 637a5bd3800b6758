#include "element_cover.hpp"

#include <algorithm>
#include <cstddef>
#include <map>

namespace autopar::detail {

namespace {

/// Elements of a tensor, seen as a matrix with a row per block.
struct Box {
  Interval rows, columns;
};

std::int64_t total(const std::vector<Interval>& ranges) {
  std::int64_t sum = 0;
  for (const auto& range : ranges) sum += range.size();
  return sum;
}

bool ascend(const std::vector<Interval>& ranges, std::int64_t most) {
  std::int64_t before = 0;
  for (const auto& range : ranges) {
    if (range.begin < before || range.end < range.begin || range.end > most) return false;
    before = range.end;
  }
  return true;
}

/// Of the same ranges of all rows, concatenated, a part: the rest of its first row, whole rows, the start of its last.
void add_boxes(const std::vector<Interval>& ranges, Interval part, std::vector<Box>& boxes) {
  if (part.empty()) return;
  const auto length = total(ranges);
  const auto first = part.begin / length, last = (part.end - 1) / length;
  const auto add = [&](Interval rows, Interval of_row) {
    if (rows.empty()) return;
    std::int64_t at = 0;
    for (const auto& range : ranges) {
      const auto cut = intersect({at, at + range.size()}, of_row);
      if (!cut.empty()) boxes.push_back({rows, {range.begin + cut.begin - at, range.begin + cut.end - at}});
      at += range.size();
    }
  };
  const auto from = part.begin - first * length, to = part.end - last * length;
  if (first == last) return add({first, first + 1}, {from, to});
  add({first, first + 1}, {from, length});
  add({first + 1, last}, {0, length});
  add({last, last + 1}, {0, to});
}

/// Flat ranges of a tensor with rows of this length.
void add_flat(const ElementSlices& slices, std::int64_t length, std::vector<Box>& boxes) {
  std::int64_t at = 0;
  for (const auto& range : slices.ranges) {
    const auto cut = intersect({at, at + range.size()}, slices.part);
    add_boxes({{0, length}}, {range.begin + cut.begin - at, range.begin + cut.end - at}, boxes);
    at += range.size();
  }
}

/// Goes down the rows with the columns that are taken in each.
std::string overlap(const std::vector<Box>& boxes, std::int64_t length) {
  std::vector<const Box*> begins, ends;
  for (const auto& box : boxes) begins.push_back(&box);
  ends = begins;
  std::ranges::sort(begins, {}, [](const Box* box) { return box->rows.begin; });
  std::ranges::sort(ends, {}, [](const Box* box) { return box->rows.end; });
  std::map<std::int64_t, std::int64_t> taken;  // columns: begin, end
  auto ended = ends.begin();
  for (const auto* box : begins) {
    for (; (*ended)->rows.end <= box->rows.begin; ++ended) taken.erase((*ended)->columns.begin);
    const auto after = taken.lower_bound(box->columns.begin);
    const bool meets_next = after != taken.end() && after->first < box->columns.end;
    const bool meets_previous = after != taken.begin() && std::prev(after)->second > box->columns.begin;
    if (meets_next || meets_previous) {
      const auto column = meets_previous ? box->columns.begin : after->first;
      return "element " + std::to_string(box->rows.begin * length + column) + " is in two parts";
    }
    taken.emplace(box->columns.begin, box->columns.end);
  }
  return {};
}

std::string part_fault(std::int64_t elements, std::int64_t most_blocks, const ElementSlices& slices) {
  if (elements == 0) {
    const bool is_empty = slices.blocks >= 0 && slices.part == Interval{} && ascend(slices.ranges, INT64_MAX);
    return is_empty ? "" : "the tensor has no elements, the part has";
  }
  if (slices.blocks < 1 || elements % slices.blocks != 0)
    return std::to_string(elements) + " elements are not " + std::to_string(slices.blocks) + " equal blocks";
  if (slices.blocks != 1 && slices.blocks != most_blocks) {
    return "has " + std::to_string(slices.blocks) + " blocks, another part has " + std::to_string(most_blocks);
  }
  const auto length = elements / slices.blocks;
  if (!ascend(slices.ranges, length)) return "its ranges do not ascend within 0 to " + std::to_string(length);
  const auto selected = slices.blocks * total(slices.ranges);
  const auto& part = slices.part;
  if (part.begin < 0 || part.end < part.begin || part.end > selected) {
    return "[" + std::to_string(part.begin) + ", " + std::to_string(part.end) + ") is no part of the " +
           std::to_string(selected) + " elements of its ranges";
  }
  return {};
}

}  // namespace

std::string cover_fault(std::int64_t elements, const std::vector<const ElementSlices*>& parts) {
  std::int64_t blocks = 1;
  for (const auto* part : parts) blocks = std::max(blocks, part->blocks);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (const auto fault = part_fault(elements, blocks, *parts[i]); !fault.empty())
      return "part " + std::to_string(i) + ": " + fault;
  }
  if (elements == 0) return {};
  const auto length = elements / blocks;
  std::vector<Box> boxes;
  for (const auto* part : parts) {
    if (part->blocks == blocks)
      add_boxes(part->ranges, part->part, boxes);
    else
      add_flat(*part, length, boxes);
  }
  if (const auto fault = overlap(boxes, length); !fault.empty()) return fault;
  std::int64_t covered = 0;  // boxes are disjoint: no more than there are elements
  for (const auto& box : boxes) covered += box.rows.size() * box.columns.size();
  if (covered == elements) return {};
  return "its parts have " + std::to_string(covered) + " of its " + std::to_string(elements) + " elements";
}

}  // namespace autopar::detail
