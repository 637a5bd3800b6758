#pragma once

#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "slice_interpreter.hpp"

// A call of an operator written as text, whose sizes are letters that a test may set.
namespace autopar::test {

/// `ops`: names, each with its overload if it has one. A mark in front says what of the results is compared: '?' only
/// their forms (draws, memory that nobody wrote), '!' whole batches only (statistics of a batch), '>' no batch of one
/// sample (a squeeze, which captures take for what it does to several).
/// `args`: in the schema's order, or as name=value. Tensors are written as sizes, one a character: a letter, a digit,
/// or an expression in parentheses; '.' has no dim, B is the batch. Behind ':' stands what is in them, see `content`.
struct Example {
  std::string_view ops;
  std::string_view args;
};

using Letters = std::map<char, std::int64_t>;

[[nodiscard]] inline const Letters& ordinary_sizes() {
  static const Letters sizes{{'c', 4}, {'d', 2}, {'e', 3}, {'f', 4}, {'g', 2}, {'h', 6}, {'k', 3}, {'m', 2},
                             {'n', 3}, {'o', 3}, {'q', 8}, {'r', 2}, {'s', 4}, {'t', 5}, {'v', 7}, {'w', 5}};
  return sizes;
}

/// Sums of products of letters and numbers: "f*k+1".
[[nodiscard]] inline std::int64_t value_of(std::string_view text, const Letters& letters) {
  std::int64_t sum = 0, product = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      sum += std::exchange(product, 1);
    } else if (text[i] == '-') {
      product = -product;
    } else if (std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
      std::size_t length = 0;
      product *= std::stoll(std::string(text.substr(i)), &length);
      i += length - 1;
    } else if (text[i] != '*') {
      product *= letters.at(text[i]);
    }
  }
  return sum + product;
}

[[nodiscard]] inline std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// A call with values for its letters, but for the batch's.
class ExampleCall {
 public:
  ExampleCall(std::string_view op, std::string_view args, const Letters& letters) : letters_(letters) {
    for (; !op.empty() && std::string_view("?!>").find(op.front()) != std::string_view::npos; op.remove_prefix(1)) {
      compares_values_ = compares_values_ && op.front() != '?';
      compares_slices_ = compares_slices_ && op.front() != '!';
      of_one_sample_ = of_one_sample_ && op.front() != '>';
    }
    const auto dot = op.find('.');
    const std::string overload(dot == op.npos ? "" : op.substr(dot + 1));
    op_ = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + std::string(op.substr(0, dot))).c_str(),
                                                         overload.c_str());
    texts_.resize(op_->schema().arguments().size());
    std::size_t next = 0;
    for (const auto word : parts_of(args, ' ')) {
      const auto equals = word.find('=');
      const bool named = equals != word.npos && equals > 0;
      const auto at =
          named ? op_->schema().argumentIndexWithName(std::string(word.substr(0, equals))) : std::optional<int>(next++);
      if (!at || static_cast<std::size_t>(*at) >= texts_.size()) throw std::invalid_argument("no such argument");
      texts_[static_cast<std::size_t>(*at)] = named ? word.substr(equals + 1) : word;
    }
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i].empty() || !type_of(i).starts_with("Tensor")) continue;
      for (const auto item : items_of(i)) declare(item);
    }
    if (!anchor_) {  // factories: something must have the batch
      anchor_ = {case_.args.size(), 0};
      case_.args.push_back({{-1, 2}, 0, false, false, false});
    }
    case_.function = [this](Net& net, const Tensors& in) { return call(net, in); };
  }
  ExampleCall(const ExampleCall&) = delete;
  ExampleCall& operator=(const ExampleCall&) = delete;

  /// That the call's sizes and numbers are made of.
  [[nodiscard]] std::set<char> letters() const {
    std::set<char> used;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const auto type = type_of(i);
      if (type == "bool" || type == "str" || type == "float" || type == "ScalarType") continue;
      for (const auto item : texts_[i].empty() ? std::vector<std::string_view>() : items_of(i)) {
        const auto colon = item.find(':');
        const bool bounds = colon != item.npos && item[colon + 1] == 'i';
        std::string text(item.substr(0, colon));
        if (bounds) text += item.substr(colon + 2);
        for (const char letter : text) {
          if (letters_.contains(letter)) used.insert(letter);
        }
      }
    }
    return used;
  }
  [[nodiscard]] const Case& as_case() const { return case_; }
  [[nodiscard]] bool compares_values() const { return compares_values_; }
  [[nodiscard]] bool compares_slices() const { return compares_slices_; }
  [[nodiscard]] bool of_one_sample() const { return of_one_sample_; }

 private:
  enum class Leaf : std::uint8_t { kArgument, kParameter, kBuffer };

  [[nodiscard]] std::string type_of(std::size_t argument) const {
    auto type = op_->schema().arguments()[argument].real_type()->str();
    while (type.ends_with('?')) type.pop_back();
    return type;
  }

  [[nodiscard]] std::vector<std::string_view> items_of(std::size_t argument) const {
    auto text = texts_[argument];
    if (text.front() != '[') return {text};
    return parts_of(text.substr(1, text.size() - 2), ',');
  }

  [[nodiscard]] std::vector<std::int64_t> sizes_of(std::string_view shape) const {
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == '.') continue;
      std::string_view one = shape.substr(i, 1);
      if (shape[i] == '(') {
        one = shape.substr(i + 1, shape.find(')', i) - i - 1);
        i += one.size() + 1;
      }
      sizes.push_back(one == "B" ? -1 : value_of(one, letters_));
    }
    return sizes;
  }

  void declare(std::string_view text) {
    if (text == "_") return;
    const auto colon = text.find(':');
    const auto kind = colon == text.npos ? '.' : text[colon + 1];
    Arg arg{sizes_of(text.substr(0, colon))};
    if (kind == 'z') arg.sizes.push_back(2);
    if (kind == 'i' || kind == 'j') arg.classes = std::max<std::int64_t>(1, value_of(text.substr(colon + 2), letters_));
    if (kind == 'b' || kind == 'a' || kind == 'v') arg.classes = 2;
    arg.positive = kind == '+';
    arg.requires_grad = arg.classes == 0 && (colon == text.npos || text.back() != 'n');
    if (kind == 'r') {
      tensors_.push_back({Leaf::kBuffer, case_.buffers.size()});
      case_.buffers.push_back(torch::ones(arg.sizes, torch::kDouble));
      return;
    }
    if (const auto batch = batch_dim(arg); batch && !anchor_) anchor_ = {case_.args.size(), *batch};
    if (!batch_dim(arg) && arg.requires_grad) {
      tensors_.push_back({Leaf::kParameter, case_.parameters.size()});
      case_.parameters.push_back(arg.sizes);
    } else {
      tensors_.push_back({Leaf::kArgument, case_.args.size()});
      case_.args.push_back(arg);
    }
  }

  /// - numbers: '+' positive, 'u' between 0 and 1, 's' sorted, 'p' logarithms of probabilities, 'z' complex;
  /// - integers: 'i3' below 3, 'j3' below 3 as well, 'a' numbers of samples, 'b' truths, 'v' pivots without exchanges;
  /// - matrices: 'd' definite, 'l' lower triangles;
  /// - roles: 'r' a buffer of ones, 'w' to be written in place, 'n' (also last) without gradient.
  [[nodiscard]] static Tensor content(const Tensor& x, char kind) {
    const auto unit = [&] { return 2 * torch::eye(x.size(-1), torch::kDouble); };
    switch (kind) {
      case '+':
        return x.abs() + 0.1;
      case 'u':
        return x.sigmoid();
      case 'b':
        return x == 0;
      case 'z':
        return torch::view_as_complex(x);
      case 'd':
        return torch::matmul(x, x.transpose(-2, -1)) + unit();
      case 'l':
        return x.tril(-1) + unit();
      case 's':
        return std::get<0>(x.sort(-1));
      case 'p':
        return x.log_softmax(-1);
      case 'a':
        return torch::arange(x.size(0), torch::kLong);
      case 'v':
        return torch::ones_like(x, torch::kInt).cumsum(-1, torch::kInt);
      case 'w':
      case 'j':
        return x * 1;
      default:
        return x;
    }
  }

  [[nodiscard]] c10::IValue value_of_text(std::string_view text, const std::string& type,
                                          const Letters& letters) const {
    if (text == "_") return {};
    if (type == "bool") return text == "true";
    if (type == "str") return std::string(text);
    if (type == "ScalarType") return text == "long" ? at::kLong : text == "float" ? at::kFloat : at::kDouble;
    const bool is_double = text.find('.') != text.npos;
    if (type == "float" || is_double)
      return is_double ? std::stod(std::string(text)) : static_cast<double>(value_of(text, letters));
    return value_of(text, letters);
  }

  [[nodiscard]] Tensors call(Net& net, const Tensors& in) const {
    auto letters = letters_;
    letters['B'] = in[anchor_->first].size(anchor_->second);
    torch::jit::Stack stack;
    std::size_t next = 0;
    const auto tensor_of = [&](std::string_view text) {
      if (text == "_") return Tensor();
      const auto [leaf, index] = tensors_[next++];
      const auto colon = text.find(':');
      const auto& tensor = leaf == Leaf::kParameter ? net[index] : leaf == Leaf::kBuffer ? net.state(index) : in[index];
      return content(tensor, colon == text.npos ? '.' : text[colon + 1]);
    };
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const auto& argument = op_->schema().arguments()[i];
      const auto type = type_of(i);
      if (texts_[i].empty()) {
        stack.push_back(argument.default_value().value_or(c10::IValue()));
      } else if (type == "Tensor") {
        stack.emplace_back(tensor_of(texts_[i]));
      } else if (type == "Tensor[]") {
        c10::List<Tensor> list;
        for (const auto item : items_of(i)) list.push_back(tensor_of(item));
        stack.emplace_back(list);
      } else if (type == "Tensor?[]") {
        c10::List<std::optional<Tensor>> list;
        for (const auto item : items_of(i)) list.push_back(item == "_" ? std::nullopt : std::optional(tensor_of(item)));
        stack.emplace_back(list);
      } else if (texts_[i].front() == '[') {
        std::vector<std::int64_t> list;
        for (const auto item : items_of(i)) list.push_back(value_of(item, letters));
        stack.emplace_back(list);
      } else {
        stack.push_back(value_of_text(texts_[i], type, letters));
      }
    }
    op_->callBoxed(stack);
    return results_of(stack);
  }

  [[nodiscard]] Tensors results_of(const torch::jit::Stack& stack) const {
    Tensors results;
    const auto add = [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto real = tensor.is_complex() ? torch::view_as_real(tensor.resolve_conj()) : tensor;
      results.push_back(compares_values_ ? real : torch::zeros_like(real));
    };
    for (const auto& result : stack) {
      if (result.isTensor()) add(result.toTensor());
      if (result.isTensorList()) {
        for (const Tensor& tensor : result.toTensorList()) add(tensor);
      }
    }
    return results;
  }

  Letters letters_;
  std::optional<c10::OperatorHandle> op_;
  std::vector<std::string_view> texts_;                         ///< by argument, empty = its default
  std::vector<std::pair<Leaf, std::size_t>> tensors_;           ///< in the order of the text
  std::optional<std::pair<std::size_t, std::int64_t>> anchor_;  ///< argument and dim that have the batch
  Case case_;
  bool compares_values_ = true, compares_slices_ = true, of_one_sample_ = true;
};

}  // namespace autopar::test
