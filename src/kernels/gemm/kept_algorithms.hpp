#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <autopar/io/cache_folder.hpp>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::kernels {

/// The chosen cuBLASLt algorithm of each product form, kept in a file so that a later process times none. The file has
/// a line for each form; invalid lines are ignored. One thread at a time.
class KeptAlgorithms {
 public:
  KeptAlgorithms() = default;
  /// @param folder  null: nothing is kept
  /// @param file    the file's name in the folder, for one kind of device and one version of its library
  KeptAlgorithms(std::shared_ptr<CacheFolder> folder, std::string file);

  /// @param listed  the number of algorithms that the library lists; a choice from a list of another length is ignored
  [[nodiscard]] std::optional<std::size_t> find(const ProductForm& form, std::size_t listed) const;
  /// Writes the file, including lines that other processes have added. @pre chosen < listed
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
