#pragma once

#include <string>

#include <autopar/testing/law_broken.hpp>

namespace autopar::testing {

/// The law that a check finds broken; empty if it finds none.
template <class Check>
std::string broken_law(const Check& check) {
  try {
    check();
  } catch (const LawBroken& broken) {
    return broken.law();
  }
  return {};
}

}  // namespace autopar::testing
