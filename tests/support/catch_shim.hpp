#pragma once

#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>  // defines another CHECK, which must not come later
#endif

/// Catch2 in its second and third version, under the names of the second.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // Catch2 v2 has it in the same namespace; its users write `Approx`
namespace Catch::Matchers {
/// v2's name of the substring matcher.
inline auto Contains(const std::string& text, CaseSensitive sensitivity = CaseSensitive::Yes) {
  return ContainsSubstring(text, sensitivity);
}
}  // namespace Catch::Matchers
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {
/// v3's name of the substring matcher.
inline auto ContainsSubstring(const std::string& text, CaseSensitive::Choice sensitivity = CaseSensitive::Yes) {
  return Contains(text, sensitivity);
}
}  // namespace Catch::Matchers
#endif
