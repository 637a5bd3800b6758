#include <autopar/plan/option_text.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/choices.hpp>
#include <autopar/plan/recompute.hpp>
#include <autopar/schedule/traits.hpp>

using namespace autopar;

namespace {

using Words = std::vector<std::string>;

/// Each word stands for a value of its own, from which the word is read again.
template <WordOption T>
void check_words(const Words& expected) {
  CHECK(option_words<T>() == expected);
  std::vector<T> values;
  for (const std::string& word : expected) {
    CAPTURE(word);
    const std::optional<T> value = option_named<T>(word);
    REQUIRE(value.has_value());
    CHECK(option_text(*value) == word);
    CHECK(std::ranges::find(values, *value) == values.end());
    values.push_back(*value);
  }
  for (const std::string& unknown : {std::string(), std::string("AUTO"), expected.back() + " "})
    CHECK_FALSE(option_named<T>(unknown).has_value());
}

}  // namespace

TEST_CASE("option_text: each word is a value and its text") {
  check_words<Switch>({"auto", "on", "off"});
  check_words<ClassHead>({"auto", "whole", "chunked"});
  check_words<CudaGraphs>({"auto", "off"});
  check_words<Offload>({"none", "optimizer"});
  check_words<std::optional<Offload>>({"auto", "none", "optimizer"});
  check_words<ScheduleKind>({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "synth"});
  check_words<std::optional<ScheduleKind>>({"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "synth"});
  check_words<Recompute>({"auto", "none", "full"});
  check_words<Precision>({"module", "tf32", "bf16", "bf16-compute", "fp16", "fp8"});
  check_words<std::optional<ReduceDtype>>({"auto", "fp32", "bf16"});
  check_words<BatchNorm>({"microbatch", "exact"});
  check_words<DeviceChoice>({"auto", "cpu", "cuda"});
  check_words<CostChoice>({"auto", "roofline", "profiled"});
}

TEST_CASE("option_text: words mean what they say") {
  CHECK(option_named<Switch>("off") == Switch::kOff);
  CHECK(option_named<ClassHead>("chunked") == ClassHead::kChunked);
  CHECK(option_named<Offload>("optimizer") == Offload::kOptimizer);
  CHECK(option_named<ScheduleKind>("zb-v") == ScheduleKind::kZbV);
  CHECK(option_named<Recompute>("none") == Recompute::kNever);
  CHECK(option_named<Precision>("bf16-compute") == Precision::kBf16Compute);
  CHECK(option_named<BatchNorm>("exact") == BatchNorm::kExact);
  CHECK(option_named<DeviceChoice>("cuda") == DeviceChoice::kCuda);
  CHECK(option_named<CostChoice>("roofline") == CostChoice::kRoofline);
  CHECK(option_named<std::optional<Offload>>("auto").value() == std::nullopt);
  CHECK(not_an_option<Switch>("yes") == "'yes' is not one of auto | on | off");
  CHECK_THROWS_AS(to_string(static_cast<Switch>(7)), InvalidArgument);
}

TEST_CASE("RecomputeOption: a rule or modules, and their text") {
  CHECK(RecomputeOption() == Recompute::kToFit);
  for (const std::string text : {"auto", "none", "full", "layers.0", "layers.0,layers.1", "a,", ",", "a,full"}) {
    CAPTURE(text);
    CHECK(RecomputeOption::named(text).value().text() == text);
  }
  CHECK_FALSE(RecomputeOption::named("").has_value());
  CHECK(RecomputeOption::named("full") == RecomputeOption(Recompute::kAlways));
  const auto two = RecomputeOption::of_modules({"a", "b.0"});
  CHECK(two == RecomputeOption::named("a,b.0"));
  CHECK(two.when() == Recompute::kAlways);
  CHECK(two.modules() == Words{"a", "b.0"});
  CHECK(two != RecomputeOption(Recompute::kAlways));
  for (const Words& no_list : {Words{}, Words{""}, Words{"a,b"}, Words{"full"}, Words{"auto"}})
    CHECK_THROWS_AS(RecomputeOption::of_modules(no_list), InvalidArgument);
}
