#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <autopar/io/cache_folder.hpp>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::kernels {

/// Which of the algorithms that a device's library lists for a form of products was chosen, kept in a file: a later
/// process tries none. A line for each form; lines that are none are left out. One thread at a time.
class KeptAlgorithms {
 public:
  KeptAlgorithms() = default;
  /// @param folder  null: nothing is kept
  /// @param file    its name there: of one kind of devices and one version of their library
  KeptAlgorithms(std::shared_ptr<CacheFolder> folder, std::string file);

  /// @param listed  how many the library lists: a choice among others is none
  [[nodiscard]] std::optional<std::size_t> find(const ProductForm& form, std::size_t listed) const;
  /// Writes the file, with what other processes have added to it. @pre chosen < listed
  void keep(const ProductForm& form, std::size_t chosen, std::size_t listed);

 private:
  struct Choice {
    std::size_t chosen = 0, listed = 0;
  };
  void read();

  std::shared_ptr<CacheFolder> folder_;
  std::string file_;
  std::map<ProductForm, Choice> choices_;
};

}  // namespace autopar::kernels
