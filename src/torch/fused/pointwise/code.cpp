#include "torch/fused/pointwise/code.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include <c10/core/ScalarType.h>

namespace autopar::fused::pointwise {

namespace {

const char* type_name(c10::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return "Half";
    case at::kBFloat16:
      return "Brain";
    case at::kDouble:
      return "double";
    case at::kBool:
      return "Flag";
    default:
      return "float";
  }
}

std::string number(double value) {
  if (std::isnan(value)) return "R(__longlong_as_double(0x7ff8000000000000ll))";
  if (std::isinf(value))
    return std::string("R(__longlong_as_double(0x") + (value > 0 ? "7ff" : "fff") + "0000000000000ull))";
  std::array<char, 64> digits{};
  std::snprintf(digits.data(), digits.size(), "R(%.17g)", value);
  return digits.data();
}

/// The CUDA formula of an instruction, in terms of `v0`, `v1`, ….
std::string formula(const Instruction& instruction) {
  const auto operand = [&](std::size_t at) { return "v" + std::to_string(instruction.operands[at]); };
  const auto infix = [&](const char* sign) { return operand(0) + sign + operand(1); };
  const auto call = [&](const char* function) { return function + ("(" + operand(0)) + ")"; };
  switch (instruction.code) {
    case Code::kInput:
      return "number(x" + std::to_string(static_cast<int>(instruction.number)) + ".at[i])";
    case Code::kConstant:
      return number(instruction.number);
    case Code::kAdd:
      return infix(" + ");
    case Code::kSub:
      return infix(" - ");
    case Code::kMul:
      return infix(" * ");
    case Code::kDiv:
      return infix(" / ");
    case Code::kPow:
      return "pow(" + infix(", ") + ")";
    case Code::kNeg:
      return "-" + operand(0);
    case Code::kAbs:
      return call("fabs");
    case Code::kExp:
      return call("exp");
    case Code::kExpm1:
      return call("expm1");
    case Code::kLog:
      return call("log");
    case Code::kLog1p:
      return call("log1p");
    case Code::kSqrt:
      return call("sqrt");
    case Code::kRsqrt:
      return call("rsqrt");
    case Code::kTanh:
      return call("tanh");
    case Code::kErf:
      return call("erf");
    case Code::kSigmoid:
      return "R(1) / (R(1) + exp(-" + operand(0) + "))";
    case Code::kRelu:
      return operand(0) + " <= R(0) ? R(0) : " + operand(0);
    case Code::kLess:
      return "R(" + infix(" < ") + ")";
    case Code::kLessEqual:
      return "R(" + infix(" <= ") + ")";
    case Code::kEqual:
      return "R(" + infix(" == ") + ")";
    case Code::kSelect:
      return operand(0) + " != R(0) ? " + operand(1) + " : " + operand(2);
  }
  return {};
}

constexpr const char* kCommon = R"(
struct Flag { unsigned char bits; };
__device__ inline float number(Flag x) { return x.bits != 0 ? 1.f : 0.f; }
template <class T, int kCount> struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Few { T at[kCount]; };
struct Addresses { void* of[kMostTensors]; };
struct Places {
  long long strides[kMostTensors][kMostDims];
  unsigned sizes[kMostDims];
  unsigned inner[kMostTensors];
  unsigned packs;
  int dims;
};
template <int kCount, class T> __device__ inline Few<T, kCount> read(const void* from, long long at, unsigned inner) {
  const T* const first = static_cast<const T*>(from) + at;
  if (kCount > 1 && inner == 1) return *reinterpret_cast<const Few<T, kCount>*>(first);
  Few<T, kCount> few;
  const T same = *first;
#pragma unroll
  for (int i = 0; i < kCount; ++i) few.at[i] = same;
  return few;
}
)";

std::string body(const Expression& expression) {
  const auto inputs = expression.inputs.size(), results = expression.results.size();
  std::string text;
  const auto line = [&](const std::string& of) { text += "  " + of + "\n"; };
  const auto id = [](std::size_t at) { return std::to_string(at); };
  line("const unsigned mine = blockIdx.x * 256u + threadIdx.x;");
  line("if (mine >= places.packs) return;");
  for (std::size_t k = 0; k < inputs + results; ++k) line("long long at" + id(k) + " = 0;");
  line("unsigned rest = mine;");
  line("for (int d = places.dims - 1; d >= 0; --d) {");
  line("  const unsigned above = d > 0 ? rest / places.sizes[d] : 0u, here = rest - above * places.sizes[d];");
  for (std::size_t k = 0; k < inputs + results; ++k)
    line("  at" + id(k) + " += here * places.strides[" + id(k) + "][d];");
  line("  rest = above;");
  line("}");
  for (std::size_t k = 0; k < inputs; ++k) {
    line("const auto x" + id(k) + " = read<kCount, " + type_name(expression.inputs[k]) + ">(addresses.of[" + id(k) +
         "], at" + id(k) + ", places.inner[" + id(k) + "]);");
  }
  for (std::size_t k = 0; k < results; ++k)
    line(std::string("Few<") + type_name(expression.results[k].type) + ", kCount> y" + id(k) + ";");
  text += "#pragma unroll\n";
  line("for (int i = 0; i < kCount; ++i) {");
  for (std::size_t node = 0; node < expression.instructions.size(); ++node)
    line("  const R v" + id(node) + " = " + formula(expression.instructions[node]) + ";");
  for (std::size_t k = 0; k < results; ++k) {
    const auto& [node, type] = expression.results[k];
    line("  store(y" + id(k) + ".at[i], " + (type == at::kDouble ? "" : "float") + "(v" + std::to_string(node) + "));");
  }
  line("}");
  for (std::size_t k = 0; k < results; ++k) {
    line("*reinterpret_cast<Few<" + std::string(type_name(expression.results[k].type)) + ", kCount>*>(static_cast<" +
         type_name(expression.results[k].type) + "*>(addresses.of[" + id(inputs + k) + "]) + at" + id(inputs + k) +
         ") = y" + id(k) + ";");
  }
  return text;
}

std::string kernel(const char* name, int count) {
  return std::string("extern \"C\" __global__ void __launch_bounds__(256) ") + name +
         "(Addresses addresses, Places places) {\n  pointwise<" + std::to_string(count) + ">(addresses, places);\n}\n";
}

/// One dim, with its strides in all tensors.
struct Dim {
  std::int64_t size = 1;
  std::vector<std::int64_t> strides;
};

/// The dims in the results' order, outermost first. Dims that are contiguous in all tensors are merged.
std::vector<Dim> joined_dims(const std::vector<at::Tensor>& tensors, at::IntArrayRef sizes) {
  std::vector<Dim> dims;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    Dim dim{sizes[d], {}};
    for (const auto& tensor : tensors) {
      const auto own = static_cast<std::int64_t>(d) - static_cast<std::int64_t>(sizes.size()) + tensor.dim();
      dim.strides.push_back(own < 0 || tensor.size(own) == 1 ? 0 : tensor.stride(own));
    }
    dims.push_back(std::move(dim));
  }
  std::ranges::stable_sort(dims, [](const Dim& a, const Dim& b) { return a.strides.back() > b.strides.back(); });
  std::vector<Dim> joined;
  for (auto& dim : dims) {
    const auto runs_on = [&](const Dim& outer) {
      for (std::size_t k = 0; k < tensors.size(); ++k)
        if (outer.strides[k] != dim.strides[k] * dim.size) return false;
      return true;
    };
    if (!joined.empty() && runs_on(joined.back())) {
      joined.back().size *= dim.size;
      joined.back().strides = dim.strides;
    } else {
      joined.push_back(std::move(dim));
    }
  }
  if (joined.empty()) joined.push_back({1, std::vector<std::int64_t>(tensors.size(), 0)});
  return joined;
}

bool fits_packs(const std::vector<at::Tensor>& tensors, const std::vector<Dim>& dims, int pack) {
  if (dims.back().size % pack != 0) return false;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const auto inner = dims.back().strides[k];
    if (inner == 0) continue;
    const auto bytes = tensors[k].element_size(), aligned = std::min<std::int64_t>(16, bytes * pack);
    if (inner != 1 || reinterpret_cast<std::uintptr_t>(tensors[k].const_data_ptr()) % aligned != 0) return false;
    for (std::size_t d = 0; d + 1 < dims.size(); ++d)
      if (dims[d].strides[k] * bytes % aligned != 0) return false;
  }
  return true;
}

}  // namespace

int pack_of(const Expression& expression) {
  std::size_t narrowest = sizeof(double);
  const auto look = [&](c10::ScalarType type) {
    if (type != at::kBool) narrowest = std::min(narrowest, c10::elementSize(type));
  };
  for (const auto type : expression.inputs) look(type);
  for (const auto& result : expression.results) look(result.type);
  return static_cast<int>(16 / narrowest);
}

std::string code_of(const Expression& expression) {
  std::string text = "constexpr int kMostTensors = " + std::to_string(kMostTensors) +
                     ", kMostDims = " + std::to_string(kMostDims) + ";";
  text += kCommon;
  text += std::string("using R = ") + (expression.computes_in() == at::kDouble ? "double" : "float") + ";\n";
  text +=
      "template <int kCount> __device__ inline void pointwise(const Addresses& addresses, const Places& places) {\n";
  return text + body(expression) + "}\n" + kernel("pointwise_packs", pack_of(expression)) +
         kernel("pointwise_elements", 1);
}

bool cover(const std::vector<at::Tensor>& tensors, at::IntArrayRef sizes, int pack, Cover& made) {
  const auto dims = joined_dims(tensors, sizes);
  if (dims.size() > kMostDims || tensors.size() > kMostTensors) return false;
  made.in_packs = pack > 1 && fits_packs(tensors, dims, pack);
  const auto each = made.in_packs ? pack : 1;
  std::int64_t packs = 1;
  for (const auto& dim : dims) packs *= dim.size;
  packs /= each;
  constexpr std::int64_t kSlack = 256;
  if (packs > std::numeric_limits<unsigned>::max() - kSlack) return false;
  auto& places = made.places;
  places.packs = static_cast<unsigned>(packs);
  places.dims = static_cast<int>(dims.size());
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto in_pack = d + 1 == dims.size() ? each : 1;
    places.sizes[d] = static_cast<unsigned>(dims[d].size / in_pack);
    for (std::size_t k = 0; k < tensors.size(); ++k) places.strides[k][d] = dims[d].strides[k] * in_pack;
  }
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    places.inner[k] = dims.back().strides[k] == 1 ? 1 : 0;
    made.addresses.of[k] = const_cast<void*>(tensors[k].const_data_ptr());
  }
  return true;
}

}  // namespace autopar::fused::pointwise
