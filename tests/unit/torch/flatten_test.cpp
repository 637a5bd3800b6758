#include <autopar/capture/flatten.hpp>

#include <functional>
#include <memory>

#include <ATen/ops/full.h>

#include <catch_shim.hpp>

namespace {

using autopar::flatten;
using autopar::Flattenable;
using autopar::with_tensors;

enum class Mode { kFast, kExact };

struct Inner {
  std::optional<at::Tensor> mask;
  std::vector<at::Tensor> states;
};
struct Batch {
  at::Tensor x;
  Inner inner;
  std::pair<at::Tensor, int> labelled;
  std::array<at::Tensor, 2> pair;
  Mode mode = Mode::kFast;
  std::string name;
};
struct Sixteen {
  at::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p;
};
struct Seventeen {
  at::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q;
};
struct WithPointer {
  at::Tensor x;
  std::shared_ptr<int> pointer;
};
class Opaque {
 public:
  explicit Opaque(int value) : value_(value) {}
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_;
};

static_assert(Flattenable<at::Tensor>);
static_assert(Flattenable<const at::Tensor&>);
static_assert(Flattenable<Batch>);
static_assert(Flattenable<Sixteen>);
static_assert(Flattenable<std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>>);
static_assert(Flattenable<std::vector<std::map<std::string, at::Tensor>>>);
static_assert(!Flattenable<Seventeen>);
static_assert(!Flattenable<WithPointer>);
static_assert(!Flattenable<Opaque>);
static_assert(!Flattenable<std::function<void()>>);
static_assert(!Flattenable<at::Tensor*>);

at::Tensor number(double value) { return at::full({1}, value); }
double value_of(const at::Tensor& tensor) { return tensor.item<double>(); }

Batch make_batch() {
  return {number(0), {number(1), {number(2), number(3)}}, {number(4), 7}, {number(5), number(6)}, Mode::kExact, "a"};
}

TEST_CASE("flatten: lists tensors in declaration order", "[flatten]") {
  const auto flat = flatten(make_batch(), number(7));
  REQUIRE(flat.tensors.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(value_of(flat.tensors[i]) == double(i));
}

TEST_CASE("flatten: structure tells constants, lengths, optionals apart", "[flatten]") {
  const auto base = flatten(make_batch()).structure;
  CHECK(flatten(make_batch()).structure == base);

  auto other = make_batch();
  SECTION("enum") { other.mode = Mode::kFast; }
  SECTION("string") { other.name = "b"; }
  SECTION("integer") { other.labelled.second = 8; }
  SECTION("length") { other.inner.states.pop_back(); }
  SECTION("optional") { other.inner.mask.reset(); }
  CHECK(flatten(other).structure != base);
}

TEST_CASE("flatten: structure does not confuse adjacent constants", "[flatten]") {
  CHECK(flatten(1, 23).structure != flatten(12, 3).structure);
  CHECK(flatten(std::string("a\""), std::string("b")).structure !=
        flatten(std::string("a"), std::string("\"b")).structure);
  CHECK(flatten(0.1).structure != flatten(0.1 + 1e-17 * 3).structure);
  CHECK(flatten(std::vector<at::Tensor>{number(0)}, number(1)).structure !=
        flatten(std::vector<at::Tensor>{number(0), number(1)}).structure);
}

TEST_CASE("with_tensors: replaces tensors, keeps constants", "[flatten]") {
  const auto batch = make_batch();
  std::vector<at::Tensor> replacement;
  for (int i = 0; i < 7; ++i) replacement.push_back(number(10 + i));
  const auto copy = with_tensors(batch, replacement);
  const auto flat = flatten(copy);
  for (std::size_t i = 0; i < 7; ++i) CHECK(flat.tensors[i].is_same(replacement[i]));
  CHECK(copy.mode == Mode::kExact);
  CHECK(copy.name == "a");
  CHECK(copy.labelled.second == 7);
  CHECK(value_of(batch.x) == 0);
  CHECK_THROWS_AS(with_tensors(batch, {number(0)}), autopar::InternalError);
}

TEST_CASE("flatten: an undefined tensor keeps its position", "[flatten]") {
  const auto flat = flatten(std::make_tuple(at::Tensor(), number(1)));
  REQUIRE(flat.tensors.size() == 2);
  CHECK(!flat.tensors[0].defined());
}

}  // namespace
