#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/io/checkpoint_index.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/torch/checkpoint_format.hpp>

#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/pieces.hpp"

namespace autopar::checkpoint {

/// A piece as it lies in a data file: flat unless it is a whole tensor.
struct StoredPiece {
  Rank writer;
  Section section = Section::kModel;
  TensorEntry entry;
};

/// What a save writes, agreed on by all ranks before any byte is written. Knows no tensors, so that a thread can use it
/// while the program goes on.
struct SavePlan {
  std::filesystem::path folder;
  CheckpointFormat format = CheckpointFormat::kSingleFile;
  CheckpointIndex index;            ///< complete but for bytes and checksums of files
  std::vector<StoredPiece> pieces;  ///< in the order in which they are written

  [[nodiscard]] Bytes bytes() const;
  [[nodiscard]] Bytes bytes_of(Rank writer) const;
};

/// @param items  those that exist
[[nodiscard]] SavePlan save_plan(std::filesystem::path folder, CheckpointFormat format, std::int64_t generation,
                                 const std::vector<CheckpointItem>& items, const std::vector<Piece>& pieces,
                                 std::map<std::string, std::string> metadata);

/// The data files of one rank. Does not communicate; one thread at a time.
class RankFiles {
 public:
  /// @throws CheckpointError if a file cannot be made
  RankFiles(const SavePlan& plan, Rank self);
  /// Writes this rank's next piece. @param data  dense, on the CPU
  /// @throws CheckpointError, for example on a full disk
  void write(const at::Tensor& data);
  /// Gives the files their names, synced. @return what they are, in the order of their names
  std::vector<CheckpointFile> finish();

 private:
  std::vector<Section> order_;  ///< of this rank's pieces
  std::size_t next_ = 0;
  struct File {
    std::string name;
    SafetensorsWriter writer;
  };
  std::map<Section, File> files_;
};

/// Names the files of all ranks in the folder's index.
/// @pre on rank 0, all ranks have finished their files
/// @throws CheckpointError if a file is not there, or the index cannot be written
void publish(SavePlan plan);
/// Whether the files of all ranks are there.
[[nodiscard]] bool all_files_are_there(const SavePlan& plan);

}  // namespace autopar::checkpoint
