#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <autopar/runtime/world.hpp>

#include "bert_data/pretraining_reader.hpp"
#include "models/bert.hpp"

/// What BERT learns from, on this rank's device: arguments of models::BertForPreTraining.
struct BertBatch {
  at::Tensor input_ids, segment_ids, input_mask;  ///< [samples, length]
  at::Tensor positions, labels;                   ///< [samples, predictions]
  at::Tensor next_sentence;                       ///< [samples]

  /// All zeros: enough to plan.
  static BertBatch of_sizes(std::int64_t samples, std::int64_t length, std::int64_t predictions) {
    const auto zeros = [&](std::initializer_list<std::int64_t> sizes) { return torch::zeros(sizes, torch::kLong); };
    return {zeros({samples, length}),      zeros({samples, length}),      zeros({samples, length}),
            zeros({samples, predictions}), zeros({samples, predictions}), zeros({samples})};
  }
};

/// A rank's share of the batches that a reader gives.
class BertBatches {
 public:
  BertBatches(const autopar::World& world, c10::Device device, bert_data::PretrainingReader::Options options)
      : reader_(std::move(options)), rank_(world.rank()), ranks_(world.size()), device_(device) {}

  [[nodiscard]] bert_data::PretrainingReader& reader() { return reader_; }
  /// @param samples  of all ranks together
  [[nodiscard]] BertBatch next(std::int64_t samples) {
    const auto batch = reader_.next(samples, samples * rank_ / ranks_, samples * (rank_ + 1) / ranks_);
    const auto tensor = [&](const std::vector<std::int64_t>& values, std::int64_t width) {
      auto shaped = torch::tensor(values, torch::kLong);
      return (width > 0 ? shaped.view({batch.rows, width}) : shaped).to(device_);
    };
    return {tensor(batch.input_ids, reader_.length()),   tensor(batch.segment_ids, reader_.length()),
            tensor(batch.input_mask, reader_.length()),  tensor(batch.positions, reader_.predictions()),
            tensor(batch.labels, reader_.predictions()), tensor(batch.next_sentence, 0)};
  }

 private:
  bert_data::PretrainingReader reader_;
  std::int64_t rank_, ranks_;
  c10::Device device_;
};
