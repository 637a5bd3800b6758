#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace autopar {

/// A dense index (0, 1, 2, …) of one kind; kinds do not convert into each other. `Index::none()` (-1) is no index.
template <class Tag>
class Index {
 public:
  constexpr Index() = default;
  constexpr explicit Index(std::int32_t value) : value_(value) {}

  /// For loops over containers: `Index::of(i)` where `i` is a std::size_t.
  [[nodiscard]] static constexpr Index of(std::size_t position) { return Index(static_cast<std::int32_t>(position)); }
  [[nodiscard]] static constexpr Index none() { return Index(-1); }

  [[nodiscard]] constexpr std::int32_t value() const { return value_; }
  /// Position in a container. @pre valid()
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }
  [[nodiscard]] constexpr bool valid() const { return value_ >= 0; }

  constexpr Index& operator++() {
    ++value_;
    return *this;
  }
  friend constexpr auto operator<=>(Index, Index) = default;

 private:
  std::int32_t value_ = -1;
};

using NodeId = Index<struct NodeTag>;            ///< node of a Graph
using EdgeId = Index<struct EdgeTag>;            ///< edge of a Graph
using Rank = Index<struct RankTag>;              ///< process
using StageId = Index<struct StageTag>;          ///< stage of a pipeline, in pipeline order
using ParameterId = Index<struct ParameterTag>;  ///< trainable tensor of the model

}  // namespace autopar

template <class Tag>
struct std::hash<autopar::Index<Tag>> {
  std::size_t operator()(autopar::Index<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value()); }
};
