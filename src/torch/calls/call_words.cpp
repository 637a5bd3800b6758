#include "torch/calls/call_words.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>

#include <autopar/plan/text.hpp>

#include "ops/registry.hpp"

namespace autopar::calls {

namespace {

constexpr char kField = '\x1f', kRow = '\x1e';  // "unit", "record separator": no word has one

std::string name_of(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

/// Reads `Flattened::structure`.
class StructureReader {
 public:
  explicit StructureReader(std::string_view text) : text_(text) {}

  [[nodiscard]] std::string values_until(char end) {
    std::string out;
    while (at_ < text_.size() && text_[at_] != end) {
      const auto before = at_;
      const auto one = value();
      if (at_ == before) break;  // nothing that flatten writes
      out += (out.empty() ? "" : ", ") + one;
    }
    if (at_ < text_.size()) ++at_;
    return out;
  }

 private:
  std::string value() {
    switch (text_[at_++]) {
      case 'T':
        return "tensor";
      case '=':
        return constant();
      case '(':
        return "(" + values_until(')') + ")";
      case '{':
        return "{" + values_until('}') + "}";
      case '[':
        static_cast<void>(number());
        return "[" + values_until(']') + "]";
      case '<':
        return "{" + entries() + "}";
      case '?':
        return at_ < text_.size() ? value() : "";
      case '!':
        return "none";
      default:
        --at_;
        return "";
    }
  }

  std::string entries() {
    std::string out;
    for (auto count = number(); count > 0 && at_ < text_.size(); --count) {
      const auto key = constant();
      if (at_ < text_.size()) ++at_;  // ':'
      out += (out.empty() ? "" : ", ") + key + ": " + (at_ < text_.size() ? value() : "");
    }
    if (at_ < text_.size()) ++at_;
    return out;
  }

  /// A number, or "5\"hello\"", whose length stands before it.
  std::string constant() {
    const auto start = at_;
    const auto length = number();
    if (at_ > start && at_ < text_.size() && text_[at_] == '"') {
      const auto whole = std::string(text_.substr(at_, length + 2));
      at_ += whole.size();
      return whole;
    }
    at_ = start;
    const auto belongs = [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0 || std::islower(static_cast<unsigned char>(c)) != 0 ||
             c == '.' || c == '+' || c == '-';
    };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    const std::string text(text_.substr(start, at_ - start));
    const bool in_hex = text.find("0x") != std::string::npos;
    return in_hex ? detail::formatted("%.9g", std::strtod(text.c_str(), nullptr)) : text;
  }

  std::size_t number() {
    std::size_t value = 0;
    const auto* end = text_.data() + text_.size();
    at_ += static_cast<std::size_t>(std::from_chars(text_.data() + at_, end, value).ptr - (text_.data() + at_));
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// A call's member, and the function that it takes, as `AutoParallel` writes them before the structure.
struct Member {
  std::string name = "forward";
  std::string function{};  ///< mangled
  std::string_view rest;
};

Member member_of(std::string_view structure) {
  for (const std::string_view name : {"train_step", "call"}) {
    if (!structure.starts_with(name) || structure.size() <= name.size() || structure[name.size()] != ' ') continue;
    const auto start = name.size() + 1;
    const auto end = structure.find(' ', start);
    if (end == std::string_view::npos) continue;
    return {std::string(name), std::string(structure.substr(start, end - start)), structure.substr(end + 1)};
  }
  return {.rest = structure};
}

/// Functions of one type are numbered.
std::string readable_function(const std::string& name) {
  const auto hash = name.find_last_of('#');
  const auto type = c10::demangle(name.substr(0, hash).c_str());
  return hash == std::string::npos ? type : type + " number " + name.substr(hash + 1);
}

std::string sizes_of(const at::Tensor& tensor) {
  std::string text;
  for (const auto size : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

/// Without the batch size, in which ranks may differ.
std::string compared_of(const trace::InputSpec& spec) {
  std::string text = name_of(spec.dtype) + (spec.requires_grad ? "g" : "-");
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    const bool is_batch = spec.batch_dim && *spec.batch_dim == static_cast<std::int64_t>(d);
    text += "," + (is_batch ? "batch" : std::to_string(spec.sizes[d]));
  }
  return text;
}

void add_arguments(std::vector<CallWord>& words, const CallArguments& arguments) {
  const auto member = member_of(arguments.structure);
  words.push_back({"", "calls", member.name, member.name});
  if (!member.function.empty()) {
    words.push_back({"the function of " + member.name, "is", member.function, readable_function(member.function)});
  }
  const auto count = std::to_string(arguments.flat_count);
  words.push_back({"", "passes", count, count + (arguments.flat_count == 1 ? " tensor" : " tensors")});
  words.push_back({"the row of arguments", "is", std::string(member.rest), readable_structure(member.rest)});
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    const auto& spec = arguments.specs[i];
    words.push_back({"tensor argument " + std::to_string(arguments.positions[i]), "is", compared_of(spec),
                     name_of(spec.dtype) + " " + sizes_of(arguments.tensors[i]) +
                         (spec.requires_grad ? " that requires a gradient" : "")});
  }
}

}  // namespace

std::string readable_structure(std::string_view structure) { return StructureReader(structure).values_until('\0'); }

std::vector<CallWord> words_of_call(const CallArguments& arguments, const torch::nn::Module& module,
                                    const std::vector<parameters::ManagedTensor>& tensors, bool gradients,
                                    const std::string& autocast) {
  const auto mode = [](const torch::nn::Module& one) { return std::string(one.is_training() ? "train()" : "eval()"); };
  std::vector<CallWord> words;
  words.push_back({"", "is", mode(module), "in " + mode(module)});
  const auto enabled = std::string(gradients ? "enabled" : "disabled");
  words.push_back({"", "has", enabled, "gradients " + enabled});
  words.push_back({"", "has autocast", autocast, autocast.empty() ? "off" : "on for" + autocast});
  const auto registered = ops::registered_by_users();
  words.push_back({"", "has registered", registered, registered.empty() ? "no operators" : registered});
  add_arguments(words, arguments);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    words.push_back({"module '" + item.key() + "'", "is", mode(*item.value()), "in " + mode(*item.value())});
  for (const auto& tensor : tensors) {
    if (!tensor.is_parameter) continue;
    const std::string asks = tensor.handle.requires_grad() ? "true" : "false";
    words.push_back({"parameter '" + tensor.name() + "'", "has", asks, "requires_grad = " + asks});
  }
  return words;
}

std::string to_text(const std::vector<CallWord>& words) {
  std::string text;
  for (const auto& word : words) {
    for (const auto* field : {&word.subject, &word.verb, &word.compared, &word.shown}) text += *field + kField;
    text += kRow;
  }
  return text;
}

std::vector<CallWord> words_from_text(std::string_view text) {
  std::vector<CallWord> words;
  while (!text.empty()) {
    auto row = text.substr(0, text.find(kRow));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    CallWord word;
    for (auto* field : {&word.subject, &word.verb, &word.compared, &word.shown}) {
      const auto part = row.substr(0, row.find(kField));
      *field = part;
      row.remove_prefix(std::min(row.size(), part.size() + 1));
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::optional<std::string> first_difference(const std::vector<CallWord>& a, std::size_t rank_a,
                                            const std::vector<CallWord>& b, std::size_t rank_b) {
  const auto first = "rank " + std::to_string(rank_a), second = "rank " + std::to_string(rank_b);
  for (const auto& mine : a) {
    for (const auto& other : b) {
      if (mine.subject != other.subject || mine.verb != other.verb) continue;
      if (mine.compared == other.compared) break;
      if (mine.subject.empty()) return first + " " + mine.verb + " " + mine.shown + ", " + second + " " + other.shown;
      return mine.subject + " " + mine.verb + " " + mine.shown + " on " + first + ", " + other.shown + " on " + second;
    }
  }
  return std::nullopt;
}

}  // namespace autopar::calls
