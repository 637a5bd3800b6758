#include "hdf5_file.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include <hdf5.h>

namespace bert_data {
namespace {

static_assert(sizeof(hid_t) == sizeof(std::int64_t) && sizeof(herr_t) == sizeof(int));

/// Who calls HDF5 has it.
std::recursive_mutex& library() {
  static std::recursive_mutex mutex;
  return mutex;
}
using Lock = std::lock_guard<std::recursive_mutex>;

/// HDF5 prints errors unless told otherwise.
void be_silent() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// The innermost of what HDF5 has to say about its last failure.
std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_DOWNWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        if (error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
        return 0;
      },
      &text);
  return text.empty() ? "" : " (HDF5: " + text + ")";
}

int close_file(std::int64_t id) { return H5Fclose(id); }
int close_dataset(std::int64_t id) { return H5Dclose(id); }
int close_space(std::int64_t id) { return H5Sclose(id); }
int close_type(std::int64_t id) { return H5Tclose(id); }
int close_list(std::int64_t id) { return H5Pclose(id); }

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

Hdf5Handle::~Hdf5Handle() {
  const Lock lock(library());
  if (id_ >= 0) close_(id_);
}

Hdf5File Hdf5File::open(const std::filesystem::path& path) {
  const Lock lock(library());
  be_silent();
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), close_file);
  if (file.get() < 0) throw std::runtime_error(path.string() + ": not a whole HDF5 file that can be read" + reason());
  return {path, path, std::move(file)};
}

Hdf5File Hdf5File::create(const std::filesystem::path& path) {
  const Lock lock(library());
  be_silent();
  auto aside = path;
  aside += ".partial";
  Hdf5Handle file(H5Fcreate(aside.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), close_file);
  if (file.get() < 0) throw std::runtime_error(aside.string() + ": cannot make the file" + reason());
  return {path, aside, std::move(file)};
}

void Hdf5File::fail(const std::string& dataset, const std::string& what) const {
  throw std::runtime_error(path_.string() + ": dataset '" + dataset + "' " + what);
}

Hdf5Handle Hdf5File::opened(const std::string& dataset) const {
  Hdf5Handle handle(H5Dopen2(file_.get(), dataset.c_str(), H5P_DEFAULT), close_dataset);
  if (handle.get() < 0) fail(dataset, "is not there; shards of BERT pretraining data have it");
  return handle;
}

std::vector<std::int64_t> Hdf5File::shape(const std::string& dataset) const {
  const Lock lock(library());
  const auto handle = opened(dataset);
  const Hdf5Handle type(H5Dget_type(handle.get()), close_type), space(H5Dget_space(handle.get()), close_space);
  if (H5Tget_class(type.get()) != H5T_INTEGER) fail(dataset, "is not of integers");
  const int dims = H5Sget_simple_extent_ndims(space.get());
  if (dims < 0) fail(dataset, "has no shape" + reason());
  std::vector<hsize_t> sizes(static_cast<std::size_t>(dims));
  H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

std::vector<std::int32_t> Hdf5File::read(const std::string& dataset) const {
  const Lock lock(library());
  const auto count = count_of(shape(dataset));
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (count > kMost) fail(dataset, "has " + std::to_string(count) + " values, too many for one shard; cut it in parts");
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  if (H5Dread(opened(dataset).get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail(dataset, "cannot be read, the file is damaged" + reason());
  }
  return values;
}

void Hdf5File::write(const std::string& dataset, Type type, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int32_t>& values) {
  const Lock lock(library());
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  auto chunk = sizes;
  constexpr hsize_t kRows = 1024;
  chunk.front() = std::clamp<hsize_t>(chunk.front(), 1, kRows);
  constexpr unsigned kGzipLevel = 4;
  const Hdf5Handle list(H5Pcreate(H5P_DATASET_CREATE), close_list);
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), close_space);
  H5Pset_chunk(list.get(), static_cast<int>(chunk.size()), chunk.data());
  H5Pset_deflate(list.get(), kGzipLevel);
  const auto stored = type == Type::kInt8 ? H5T_STD_I8LE : H5T_STD_I32LE;
  const Hdf5Handle handle(
      H5Dcreate2(file_.get(), dataset.c_str(), stored, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
      close_dataset);
  if (handle.get() < 0 || H5Dwrite(handle.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail(dataset, "cannot be written" + reason());
  }
}

void Hdf5File::commit() {
  const Lock lock(library());
  if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0)
    throw std::runtime_error(path_.string() + ": cannot be written" + reason());
  std::filesystem::rename(written_, path_);
}

}  // namespace bert_data
