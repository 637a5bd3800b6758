// print_kernels text <source>: the CUDA C that NVRTC compiles. print_kernels unit <source> <preprocessed text>: the C++
// around it, with a table of its kernels, which only the preprocessed text names all. CMakeLists.txt calls both.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>

#include "cuda_on_cpu/wrong_kernels.hpp"
#include "kernels/all_kernels.hpp"

namespace {

/// Texts by their files: "layer_norm" of layer_norm.cu. What the harness's own tests run is one, too.
std::string text_of(const std::string& source) {
  if (source == "wrong_kernels") return std::string(autopar::kernels::kKernelPrelude) + cuda_on_cpu::kWrongText;
  for (const auto& kernels : autopar::kernels::all_kernels()) {
    if (source + ".cu" == kernels.name) return std::string(autopar::kernels::kKernelPrelude) + kernels.text;
  }
  throw std::invalid_argument("no text of " + source + "_source.hpp: give it a line in kernels/all_kernels.hpp");
}

std::string unit_of(const std::string& source, const std::string& preprocessed) {
  std::ostringstream unit;
  unit << "#include \"cuda_on_cpu/device_code.hpp\"\n#include \"cuda_on_cpu/kernel_table.hpp\"\n"
       << "namespace kernels_of_" << source << " {\n#line 1 \"" << source << ".cu\"\n"
       << text_of(source) << "}\n#line 1 \"table\"\n"
       << "namespace cuda_on_cpu {\nextern Source " << source << ";\nSource " << source << "{\"" << source << "\", {\n";
  const std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\()");
  for (std::sregex_iterator found(preprocessed.begin(), preprocessed.end(), kernel), end; found != end; ++found) {
    const auto name = (*found)[1].str();
    unit << "  Caller<kernels_of_" << source << "::" << name << ">::named(\"" << name << "\"),\n";
  }
  unit << "}};\n}\n";
  return unit.str();
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path);
  return content.str();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "text" && argc == 3) {
    std::cout << text_of(argv[2]);
  } else if (what == "unit" && argc == 4) {
    std::cout << unit_of(argv[2], content_of(argv[3]));
  } else {
    throw std::invalid_argument("usage: print_kernels text <source> | unit <source> <preprocessed text>");
  }
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "print_kernels: %s\n", error.what());
  return 1;
}
