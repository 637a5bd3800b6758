#include "kernels/gemm/measured_products.hpp"

#if __has_include(<cublasLt.h>)
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "kernels/gemm/kept_algorithms.hpp"
#include "kernels/gemm/product_of_form.hpp"
#endif

namespace autopar::kernels {

#if __has_include(<cublasLt.h>)

namespace {

at::Tensor as_bits(const at::Tensor& numbers) {
  return numbers.view(numbers.element_size() == 2 ? c10::kShort : c10::kInt);
}

/// The time between two places in a stream.
class StreamStopwatch {
 public:
  StreamStopwatch() { are_there_ = cudaEventCreate(&begin_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess; }
  ~StreamStopwatch() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  StreamStopwatch(const StreamStopwatch&) = delete;
  StreamStopwatch& operator=(const StreamStopwatch&) = delete;

  [[nodiscard]] bool start(cudaStream_t stream) { return are_there_ && cudaEventRecord(begin_, stream) == cudaSuccess; }
  [[nodiscard]] bool stop(cudaStream_t stream) { return cudaEventRecord(end_, stream) == cudaSuccess; }
  /// Waits for its end. Nothing if the device fails.
  [[nodiscard]] std::optional<float> milliseconds() {
    float passed = 0;
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&passed, begin_, end_) != cudaSuccess)
      return std::nullopt;
    return passed;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool are_there_ = false;
};

/// Queues each of these algorithms once, from the last to the first if `backwards`. @param watches  one for each;
/// empty: none
bool queue_round(ProductOfForm& form, const MatrixProduct& product, const std::vector<std::size_t>& algorithms,
                 bool backwards, std::span<StreamStopwatch> watches) {
  const auto stream = c10::cuda::getCurrentCUDAStream(product.a.get_device()).stream();
  for (std::size_t k = 0; k < algorithms.size(); ++k) {
    const auto at = backwards ? algorithms.size() - 1 - k : k;
    if (!watches.empty() && !watches[at].start(stream)) return false;
    if (!form.queue(product, algorithms[at])) return false;
    if (!watches.empty() && !watches[at].stop(stream)) return false;
  }
  return true;
}

/// The milliseconds of each algorithm in rounds back and forth, so that what else the device does meets all
/// alike. Nothing if something fails.
std::optional<std::vector<std::vector<float>>> timed_rounds(ProductOfForm& form, const MatrixProduct& product,
                                                            const std::vector<std::size_t>& algorithms,
                                                            std::size_t rounds) {
  const auto count = algorithms.size();
  std::vector<StreamStopwatch> watches(rounds * count);
  for (std::size_t r = 0; r < rounds; ++r) {
    if (!queue_round(form, product, algorithms, r % 2 == 1, std::span(watches).subspan(r * count, count)))
      return std::nullopt;
  }
  std::vector<std::vector<float>> made(count);
  for (std::size_t k = 0; k < watches.size(); ++k) {
    const auto passed = watches[k].milliseconds();
    if (!passed) return std::nullopt;
    made[k % count].push_back(*passed);
  }
  return made;
}

float median_of(std::vector<float> numbers) {
  std::ranges::sort(numbers);
  return (numbers[(numbers.size() - 1) / 2] + numbers[numbers.size() / 2]) / 2;
}

/// Sets the median milliseconds of some rounds, behind an untimed one. @return false if something fails
bool time_in_turns(ProductOfForm& form, const MatrixProduct& product, std::vector<AlgorithmTrial>& trials) {
  constexpr std::size_t kRounds = 4;
  std::vector<std::size_t> timed;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (trials[i].has_same_bits) timed.push_back(i);
  }
  if (timed.size() < 2) return true;
  if (!queue_round(form, product, timed, false, {})) return false;
  const auto times = timed_rounds(form, product, timed, kRounds);
  if (!times) return false;
  for (std::size_t k = 0; k < timed.size(); ++k) {
    trials[timed[k]].milliseconds = median_of((*times)[k]);
    trials[timed[k]].has_large_tiles = form.has_large_tiles(timed[k]);
  }
  return true;
}

std::int64_t extent_of(const at::Tensor& matrix) {
  return 1 + (matrix.size(0) - 1) * matrix.stride(0) + (matrix.size(1) - 1) * matrix.stride(1);
}

at::Tensor like_result(const MatrixProduct& product) {
  return at::empty_strided(product.to.sizes(), product.to.strides(), product.to.options());
}

/// Compares the bits of these algorithms' results with those of the first, of numbers of our own: with those of a
/// program, as a gradient of ones, sums may be exact in any order. @param other  memory like the product's result
std::vector<AlgorithmTrial> compared(ProductOfForm& form, const MatrixProduct& product,
                                     const std::vector<std::size_t>& algorithms, const at::Tensor& other) {
  constexpr std::uint64_t kSeed = 20;
  auto generator = at::globalContext().defaultGenerator(product.a.device()).clone();
  generator.set_current_seed(kSeed);
  const bool in_8_bits = product.a.element_size() == 1;
  auto options = product.a.options();
  if (in_8_bits) options = options.dtype(c10::kBFloat16);
  const auto numbers = at::empty({std::max(extent_of(product.a), extent_of(product.b))}, options);
  numbers.uniform_(-1, 1, generator);
  const auto random = [&](const at::Tensor& like) {
    return like.defined() ? numbers.to(like.scalar_type()).as_strided(like.sizes(), like.strides()) : like;
  };
  const auto first = product.adds ? like_result(product) : product.to;
  auto trial = product;
  trial.a = random(product.a);
  trial.b = random(product.b);
  trial.bias = random(product.bias);
  trial.to = first;
  trial.adds = false;
  std::vector<AlgorithmTrial> trials(form.algorithms());
  trials[0].has_same_bits = form.queue(trial);
  trial.to = other;
  const auto wanted = as_bits(first), made = as_bits(other);
  for (const auto i : algorithms)
    trials[i].has_same_bits = form.queue(trial, i) && !made.bitwise_xor_(wanted).any().item<bool>();
  return trials;
}

/// Times what makes the same bits on the product's own factors. Nothing if something fails.
std::optional<std::size_t> measured_choice(ProductOfForm& form, const MatrixProduct& product) {
  std::vector<std::size_t> others(form.algorithms() - 1);
  std::iota(others.begin(), others.end(), 1);
  const auto other = like_result(product);
  auto trials = compared(form, product, others, other);
  auto timed = product;
  timed.to = other;
  timed.adds = false;
  if (time_in_turns(form, timed, trials)) return fastest_alike(trials);
  static_cast<void>(cudaGetLastError());
  return std::nullopt;
}

/// Bits do not hang on what a file says.
bool makes_bits_of_first(ProductOfForm& form, const MatrixProduct& product, std::size_t algorithm) {
  return algorithm == 0 || compared(form, product, {algorithm}, like_result(product))[algorithm].has_same_bits;
}

bool is_captured(c10::DeviceIndex device) {
  auto status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device).stream(), &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

/// "products-NVIDIA_H100_80GB_HBM3-130100"; nothing of a device that fails.
std::optional<std::string> file_of(const BlasLt& blas, c10::DeviceIndex device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return std::nullopt;
  std::string name = properties.name;
  for (auto& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  std::ostringstream file;
  file << "products-" << name << '-' << blas.version();
  return file.str();
}

/// A lock for each device: behind one of all, a thread could wait for another whose device waits for its own.
struct ProductsOfDevice {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<ProductForm, ProductOfForm> of_forms;
  KeptAlgorithms kept;
};

void choose_algorithm(ProductsOfDevice& own, const ProductForm& form, ProductOfForm& made,
                      const MatrixProduct& product) {
  const auto listed = made.algorithms();
  std::size_t chosen = 0;
  try {
    if (listed > 1 && !is_captured(product.a.get_device())) {
      if (const auto kept = own.kept.find(form, listed)) {
        if (makes_bits_of_first(made, product, *kept)) chosen = *kept;
      } else if (const auto measured = measured_choice(made, product)) {
        chosen = *measured;
        own.kept.keep(form, chosen, listed);
      }
    }
  } catch (const c10::OutOfMemoryError&) {  // no room to try
  }
  made.keep(chosen);
}

}  // namespace

struct MeasuredProducts::Devices {
  std::mutex mutex;
  std::shared_ptr<CacheFolder> folder;
  std::optional<BlasLt> blas;
  std::map<c10::DeviceIndex, ProductsOfDevice> all;
};

MeasuredProducts::MeasuredProducts() : devices_(std::make_unique<Devices>()) {}

bool MeasuredProducts::queue(const MatrixProduct& product) {
  const auto of_product = form_of_product(product);
  if (!of_product) return false;
  const auto& form = *of_product;
  const at::AutoDispatchBelowADInplaceOrView no_history;
  const c10::cuda::CUDAGuard guard(product.a.device());
  cudaSetDevice(product.a.get_device());  // the library works in the thread's context, which a new thread has not
  std::unique_lock<std::mutex> lock(devices_->mutex);
  if (!devices_->blas) devices_->blas.emplace();
  const auto& blas = *devices_->blas;
  const auto [place, is_first] = devices_->all.try_emplace(product.a.get_device());
  auto& own = place->second;
  if (is_first && blas.is_there) {
    if (auto file = file_of(blas, product.a.get_device()))
      own.kept = KeptAlgorithms(devices_->folder, *std::move(file));
  }
  lock.unlock();
  if (!blas.is_there) return false;
  const std::lock_guard<std::mutex> one_at_a_time(own.mutex);
  if (own.handle == nullptr && blas.create(&own.handle) != CUBLAS_STATUS_SUCCESS) return false;
  const auto [at, is_new] = own.of_forms.try_emplace(form, blas, own.handle, form);
  auto& known = at->second;
  if (is_new && known.is_there()) choose_algorithm(own, form, known, product);
  return known.is_there() && known.queue(product);
}

void MeasuredProducts::keep_in(const std::shared_ptr<CacheFolder>& folder) {
  const std::lock_guard<std::mutex> lock(devices_->mutex);
  devices_->folder = folder;
}

#else

struct MeasuredProducts::Devices {};

MeasuredProducts::MeasuredProducts() = default;

bool MeasuredProducts::queue(const MatrixProduct&) { return false; }
void MeasuredProducts::keep_in(const std::shared_ptr<CacheFolder>&) {}

#endif

MeasuredProducts::~MeasuredProducts() = default;

}  // namespace autopar::kernels
