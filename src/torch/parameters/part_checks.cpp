#include "torch/parameters/part_checks.hpp"

#include <sstream>

#include <autopar/core/error.hpp>

namespace autopar::parameters {

namespace {

constexpr const char* kWaysOut =
    "model->norm(p), model->dot(a, b), model->clip_grad_norm_(max) and ap::clip_grad_norm_(model, handles, max) count "
    "each element once; model->gather(p) gives the whole value; ap::for_whole_parameters(model, fn) runs fn on each "
    "whole parameter, its gradient and its states";

std::string describe(const PartLayout& layout) { return "'" + layout.name + "' " + layout.description; }

[[noreturn]] void refuse_layouts(const std::string& op, const PartLayout& a, const PartLayout& b) {
  throw InvalidArgument(op + " of " + describe(a) + " and " + describe(b) +
                        ": their elements have other places in the whole. Take one of them whole with "
                        "model->gather(p), or both with ap::for_whole_parameters(model, fn)");
}

[[noreturn]] void refuse_window(const std::string& op, const PartOperand& part) {
  throw InvalidArgument(op + " writes " + describe(part.mark->layout()) +
                        " into a view of a larger tensor, which would be taken for a tensor of whole parameters. Keep "
                        "it in a tensor of its own (at::empty_like(p)), or take the whole parameter with "
                        "model->gather(p)");
}

bool is_window(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() > tensor.nbytes() && tensor.numel() > 0;
}

}  // namespace

void refuse_whole(const std::string& op, const PartLayout& layout) {
  throw InvalidArgument(op + " of " + describe(layout) +
                        ". It is no element-wise operator, so its result would be that of the part alone. " + kWaysOut);
}

void refuse_draw(const std::string& op, const PartLayout& layout) {
  throw InvalidArgument(op + " draws random numbers for " + describe(layout) +
                        ". Each rank would draw its own, so the copies and parts would no longer be those of one "
                        "parameter. ap::for_whole_parameters(model, fn) runs fn on each whole parameter on one rank: "
                        "copies stay equal even if fn draws");
}

void refuse_sizes(const std::string& op, const PartOperand& part, const PartOperand& other) {
  std::ostringstream message;
  const auto& layout = part.mark->layout();
  message << op << " of sizes " << part.tensor->sizes() << " and " << other.tensor->sizes() << ": " << describe(layout)
          << (layout.kind == PartLayout::Kind::kShard ? ", flat" : "")
          << ", and goes with tensors of as many elements only. A copy that was made before the first call has the "
             "whole parameter's: call model->prepare(arguments...) first, then copy model->owned_parameters(); or take "
             "the whole parameter with model->gather(p). Methods of the module run by model->call(&Net::method, "
             "arguments...). ap::for_whole_parameters(model, fn) runs fn on each whole parameter";
  throw InvalidArgument(message.str());
}

void refuse_set_data(const PartLayout& layout) {
  throw InvalidArgument("set_data of " + describe(layout) +
                        ": the model computes with the memory that the parameter has now. Write into it with "
                        "p.copy_(values) under torch::NoGradGuard");
}

PartMark* require_one_layout(const PartOperands& operands, c10::function_ref<std::string()> name) {
  const PartOperand* lead = nullptr;
  for (const auto& operand : operands) {
    if (operand.mark == nullptr) continue;
    if (lead == nullptr || (operand.is_part() && !lead->is_part())) lead = &operand;
  }
  if (lead == nullptr || !lead->is_part()) return lead == nullptr ? nullptr : lead->mark;
  for (const auto& other : operands) {
    if (&other == lead || other.is_number()) continue;
    if (other.tensor->sizes() != lead->tensor->sizes()) refuse_sizes(name(), *lead, other);
    if (other.mark != nullptr && other.mark != lead->mark && !other.mark->layout().matches(lead->mark->layout()))
      refuse_layouts(name(), lead->mark->layout(), other.mark->layout());
    if (other.mark == nullptr && other.is_written && is_window(*other.tensor)) refuse_window(name(), *lead);
  }
  return lead->mark;
}

}  // namespace autopar::parameters
