#include <autopar/shard/collectives.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"
#include "shard/kept.hpp"
#include "shard/slice_of_sum.hpp"

namespace autopar {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a collective and its gradient need to know.
struct Move {
  Group group;
  int dim = 0;
  Split split{{0}};
  Placement gradient = Placement::replicate();
  const char* name = "";  ///< for messages
};

constexpr std::int64_t kWord = 16;  ///< bytes of a complex number in double precision, the longest element

/// Whether the tensor is made of whole words, each in one place.
bool is_in_words(const Tensor& tensor) {
  const auto bytes = [&](std::int64_t elements) { return elements * static_cast<std::int64_t>(tensor.element_size()); };
  if (tensor.dim() == 0 || tensor.stride(-1) != 1 || bytes(tensor.size(-1)) % kWord != 0) return false;
  for (std::int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    if (bytes(tensor.stride(dim)) % kWord != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kWord == 0;
}

/// Copies a tensor of the same sizes and type. GPUs copy rows with gaps element by element, so elements are made long.
void copy_in_words(const Tensor& to, const Tensor& from) {
  const bool as_words = from.numel() > 0 && from.dim() == to.dim() && is_in_words(from) && is_in_words(to);
  if (as_words)
    to.view(at::kComplexDouble).copy_(from.view(at::kComplexDouble));
  else
    to.copy_(from);
}

Tensor own_slice(const Tensor& whole, const Move& move) {
  const int place = move.group.place();
  return whole.narrow(move.dim, move.split.begin(place), move.split.length(place)).contiguous();
}

Tensor sum_of_all(const Tensor& term, const Move& move) {
  auto sum = term.clone(at::MemoryFormat::Contiguous);
  move.group.state()->all_reduce(sum);
  return sum;
}

/// [members, the dims of a slice]: each member has room for the longest slice. Slices keep the order of their dims, so
/// that one which is as long as the others is copied as it lies.
Tensor room_for_parts(const Tensor& like, const Move& move) {
  auto sizes = like.sizes().vec();
  sizes[static_cast<std::size_t>(move.dim)] = move.split.longest();
  sizes.insert(sizes.begin(), move.split.parts());
  return like.new_empty(sizes);
}

Tensor part(const Tensor& room, const Move& move, int place) {
  return room[place].narrow(move.dim, 0, move.split.length(place));
}

/// What is made meanwhile is no view to autograd, so that users may write it in place: it can be the memory of the
/// exchange itself.
using NoViews = at::AutoDispatchBelowADInplaceOrView;

Tensor all_slices(const Tensor& own, const Move& move) {
  const NoViews no_views;
  auto room = room_for_parts(own, move);
  copy_in_words(part(room, move, move.group.place()), own);
  move.group.state()->all_gather(room);
  if (move.dim == 0 && move.split.is_even()) return room.flatten(0, 1);
  std::vector<Tensor> parts;
  for (int place = 0; place < move.split.parts(); ++place) parts.push_back(part(room, move, place));
  return at::cat(parts, move.dim).contiguous();
}

/// What each member shall have the sum of, as `room_for_parts`.
Tensor in_parts(const Tensor& term, const Move& move) {
  auto room = room_for_parts(term, move);
  for (int place = 0; place < move.split.parts(); ++place) {
    const auto length = move.split.length(place);
    copy_in_words(part(room, move, place), term.narrow(move.dim, move.split.begin(place), length));
    if (length < move.split.longest()) room[place].narrow(move.dim, length, move.split.longest() - length).zero_();
  }
  return room;
}

Tensor own_slice_of_sum(const Tensor& term, const Move& move) {
  return detail::slice_of_sum(term, move.group, move.dim, move.split);
}

struct CopyFunction : torch::autograd::Function<CopyFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Move move) {
    detail::keep(*context, std::move(move));
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    detail::refuse_double_backward("copy");
    return {sum_of_all(gradients[0], detail::kept<Move>(*context)), Tensor()};
  }
};

struct ReduceFunction : torch::autograd::Function<ReduceFunction> {
  static Tensor forward(AutogradContext*, const Tensor& x, const Move& move) { return sum_of_all(x, move); }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0], Tensor()}; }
};

struct GatherFunction : torch::autograd::Function<GatherFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Move move) {
    auto whole = all_slices(x, move);
    detail::keep(*context, std::move(move));
    return whole;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    detail::refuse_double_backward("gather");
    const auto& move = detail::kept<Move>(*context);
    return {move.gradient.is_partial() ? own_slice_of_sum(gradients[0], move) : own_slice(gradients[0], move),
            Tensor()};
  }
};

/// Scatter and reduce_scatter: this rank's slice, of what all have or of the sum of what they have.
template <Tensor (*kSliceOf)(const Tensor&, const Move&)>
struct SliceFunction : torch::autograd::Function<SliceFunction<kSliceOf>> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Move move) {
    auto slice = kSliceOf(x, move);
    detail::keep(*context, std::move(move));
    return slice;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& move = detail::kept<Move>(*context);
    detail::refuse_double_backward(move.name);
    return {all_slices(gradients[0], move), Tensor()};
  }
};
using ScatterFunction = SliceFunction<own_slice>;
using ReduceScatterFunction = SliceFunction<own_slice_of_sum>;

[[noreturn]] void refuse(const char* name, const Placed& x, const char* takes) {
  std::string fix;
  if (x.placement().is_partial()) fix = "reduce(x) or reduce_scatter(x, dim) adds them up";
  if (x.placement().is_shard()) fix = "gather(x) brings the slices together";
  if (x.placement().is_replicate()) fix = "all ranks have it, so leave out the call";
  throw InvalidArgument(std::string(name) + " takes " + takes + ", not " + to_string(x) + "; " + fix);
}

void require_replicated(const char* name, const Placed& x, const Group& group) {
  if (!x.placement().is_replicate()) refuse(name, x, "a value that all ranks have");
  if (x.group().is_alone() || group.is_alone() || x.group() == group) return;
  throw InvalidArgument(std::string(name) + ": the value is of another group of ranks; use one group throughout");
}

/// Along dim `dim` of `x`, counted from its front.
Move move_along(const char* name, const Placed& x, const Group& group, int dim, const Split& split) {
  const auto total = x.size(dim);
  if (dim < 0) dim += x.dim();
  if (split.parts() != group.size() || split.total() != total) {
    throw InvalidArgument(std::string(name) + ": a split into " + to_string(split) + " is none of " +
                          std::to_string(total) + " elements over " + std::to_string(group.size()) + " ranks");
  }
  return {group, dim, split, Placement::replicate(), name};
}

}  // namespace

at::Tensor detail::slice_of_sum(Tensor term, const Group& group, int dim, const Split& split,
                                const std::function<void()>& meanwhile) {
  const NoViews no_views;
  const Move move{group, dim, split};
  const auto room = in_parts(term, move);
  term.reset();
  group.state()->reduce_scatter(room, meanwhile);
  const auto own = part(room, move, group.place());
  return dim == 0 ? own.contiguous() : own.clone(at::MemoryFormat::Contiguous);  // the room is freed
}

Placed copy(const Placed& x, const Group& group) {
  require_replicated("copy", x, group);
  if (group.is_alone()) return x;
  return Placed::replicate(CopyFunction::apply(x.local(), Move{group}), group);
}

Placed reduce(const Placed& x) {
  if (x.group().is_alone()) return x;
  if (!x.placement().is_partial()) refuse("reduce", x, "terms of a sum");
  return Placed::replicate(ReduceFunction::apply(x.local(), Move{x.group()}), x.group());
}

Placed gather(const Placed& x, Placement gradient) {
  expect(!gradient.is_shard(), "gather: the gradient of what all ranks have is replicate() or partial()");
  if (x.group().is_alone()) return x;
  if (!x.placement().is_shard()) refuse("gather", x, "slices");
  Move move{x.group(), x.placement().dim(), x.split(), gradient};
  return Placed::replicate(GatherFunction::apply(x.local(), std::move(move)), x.group());
}

Placed scatter(const Placed& x, const Group& group, int dim, const Split& split) {
  require_replicated("scatter", x, group);
  auto move = move_along("scatter", x, group, dim, split);
  if (group.is_alone()) return x;
  const int front = move.dim;
  return Placed::shard(ScatterFunction::apply(x.local(), std::move(move)), group, front, split);
}

Placed scatter(const Placed& x, const Group& group, int dim) {
  return scatter(x, group, dim, Split::even(x.size(dim), group.size()));
}

Placed reduce_scatter(const Placed& x, int dim, const Split& split) {
  if (x.group().is_alone()) return x;
  if (!x.placement().is_partial()) refuse("reduce_scatter", x, "terms of a sum");
  auto move = move_along("reduce_scatter", x, x.group(), dim, split);
  const int front = move.dim;
  return Placed::shard(ReduceScatterFunction::apply(x.local(), std::move(move)), x.group(), front, split);
}

Placed reduce_scatter(const Placed& x, int dim) {
  return reduce_scatter(x, dim, Split::even(x.size(dim), x.group().size()));
}

}  // namespace autopar
