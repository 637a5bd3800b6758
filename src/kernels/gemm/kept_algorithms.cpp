#include "kernels/gemm/kept_algorithms.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace autopar::kernels {

namespace {

constexpr std::string_view kTitle = "products 4";  ///< and the version of what follows
constexpr std::size_t kNumbers = 14;

/// A form in numbers, for a line of the file.
std::array<std::int64_t, kNumbers> numbers_of(const ProductForm& form) {
  return {form.rows,
          form.inner,
          form.columns,
          form.pitch_a,
          form.pitch_b,
          form.pitch,
          form.a_by_columns ? 1 : 0,
          form.b_by_columns ? 1 : 0,
          form.has_bias ? 1 : 0,
          static_cast<std::int64_t>(form.type_a),
          static_cast<std::int64_t>(form.type_b),
          static_cast<std::int64_t>(form.type_to),
          form.alignment,
          form.left_free};
}

ProductForm form_of(const std::array<std::int64_t, kNumbers>& numbers) {
  const auto& [rows, inner, columns, pitch_a, pitch_b, pitch, a_by_columns, b_by_columns, has_bias, type_a, type_b,
               type_to, alignment, left_free] = numbers;
  return {rows,
          inner,
          columns,
          pitch_a,
          pitch_b,
          pitch,
          a_by_columns != 0,
          b_by_columns != 0,
          has_bias != 0,
          static_cast<c10::ScalarType>(type_a),
          static_cast<c10::ScalarType>(type_b),
          static_cast<c10::ScalarType>(type_to),
          alignment,
          left_free};
}

}  // namespace

KeptAlgorithms::KeptAlgorithms(std::shared_ptr<CacheFolder> folder, std::string file)
    : folder_(std::move(folder)), file_(std::move(file)) {
  read();
}

std::optional<std::size_t> KeptAlgorithms::find(const ProductForm& form, std::size_t listed) const {
  const auto at = choices_.find(form);
  if (at == choices_.end() || at->second.listed != listed) return std::nullopt;
  return at->second.chosen;
}

void KeptAlgorithms::keep(const ProductForm& form, std::size_t chosen, std::size_t listed) {
  if (!folder_) return;
  read();
  choices_[form] = {chosen, listed};
  std::ostringstream text;
  text << kTitle << '\n';
  for (const auto& [each, choice] : choices_) {
    text << choice.chosen << ' ' << choice.listed;
    for (const auto number : numbers_of(each)) text << ' ' << number;
    text << '\n';
  }
  folder_->write(file_, text.str());
}

// What is known already stays: another process may have chosen otherwise.
void KeptAlgorithms::read() {
  constexpr std::size_t kMostForms = 10000;
  const auto content = folder_ ? folder_->read(file_) : std::nullopt;
  if (!content) return;
  std::istringstream text(*content);
  std::string line;
  if (!std::getline(text, line) || line != kTitle) return;
  while (choices_.size() < kMostForms && std::getline(text, line)) {
    std::istringstream words(line);
    Choice choice;
    std::array<std::int64_t, kNumbers> numbers{};
    words >> choice.chosen >> choice.listed;
    for (auto& number : numbers) words >> number;
    if (!words || !(words >> std::ws).eof() || choice.chosen >= choice.listed) continue;
    const auto form = form_of(numbers);
    if (numbers_of(form) == numbers) choices_.try_emplace(form, choice);
  }
}

}  // namespace autopar::kernels
