#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace autopar {

/// Whose value a checkpoint has of an object that the user keeps.
enum class KeptScope : std::uint8_t {
  kAllRanks,  ///< one that is equal on all ranks, which each save checks
  kPerRank,   ///< each rank's own
};
/// `model->keep("sampler", sampler, ap::kPerRank)`
inline constexpr KeptScope kPerRank = KeptScope::kPerRank;

/// bool, integers of up to 64 bits, float and double.
template <class T>
concept KeptNumber =
    (std::integral<T> && !std::is_const_v<T> && sizeof(T) <= 8) || std::same_as<T, float> || std::same_as<T, double>;

/// Saves and loads itself as the classes of libtorch do. The samplers of torch::data are such.
template <class T>
concept KeptAsArchive = requires(T& object, const T& same, torch::serialize::OutputArchive& out,
                                 torch::serialize::InputArchive& in) {
  same.save(out);
  object.load(in);
};

/// Saves and loads itself as bytes.
template <class T>
concept KeptAsText = requires(T& object, const T& same, const std::string& bytes) {
  { same.save() } -> std::same_as<std::string>;
  object.load(bytes);
};

namespace detail {
template <class T>
struct IsNumberVector : std::false_type {};
template <KeptNumber T>
struct IsNumberVector<std::vector<T>> : std::true_type {};
}  // namespace detail

/// What ParallelModule::keep takes.
template <class T>
concept Keepable = !std::is_const_v<T> && (KeptNumber<T> || std::is_enum_v<T> || std::same_as<T, std::string> ||
                                           detail::IsNumberVector<T>::value || std::same_as<T, at::Tensor> ||
                                           KeptAsArchive<T> || KeptAsText<T>);

namespace detail {

/// How a kept value is written. A value is loaded into an object of the same kind; integers of all sizes are one kind.
enum class KeptKind : std::uint8_t {
  kBool,
  kInteger,
  kFloat,
  kDouble,
  kBools,  ///< this and the next three: vectors
  kIntegers,
  kFloats,
  kDoubles,
  kString,
  kTensor,
  kArchive,  ///< KeptAsArchive
  kText,     ///< KeptAsText
};

/// An object of the user that is saved and loaded as bytes.
struct KeptObject {
  KeptKind kind = KeptKind::kBool;
  /// @throws CheckpointError if the value is larger than what is kept
  std::function<std::string()> save;
  /// Checks a value and returns a function that sets the object to it.
  /// @throws CheckpointError if the object cannot have this value; the object is unchanged
  std::function<std::function<void()>(const std::string& bytes)> load;
};

/// The largest value, in bytes.
inline constexpr std::size_t kMostKeptBytes = std::size_t{16} << 20;
/// @throws CheckpointError if it is larger
void require_kept_size(std::size_t bytes);

// Numbers as text: the shortest that is read back as the same number, in any locale.
[[nodiscard]] std::string kept_text(bool number);
[[nodiscard]] std::string kept_text(std::int64_t number);
[[nodiscard]] std::string kept_text(std::uint64_t number);
[[nodiscard]] std::string kept_text(float number);
[[nodiscard]] std::string kept_text(double number);
/// @throws CheckpointError if the text is no such number
void read_kept(std::string_view text, bool& number);
void read_kept(std::string_view text, std::int64_t& number);
void read_kept(std::string_view text, std::uint64_t& number);
void read_kept(std::string_view text, float& number);
void read_kept(std::string_view text, double& number);
[[noreturn]] void refuse_kept(std::string_view text);
/// The parts between commas; none of an empty text.
[[nodiscard]] std::vector<std::string_view> kept_items(std::string_view text);

[[nodiscard]] KeptObject kept_string(std::string& object);
[[nodiscard]] KeptObject kept_tensor(at::Tensor& object);
[[nodiscard]] std::string archived(const std::function<void(torch::serialize::OutputArchive&)>& save);
/// @throws CheckpointError if the bytes are no archive
[[nodiscard]] std::shared_ptr<torch::serialize::InputArchive> archive_of(const std::string& bytes);

/// The type of the same kind that has an overload above.
template <KeptNumber T>
using WideNumber = std::conditional_t<std::floating_point<T> || std::same_as<T, bool>, T,
                                      std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

template <KeptNumber T>
[[nodiscard]] std::string text_of_number(T number) {
  return kept_text(static_cast<WideNumber<T>>(number));
}

template <KeptNumber T>
[[nodiscard]] T number_in(std::string_view text) {
  WideNumber<T> wide{};
  read_kept(text, wide);
  const auto number = static_cast<T>(wide);
  if constexpr (std::integral<T>) {
    if (static_cast<WideNumber<T>>(number) != wide) refuse_kept(text);
  }
  return number;
}

template <KeptNumber T>
inline constexpr KeptKind kNumberKind = std::same_as<T, bool>     ? KeptKind::kBool
                                        : std::same_as<T, float>  ? KeptKind::kFloat
                                        : std::same_as<T, double> ? KeptKind::kDouble
                                                                  : KeptKind::kInteger;
template <KeptNumber T>
inline constexpr KeptKind kVectorKind = std::same_as<T, bool>     ? KeptKind::kBools
                                        : std::same_as<T, float>  ? KeptKind::kFloats
                                        : std::same_as<T, double> ? KeptKind::kDoubles
                                                                  : KeptKind::kIntegers;

template <KeptNumber T>
[[nodiscard]] KeptObject kept_vector(std::vector<T>& object) {
  const auto save = [&object] {
    std::string text;
    for (const T number : object) {
      if (!text.empty()) text += ',';
      text += text_of_number(number);
      require_kept_size(text.size());
    }
    return text;
  };
  const auto load = [&object](const std::string& text) {
    std::vector<T> numbers;
    for (const auto item : kept_items(text)) numbers.push_back(number_in<T>(item));
    return [&object, numbers = std::move(numbers)]() mutable { object = std::move(numbers); };
  };
  return {kVectorKind<T>, save, load};
}

/// @pre `object` outlives the result
template <Keepable T>
[[nodiscard]] KeptObject kept_object(T& object) {
  if constexpr (KeptNumber<T>) {
    return {kNumberKind<T>, [&object] { return text_of_number(object); },
            [&object](const std::string& text) { return [&object, number = number_in<T>(text)] { object = number; }; }};
  } else if constexpr (std::is_enum_v<T>) {
    using Number = std::underlying_type_t<T>;
    return {kNumberKind<Number>, [&object] { return text_of_number(static_cast<Number>(object)); },
            [&object](const std::string& text) {
              return [&object, number = number_in<Number>(text)] { object = static_cast<T>(number); };
            }};
  } else if constexpr (std::same_as<T, std::string>) {
    return kept_string(object);
  } else if constexpr (IsNumberVector<T>::value) {
    return kept_vector(object);
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return kept_tensor(object);
  } else if constexpr (KeptAsArchive<T>) {
    return {KeptKind::kArchive,
            [&object] {
              return archived([&object](torch::serialize::OutputArchive& out) { std::as_const(object).save(out); });
            },
            [&object](const std::string& bytes) {
              return [&object, archive = archive_of(bytes)] { object.load(*archive); };
            }};
  } else {
    return {KeptKind::kText, [&object] { return std::as_const(object).save(); },
            [&object](const std::string& bytes) { return [&object, bytes] { object.load(bytes); }; }};
  }
}

}  // namespace detail

}  // namespace autopar
