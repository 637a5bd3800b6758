#pragma once

// toml++ asserts (and with NDEBUG tells clang to assume) what hostile text breaks, e.g. that a key follows "[", though
// its own handling of errors comes right behind. Neither an abort nor an assumption is wanted here: the errors are.
#define TOML_ASSERT(expr) static_assert(true)
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")
