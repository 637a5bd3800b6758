#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "ops/registry.hpp"

// src/torch/OPERATORS.md: what the table makes of each of libtorch's operators.
namespace {
namespace operator_list_test {

using Operators = std::vector<c10::OperatorHandle>;  ///< overloads and twins of one name

struct Chapter {
  std::string_view verdict, rule;
};

constexpr std::string_view kPerSample = "per sample", kSums = "sums", kMixes = "mixes", kRefused = "refused",
                           kApart = "taken apart", kOther = "not recorded", kUnknown = "not known";

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return text.find(part) != text.npos; });
}

bool gives_no_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    const auto kind = result.type()->kind();
    return kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;
  });
}

bool takes_no_tensors(const c10::FunctionSchema& schema) {
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  });
}

/// Of operators outside the table.
Chapter chapter_of_unknown(const std::string& name, const Operators& operators) {
  const auto all = [&](auto holds) { return std::all_of(operators.begin(), operators.end(), holds); };
  const auto any = [&](auto holds) { return std::any_of(operators.begin(), operators.end(), holds); };
  if (name == "as_strided")
    return {kApart, "into slices, windows and permutations of dims where these give it; else it mixes samples"};
  const bool packs = name == "_pack_padded_sequence" || name == "_pad_packed_sequence" || name == "_unique";
  if (packs || any([](const auto& op) {
        return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
      })) {
    return {kRefused, "sizes or numbers that follow from the values of a tensor, unless it is a constant"};
  }
  if (all([](const auto& op) { return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd); })) {
    return {kApart, "written with other operators, which are recorded instead"};
  }
  if (contains_any(name, {"_backward", "_jvp", "gamma_grad", "dirichlet_grad"})) {
    return {kOther, "backward formulas: autograd runs them below what is recorded"};
  }
  if (contains_any(name, {"_foreach", "_fused_", "_amp_"})) return {kOther, "steps of optimizers, outside the model"};
  if (all([](const auto& op) { return takes_no_tensors(op.schema()); }) && !contains_any(name, {"sparse", "quant"})) {
    return {kMixes,
            "new tensors of patterns, alike for all slices if their sizes are fixed; whole if they follow the batch"};
  }
  if (contains_any(name, {"sparse",  "csr",   "csc",  "bsc",     "bsr",      "coalesce", "nested",
                          "jagged",  "quant", "q_",   "qscheme", "int_repr", "fbgemm",   "_indices",
                          "_values", "crow",  "ccol", "_nnz",    "hspmm",    "_dim"})) {
    return {kRefused, "sparse, nested and quantized tensors; only dense strided ones are captured"};
  }
  if (contains_any(name, {"cudnn",
                          "miopen",
                          "mkldnn",
                          "mps",
                          "cslt",
                          "nnpack",
                          "_cufft",
                          "triton",
                          "_helper",
                          "_flash_",
                          "_efficient_",
                          "_for_cpu",
                          "mem_eff",
                          "_forward",
                          "_impl",
                          "slow_conv",
                          "conv_depthwise",
                          "_fallback",
                          "transformer_encoder_layer_fwd",
                          "multi_head_attention",
                          "transform_bias"})) {
    return {kOther, "kernels of one device or path that libtorch chooses below what is recorded"};
  }
  if (name.ends_with("_copy")) return {kUnknown, "copies that stand for views; write the view and clone()"};
  if (all([](const auto& op) { return gives_no_tensors(op.schema()); })) {
    return {kRefused, "answers that are no tensors, unless they follow from sizes and types"};
  }
  return {kUnknown, "nothing is known: one micro-batch and one replica, unless no operand has samples"};
}

/// By name without the underscore of in-place twins; `out` overloads are left out.
std::map<std::string, Operators> all_operators() {
  std::map<std::string, Operators> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    constexpr std::string_view kAten = "aten::";
    if (!name.name.starts_with(kAten)) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const auto& arguments = op->schema().arguments();
    if (std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) { return a.is_out(); })) continue;
    auto base = name.name.substr(kAten.size());
    if (base.ends_with('_') && !base.ends_with("__")) base.pop_back();
    found[base].push_back(*op);
  }
  return found;
}

Chapter chapter_of(const std::string& name, const Operators& operators) {
  for (const auto& op : operators) {
    const auto& def = autopar::ops::definition_of(op);
    const bool reads = def.name.empty() && op.hasTag(at::Tag::data_dependent_output);  // equal
    if (def.is_known() && !reads) return {def.treatment, def.summary};
  }
  return chapter_of_unknown(name, operators);
}

std::string wrapped(const std::set<std::string>& names) {
  constexpr std::size_t kColumns = 118;
  std::string text, line;
  for (const auto& name : names) {
    const auto word = "`" + name + "`";
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      text += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + "\n";
}

std::string operator_list() {
  constexpr std::array kOrder{kPerSample, kSums, kMixes, kApart, kRefused, kOther, kUnknown};
  std::map<std::string_view, std::map<std::string_view, std::set<std::string>>> chapters;
  for (const auto& [name, operators] : all_operators()) {
    const auto chapter = chapter_of(name, operators);
    chapters[chapter.verdict][chapter.rule].insert(name);
  }
  std::ostringstream out;
  out << "# What each operator of libtorch does to samples\n\n"
         "Written by a test from libtorch's own list (" TORCH_VERSION
         ") and `src/ops`; "
         "`test_torch \"[write-operators]\"`\nwrites it anew. In-place and `out` twins are as their operator. "
         "What *mixes*, or is *not known*, runs on the whole batch in one\nmicro-batch and one replica, or is refused "
         "by "
         "name where a plan has several. Where no operand has samples, anything may run.\n";
  for (const auto verdict : kOrder) {
    std::size_t count = 0;
    for (const auto& [rule, names] : chapters[verdict]) count += names.size();
    out << "\n## " << verdict << " (" << count << ")\n";
    for (const auto& [rule, names] : chapters[verdict]) out << "\n" << rule << ":\n" << wrapped(names);
  }
  return out.str();
}

std::filesystem::path file() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../../src/torch/OPERATORS.md";
}

TEST_CASE("OPERATORS.md: up to date with libtorch's operators") {
  std::ifstream in(file());
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto expected = operator_list();
  INFO("OPERATORS.md is stale; write it anew: test_torch \"[write-operators]\"");
  CHECK((text == expected));
}

TEST_CASE("OPERATORS.md: is rewritten", "[.][write-operators]") { std::ofstream(file()) << operator_list(); }

}  // namespace operator_list_test
}  // namespace
