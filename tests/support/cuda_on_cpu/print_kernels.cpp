// print_kernels text <source>: the CUDA C that NVRTC compiles. print_kernels unit <source> <preprocessed text>: the C++
// around it, with a table of its kernels, which only the preprocessed text names all. CMakeLists.txt calls both.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>

#include "cuda_on_cpu/wrong_kernels.hpp"
#include "kernels/batch_norm_source.hpp"
#include "kernels/channels_last_copy_source.hpp"
#include "kernels/class_loss_source.hpp"
#include "kernels/column_sums_source.hpp"
#include "kernels/gelu_gradient_source.hpp"
#include "kernels/gelu_source.hpp"
#include "kernels/joined_parts_source.hpp"
#include "kernels/kernel_source.hpp"
#include "kernels/layer_norm_source.hpp"
#include "kernels/max_pool_source.hpp"
#include "kernels/strided_copy_source.hpp"
#include "kernels/table_gradient_source.hpp"
#include "kernels/update_source.hpp"

namespace {

/// By the names of their headers: layer_norm_source.hpp. A text that is made at run time has one here too.
std::string text_of(const std::string& source) {
  const std::map<std::string, std::string> texts{
      {"batch_norm", autopar::kBatchNormKernels.text},
      {"channels_last_copy", autopar::kChannelsLastCopyKernels.text},
      {"class_loss", autopar::kClassLossKernels.text},
      {"column_sums", autopar::kColumnSumsKernels.text},
      {"gelu", autopar::kGeluKernels.text},
      {"gelu_gradient", autopar::kGeluGradientKernels.text},
      {"joined_parts", autopar::kJoinedPartsKernels.text},
      {"layer_norm", autopar::kLayerNormKernels.text},
      {"max_pool", autopar::kMaxPoolKernels.text},
      {"strided_copy", autopar::kStridedCopyKernels.text},
      {"table_gradient", autopar::kTableGradientKernels.text},
      {"update", autopar::kUpdateKernels.text},
      {"wrong_kernels", cuda_on_cpu::kWrongText},
  };
  const auto found = texts.find(source);
  if (found == texts.end())
    throw std::invalid_argument("no text of " + source + "_source.hpp: give it a line in " __FILE__);
  return autopar::kKernelPrelude + found->second;
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
