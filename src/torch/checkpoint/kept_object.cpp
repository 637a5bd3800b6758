#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <sstream>
#include <system_error>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/kept.hpp>

namespace autopar::detail {

namespace {

template <class Number>
std::string shortest_text(Number number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

template <class Number>
void read_whole(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) refuse_kept(text);
}

// ---------------------------------------------------------------- tensors: "Float 2,3\n" and the elements, row-major

constexpr const char* kUndefined = "Undefined";

std::optional<c10::ScalarType> scalar_type_named(std::string_view name) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    if (!c10::isQIntType(type) && name == c10::toString(type)) return type;
  }
  return std::nullopt;
}

std::string saved_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::string(kUndefined) + " \n";
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw CheckpointError(
        "a tensor that is sparse, quantized or without memory is not kept: keep the dense tensors "
        "that it consists of");
  }
  require_kept_size(tensor.nbytes());
  const at::NoGradGuard no_grad;
  const auto data = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  std::string bytes = std::string(c10::toString(data.scalar_type())) + ' ';
  for (std::int64_t dim = 0; dim < data.dim(); ++dim) {
    bytes += (dim == 0 ? "" : ",") + kept_text(data.size(dim));
  }
  bytes += '\n';
  bytes.append(static_cast<const char*>(data.data_ptr()), data.nbytes());
  return bytes;
}

/// Undefined if such a tensor was saved.
at::Tensor tensor_in(const std::string& bytes) {
  const auto line = std::string_view(bytes).substr(0, bytes.find('\n'));
  const auto space = line.find(' ');
  if (line.size() == bytes.size() || space == std::string_view::npos) throw CheckpointError("its tensor has no sizes");
  const auto data = std::string_view(bytes).substr(line.size() + 1);
  if (line.substr(0, space) == kUndefined && space + 1 == line.size() && data.empty()) return {};
  const auto type = scalar_type_named(line.substr(0, space));
  if (!type) throw CheckpointError("its tensor has the unknown type '" + std::string(line.substr(0, space)) + "'");
  std::vector<std::int64_t> sizes;
  for (const auto item : kept_items(line.substr(space + 1))) {
    sizes.push_back(number_in<std::int64_t>(item));
    if (sizes.back() < 0) refuse_kept(item);
  }
  std::size_t elements = std::ranges::count(sizes, 0) == 0 ? 1 : 0;
  for (const auto size : sizes) {
    if (elements == 0) break;
    if (static_cast<std::size_t>(size) > data.size() / elements) {  // so the product cannot overflow
      throw CheckpointError("its tensor has fewer bytes than its sizes say");
    }
    elements *= static_cast<std::size_t>(size);
  }
  if (elements * c10::elementSize(*type) != data.size()) {
    throw CheckpointError("its tensor has " + std::to_string(data.size()) + " bytes, which its sizes do not have");
  }
  auto tensor = at::empty(sizes, at::dtype(*type));
  if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
  return tensor;
}

/// Sets elements in place where the sizes allow it, so that views of the tensor see them.
void set_tensor(at::Tensor& object, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  if (!value.defined() || !object.defined())
    object = value;
  else if (object.sizes() == value.sizes() && object.is_non_overlapping_and_dense())
    object.detach().copy_(value);
  else
    object.set_data(value);
}

}  // namespace

void require_kept_size(std::size_t bytes) {
  if (bytes <= kMostKeptBytes) return;
  throw CheckpointError("it has " + std::to_string(bytes) + " bytes, and at most " + std::to_string(kMostKeptBytes) +
                        " are kept: make it a buffer of the module");
}

std::string kept_text(bool number) { return number ? "true" : "false"; }
std::string kept_text(std::int64_t number) { return shortest_text(number); }
std::string kept_text(std::uint64_t number) { return shortest_text(number); }
std::string kept_text(float number) { return shortest_text(number); }
std::string kept_text(double number) { return shortest_text(number); }

void read_kept(std::string_view text, bool& number) {
  if (text != "true" && text != "false") refuse_kept(text);
  number = text == "true";
}
void read_kept(std::string_view text, std::int64_t& number) { read_whole(text, number); }
void read_kept(std::string_view text, std::uint64_t& number) { read_whole(text, number); }
void read_kept(std::string_view text, float& number) { read_whole(text, number); }
void read_kept(std::string_view text, double& number) { read_whole(text, number); }

void refuse_kept(std::string_view text) {
  constexpr std::size_t kMostShown = 40;
  const auto shown = text.size() > kMostShown ? std::string(text.substr(0, kMostShown)) + "…" : std::string(text);
  throw CheckpointError("its value '" + shown + "' is none of its type");
}

std::vector<std::string_view> kept_items(std::string_view text) {
  std::vector<std::string_view> items;
  if (text.empty()) return items;
  for (std::size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    items.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  items.push_back(text);
  return items;
}

KeptObject kept_string(std::string& object) {
  const auto load = [&object](const std::string& bytes) {
    return [&object, bytes]() mutable { object = std::move(bytes); };
  };
  return {KeptKind::kString, [&object] { return object; }, load};
}

KeptObject kept_tensor(at::Tensor& object) {
  const auto load = [&object](const std::string& bytes) -> std::function<void()> {
    auto value = tensor_in(bytes);
    if (value.defined() && object.defined()) {
      if (value.scalar_type() != object.scalar_type()) {
        throw CheckpointError(std::string("its tensor is ") + c10::toString(value.scalar_type()) + ", this one is " +
                              c10::toString(object.scalar_type()));
      }
      value = value.to(object.device());
    }
    return [&object, value = std::move(value)] { set_tensor(object, value); };
  };
  return {KeptKind::kTensor, [&object] { return saved_tensor(object); }, load};
}

std::string archived(const std::function<void(torch::serialize::OutputArchive&)>& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

std::shared_ptr<torch::serialize::InputArchive> archive_of(const std::string& bytes) {
  auto archive = std::make_shared<torch::serialize::InputArchive>();
  try {
    archive->load_from(bytes.data(), bytes.size());
  } catch (const std::exception&) {
    throw CheckpointError("its bytes are no archive that torch::save makes");
  }
  return archive;
}

}  // namespace autopar::detail
