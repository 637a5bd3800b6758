#include <autopar/training/early_stopping.hpp>

#include <limits>
#include <string>

#include <autopar/core/error.hpp>

#include "catch_shim.hpp"

namespace early_stopping_test {

using autopar::training::Better;
using autopar::training::EarlyStopping;

TEST_CASE("EarlyStopping: over after so many values that are not better") {
  EarlyStopping stopping(2, Better::kLower, 0.1);
  CHECK_FALSE(stopping.see(1));
  CHECK_FALSE(stopping.see(0.95));  // better by less than 0.1
  CHECK_FALSE(stopping.see(0.8));
  CHECK_FALSE(stopping.see(std::numeric_limits<double>::quiet_NaN()));
  CHECK(stopping.see(std::numeric_limits<double>::infinity()));
  CHECK(stopping.best() == 0.8);
}

TEST_CASE("EarlyStopping: goes on from what it saved") {
  EarlyStopping first(3), second(3);
  second.load(first.save());
  CHECK_FALSE(second.best().has_value());
  first.see(0.1 + 0.2);
  first.see(0.2);
  second.load(first.save());
  CHECK(second.best() == 0.1 + 0.2);
  CHECK_FALSE(second.see(0.3));
  CHECK(second.see(0.3));
}

TEST_CASE("EarlyStopping: refuses what makes no sense, and foreign texts") {
  CHECK_THROWS_WITH(EarlyStopping(0), Catch::Matchers::Contains("patience = 0"));
  CHECK_THROWS_WITH(EarlyStopping(1, Better::kLower, -1), Catch::Matchers::Contains("least"));
  EarlyStopping stopping(1);
  stopping.see(4);
  for (const std::string text :
       {"", "{}", "[]", R"({"without_better": -1})", R"({"without_better": 18446744073709551615})",
        R"({"without_better": 1, "best": "x"})"})
    CHECK_THROWS_WITH(stopping.load(text), Catch::Matchers::Contains("is not what EarlyStopping saved"));
  CHECK(stopping.best() == 4);
}

}  // namespace early_stopping_test
