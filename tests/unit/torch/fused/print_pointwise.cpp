// print_pointwise: the CUDA C of some point-wise expressions as one unit of C++, with tables of their kernels, which
// pointwise_kernels_test.cpp runs on the CPU.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "kernels/kernel_source.hpp"
#include "torch/fused/pointwise/code.hpp"
#include "unit/torch/fused/random_program.hpp"

namespace {

/// Each text is in a namespace of its own, where its kernels have the names of C++.
std::string without_c_names(std::string text) {
  const std::string c_name = "extern \"C\" ";
  for (auto at = text.find(c_name); at != std::string::npos; at = text.find(c_name)) text.erase(at, c_name.size());
  return text;
}

}  // namespace

int main() try {
  std::cout << "#include \"cuda_on_cpu/device_code.hpp\"\n#include \"cuda_on_cpu/kernel_table.hpp\"\n";
  const auto expressions = autopar::test::expressions_of_kernels();
  for (std::size_t i = 0; i < expressions.size(); ++i) {
    const auto room = "pointwise_" + std::to_string(i);
    std::cout << "namespace " << room << " {\n#line 1 \"" << room << ".cu\"\n"
              << without_c_names(autopar::kernels::kKernelPrelude + code_of(expressions[i])) << "}\n";
  }
  std::cout << "namespace cuda_on_cpu {\nSource pointwise_sources[]{\n";
  for (std::size_t i = 0; i < expressions.size(); ++i) {
    const auto room = "pointwise_" + std::to_string(i);
    std::cout << "  {\"" << room << "\", {Caller<" << room << "::pointwise_packs>::named(\"pointwise_packs\"), Caller<"
              << room << "::pointwise_elements>::named(\"pointwise_elements\")}},\n";
  }
  std::cout << "};\n}\n";
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "print_pointwise: %s\n", error.what());
  return 1;
}
