#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/DeviceType.h>

#include <autopar/capture/batch_type.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// Samples over which a batch norm in training mode normalises (DESIGN §5, batch statistics).
enum class BatchNormMode : std::uint8_t {
  kMicrobatch,  ///< by the slice; running statistics are pooled over all slices and updated once per call
  kExact        ///< by the whole batch: captured with all-reduces (CaptureOptions), else the operator mixes samples
};

struct AlgebraOptions {
  BatchNormMode batch_norm = BatchNormMode::kMicrobatch;
  /// Device that runs the program. It decides the saved bytes and the workspace of kernels (profiles only).
  c10::DeviceType device = c10::DeviceType::CPU;
};

struct OpDef;

/// One operator of a captured program with the types of its operands, as rules see it (op_def.hpp). Arguments are found
/// by name, since positions differ between overloads.
class OpCall {
 public:
  OpCall(const OpGraph& graph, const std::vector<BatchType>& types, const AlgebraOptions& options, OpId id);

  [[nodiscard]] const OpGraph& graph() const { return graph_; }
  [[nodiscard]] const AlgebraOptions& options() const { return options_; }
  [[nodiscard]] bool on_cuda() const { return options_.device == c10::DeviceType::CUDA; }
  [[nodiscard]] OpId id() const { return id_; }
  [[nodiscard]] const OpNode& node() const { return node_; }
  [[nodiscard]] const OpDef& def() const { return def_; }
  /// "add" for libtorch's add and its in-place twin; the whole name for others.
  [[nodiscard]] std::string_view base_name() const { return base_name_; }
  [[nodiscard]] const std::string& overload() const { return node_.op.schema().overload_name(); }

  /// Schema position of an argument, -1 if there is none of that name.
  [[nodiscard]] std::int32_t position(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return position(name) >= 0; }

  /// Tensors of an argument (of all arguments), undefined ones left out.
  [[nodiscard]] std::vector<ValueId> tensors(std::int32_t position) const;
  [[nodiscard]] std::vector<ValueId> tensors() const;
  /// First tensor of an argument, none if there is none.
  [[nodiscard]] ValueId tensor(std::string_view name) const;
  [[nodiscard]] ValueId first_tensor() const;

  [[nodiscard]] const BatchType& type(ValueId value) const { return types_[value.index()]; }
  [[nodiscard]] const std::vector<SizeExpr>& sizes(ValueId value) const { return graph_.value(value).sizes; }
  [[nodiscard]] std::int64_t rank(ValueId value) const { return static_cast<std::int64_t>(sizes(value).size()); }
  [[nodiscard]] const std::vector<ValueId>& results() const { return results_; }
  [[nodiscard]] const std::vector<SizeExpr>& result_sizes(std::size_t k = 0) const { return sizes(results_.at(k)); }
  [[nodiscard]] bool is_floating(ValueId value) const;

  [[nodiscard]] bool is_none(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t absent) const;
  [[nodiscard]] bool flag(std::string_view name, bool absent) const;
  [[nodiscard]] double number(std::string_view name, double absent) const;
  /// Elements of an int[] or int argument; nullopt for None or no such argument.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name) const;
  /// Expression of an integer argument (element), constant or growing with the batch.
  [[nodiscard]] std::optional<SizeExpr> expression(std::string_view name, std::int32_t element = -1) const;
  /// Whether an integer that grows with the batch is used as size or index.
  [[nodiscard]] bool has_batch_sizes() const;

  /// Position of the argument that is written in place, -1 if none is.
  [[nodiscard]] std::int32_t written_argument() const { return written_; }

 private:
  const OpGraph& graph_;
  const std::vector<BatchType>& types_;
  const AlgebraOptions& options_;
  OpId id_;
  const OpNode& node_;
  const OpDef& def_;
  std::string_view base_name_;
  std::int32_t written_ = -1;
  std::vector<ValueId> results_;
};

}  // namespace autopar
