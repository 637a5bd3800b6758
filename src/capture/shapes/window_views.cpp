#include "capture/shapes/window_views.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace autopar::shapes {
namespace {

/// A dim of the result that runs over a dim of the tensor, every `step`th element.
struct Run {
  std::size_t result_dim;
  std::int64_t size, step;
};

/// What becomes of one dim of the tensor.
struct Axis {
  std::size_t dim;
  std::int64_t first = 0;
  std::vector<Run> runs{};
};

constexpr auto kNoAxis = static_cast<std::size_t>(-1);

/// The axis whose stride goes into `stride`, the longest such. A batch may have one sample: what has one element is an
/// axis of one element with that stride, so that the views are the same for any size of a batch.
std::size_t axis_of(const std::vector<Axis>& axes, const at::Tensor& x, std::int64_t size, std::int64_t stride) {
  for (std::size_t a = 0; a < axes.size(); ++a) {
    const auto dim = static_cast<std::int64_t>(axes[a].dim);
    const auto own = x.stride(dim);
    if (size == 1 && x.size(dim) == 1 && own == stride && axes[a].runs.empty()) return a;
    if (size > 1 && x.size(dim) > 1 && own > 0 && own <= stride && stride % own == 0) return a;
  }
  return kNoAxis;
}

bool stays_inside(const Axis& axis, const at::Tensor& x) {
  auto last = axis.first;
  for (const auto& run : axis.runs) last += (run.size - 1) * run.step;
  return last < x.size(static_cast<std::int64_t>(axis.dim));
}

at::Tensor every(const at::Tensor& x, std::int64_t dim, std::int64_t first, std::int64_t size, std::int64_t step) {
  const auto end = first + (size - 1) * step + 1;
  return first == 0 && step == 1 && end == x.size(dim) ? x : x.slice(dim, first, end, step);
}

/// The axis taken apart; its second run becomes the last dim. @param dim  where the axis is now
at::Tensor along_axis(const at::Tensor& x, const Axis& axis, std::int64_t dim) {
  if (axis.runs.size() == 1) return every(x, dim, axis.first, axis.runs[0].size, axis.runs[0].step);
  const auto& windows = axis.runs[0];
  const auto& within = axis.runs[1];
  const auto reach = (within.size - 1) * within.step + 1;
  auto part = axis.first == 0 ? x : x.slice(dim, axis.first, x.size(dim));
  part = part.unfold(dim, reach, windows.step);
  part = every(part, dim, 0, windows.size, 1);
  return every(part, -1, 0, within.size, within.step);
}

}  // namespace

std::optional<at::Tensor> as_views(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                   std::int64_t offset) {
  std::vector<Axis> axes;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) == 0) return std::nullopt;
    axes.push_back({static_cast<std::size_t>(d)});
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [&](const Axis& a, const Axis& b) { return x.strides()[a.dim] > x.strides()[b.dim]; });
  for (auto& axis : axes) {
    const auto stride = x.strides()[axis.dim];
    if (stride > 0 && x.sizes()[axis.dim] > 1) {
      axis.first = offset / stride;
      offset %= stride;
    }
  }
  if (offset != 0) return std::nullopt;

  std::vector<std::int64_t> repeated;  // dims of the result that no axis runs along
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return std::nullopt;
    const auto axis = strides[d] == 0 ? kNoAxis : axis_of(axes, x, sizes[d], strides[d]);
    if (axis != kNoAxis) {
      axes[axis].runs.push_back({d, sizes[d], strides[d] / x.strides()[axes[axis].dim]});
    } else if (sizes[d] == 1 || strides[d] == 0) {
      repeated.push_back(static_cast<std::int64_t>(d));
    } else {
      return std::nullopt;
    }
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.dim < b.dim; });
  for (auto& axis : axes) {
    if (axis.runs.size() > 2 || !stays_inside(axis, x)) return std::nullopt;
    if (axis.runs.size() == 2 && axis.runs[0].step < axis.runs[1].step) std::swap(axis.runs[0], axis.runs[1]);
  }

  auto view = x;
  std::vector<std::size_t> front, back;  // dims of the result that the view's dims are
  for (const auto& axis : axes) {
    const auto dim = static_cast<std::int64_t>(front.size());
    if (axis.runs.empty()) {
      view = view.select(dim, axis.first);
      continue;
    }
    view = along_axis(view, axis, dim);
    front.push_back(axis.runs[0].result_dim);
    if (axis.runs.size() == 2) back.push_back(axis.runs[1].result_dim);
  }
  front.insert(front.end(), back.begin(), back.end());
  std::vector<std::int64_t> order(front.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return front[static_cast<std::size_t>(a)] < front[static_cast<std::size_t>(b)];
  });
  if (!std::is_sorted(front.begin(), front.end())) view = view.permute(order);
  for (const auto dim : repeated) view = view.unsqueeze(dim);
  return view.sizes() == sizes ? view : view.expand(sizes);
}

}  // namespace autopar::shapes
