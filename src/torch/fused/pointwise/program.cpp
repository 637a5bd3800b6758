#include "torch/fused/pointwise/program.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <utility>

#include <ATen/core/stack.h>

#include <autopar/core/error.hpp>

namespace autopar::fused::pointwise {

namespace {

constexpr std::array kTypes{std::pair{"f32", at::kFloat}, std::pair{"f64", at::kDouble}, std::pair{"f16", at::kHalf},
                            std::pair{"bf16", at::kBFloat16}, std::pair{"bool", at::kBool}};

std::string text_of(c10::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  throw InvalidArgument(std::string("point-wise programs know no tensors of ") + c10::toString(type));
}

std::string text_of(const Argument& argument) {
  if (const auto* tensor = std::get_if<TensorIndex>(&argument)) return "%" + std::to_string(tensor->at);
  const auto& value = std::get<c10::IValue>(argument);
  if (value.isBool()) return value.toBool() ? "b1" : "b0";
  if (value.isInt()) return "i" + std::to_string(value.toInt());
  if (value.isString()) return "s" + value.toStringRef();
  if (value.isNone()) return "n";
  std::array<char, 64> digits{};
  std::snprintf(digits.data(), digits.size(), "d%.17g", value.toDouble());
  return digits.data();
}

/// Reads a text from its beginning.
class Reader {
 public:
  explicit Reader(const std::string& text) : rest_(text), whole_(text) {}

  [[nodiscard]] bool takes(char expected) {
    if (rest_.empty() || rest_.front() != expected) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char expected) {
    if (!takes(expected)) refuse();
  }
  /// The text before the first of these characters.
  [[nodiscard]] std::string_view before(const char* ends) {
    const auto word = rest_.substr(0, rest_.find_first_of(ends));
    rest_.remove_prefix(word.size());
    return word;
  }
  [[nodiscard]] std::int32_t index(std::int32_t count) {
    expect('%');
    const auto at = number<std::int32_t>(before(";)|,"));
    if (at < 0 || at >= count) refuse();
    return at;
  }
  [[nodiscard]] c10::ScalarType type() {
    const auto word = before("*,|");
    for (const auto& [name, known] : kTypes) {
      if (word == name) return known;
    }
    refuse();
  }
  [[nodiscard]] Argument argument(std::int32_t count) {
    if (!rest_.empty() && rest_.front() == '%') return TensorIndex{index(count)};
    const auto word = before(";)");
    if (word.empty()) refuse();
    const auto value = word.substr(1);
    switch (word.front()) {
      case 'n':
        return c10::IValue();
      case 'b':
        return c10::IValue(value == "1");
      case 'i':
        return c10::IValue(number<std::int64_t>(value));
      case 's':
        return c10::IValue(std::string(value));
      case 'd':
        return c10::IValue(number<double>(value));
      default:
        refuse();
    }
  }
  [[nodiscard]] bool at_result() const { return !rest_.empty() && rest_.front() == '%'; }
  [[nodiscard]] bool is_done() const { return rest_.empty(); }
  [[noreturn]] void refuse() const { throw InvalidArgument("'" + whole_ + "' is no point-wise program"); }

 private:
  template <class Number>
  [[nodiscard]] Number number(std::string_view word) const {
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size()) refuse();
    return value;
  }

  std::string_view rest_;
  std::string whole_;
};

Step read_step(Reader& reader, std::int32_t count) {
  const std::string name(reader.before("(")),
      base = name.substr(0, name.find('.')),
      overload = name.size() > base.size() ? name.substr(base.size() + 1) : std::string();
  const auto op = c10::Dispatcher::singleton().findSchema({base, overload});
  if (!op) reader.refuse();
  Step step{*op, {}};
  reader.expect('(');
  do step.arguments.push_back(reader.argument(count));
  while (reader.takes(';'));
  reader.expect(')');
  step.type = reader.type();
  reader.expect('|');
  if (step.arguments.size() != step.op.schema().arguments().size()) reader.refuse();
  return step;
}

}  // namespace

c10::ScalarType Program::type_of(std::int32_t tensor) const {
  const auto at = static_cast<std::size_t>(tensor);
  return at < inputs.size() ? inputs[at].type : steps.at(at - inputs.size()).type;
}

bool has_text(const c10::IValue& argument) {
  if (argument.isString()) return argument.toStringRef().find_first_of(";)") == std::string::npos;
  return argument.isNone() || argument.isBool() || argument.isInt() || argument.isDouble();
}

std::string text_of(const Program& program) {
  std::string text;
  for (const auto& input : program.inputs)
    text += (text.empty() ? "" : ",") + text_of(input.type) + (input.is_full ? "*" : "");
  text += '|';
  for (const auto& step : program.steps) {
    const auto& schema = step.op.schema();
    text += schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
    char before = '(';
    for (const auto& argument : step.arguments) {
      text += before + text_of(argument);
      before = ';';
    }
    text += ')' + text_of(step.type) + '|';
  }
  for (std::size_t i = 0; i < program.results.size(); ++i)
    text += (i == 0 ? "%" : ",%") + std::to_string(program.results[i]);
  return text;
}

Program program_of(const std::string& text) {
  Reader reader(text);
  Program program;
  do {
    const auto type = reader.type();
    program.inputs.push_back({type, reader.takes('*')});
  } while (reader.takes(','));
  reader.expect('|');
  auto count = static_cast<std::int32_t>(program.inputs.size());
  for (; !reader.at_result(); ++count) program.steps.push_back(read_step(reader, count));
  do program.results.push_back(reader.index(count));
  while (reader.takes(','));
  if (!reader.is_done()) reader.refuse();
  return program;
}

std::vector<at::Tensor> run(const Program& program, at::TensorList inputs) {
  std::vector<at::Tensor> tensors(inputs.begin(), inputs.end()), results;
  if (tensors.size() != program.inputs.size()) {
    throw InvalidArgument("a point-wise program of " + std::to_string(program.inputs.size()) + " inputs was given " +
                          std::to_string(tensors.size()));
  }
  torch::jit::Stack stack;
  for (const auto& step : program.steps) {
    stack.clear();
    for (const auto& argument : step.arguments) {
      const auto* tensor = std::get_if<TensorIndex>(&argument);
      stack.push_back(tensor != nullptr ? c10::IValue(tensors[static_cast<std::size_t>(tensor->at)])
                                        : std::get<c10::IValue>(argument));
    }
    step.op.callBoxed(stack);
    tensors.push_back(stack.front().toTensor());
  }
  for (const auto result : program.results) results.push_back(tensors[static_cast<std::size_t>(result)]);
  return results;
}

}  // namespace autopar::fused::pointwise
