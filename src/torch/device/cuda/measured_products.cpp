#include "torch/device/cuda/measured_products.hpp"

#if __has_include(<cublasLt.h>)
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "torch/device/cuda/blas_lt.hpp"
#endif

namespace autopar {

#if __has_include(<cublasLt.h>)

namespace {

cudaDataType_t cuda_type(c10::ScalarType type) {
  return type == c10::kHalf ? CUDA_R_16F : type == c10::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// Products of one form. cuBLASLt's matrices have their columns side by side, ours their rows: to it `to` is [n, m], b
/// times a. What describes it is left to the end of the process, as the handle is: the library may end before us.
class ProductOfForm {
 public:
  ProductOfForm(const BlasLt& blas, cublasLtHandle_t handle, const ProductForm& form) : blas_(blas), handle_(handle) {
    const auto type = cuda_type(form.type), type_to = cuda_type(form.type_to);
    check(blas.create_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, form.b_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, form.a_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (form.has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(form.alignment));  // how it is aligned
    }
    a_ = matrix(type, form.rows, form.inner, form.pitch_a, form.a_by_columns);
    b_ = matrix(type, form.inner, form.columns, form.pitch_b, form.b_by_columns);
    to_ = matrix(type_to, form.rows, form.columns, form.pitch, false);
    find(static_cast<std::uint32_t>(form.alignment));
  }

  [[nodiscard]] bool is_there() const { return is_there_ && !algorithms_.empty(); }
  [[nodiscard]] std::size_t algorithms() const { return algorithms_.size(); }
  void keep(std::size_t algorithm) { algorithms_ = {algorithms_[algorithm]}; }

  [[nodiscard]] bool queue(const MatrixProduct& product, std::size_t algorithm = 0) {
    const float one = 1, kept = product.adds ? 1 : 0;
    if (product.bias.defined()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.const_data_ptr());
    auto* const to = product.to.data_ptr();
    return is_there_ &&
           blas_.multiply(handle_, product_, &one, product.b.const_data_ptr(), b_, product.a.const_data_ptr(), a_,
                          &kept, to, to_, to, to_, &algorithms_[algorithm], nullptr, 0,
                          c10::cuda::getCurrentCUDAStream(product.a.get_device()).stream()) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  void check(cublasStatus_t status) { is_there_ = is_there_ && status == CUBLAS_STATUS_SUCCESS; }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    if (is_there_) check(blas_.set_of_product(product_, what, &value, sizeof(value)));
  }
  [[nodiscard]] cublasLtMatrixLayout_t matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                                              std::int64_t pitch, bool by_columns) {
    cublasLtMatrixLayout_t made = nullptr;
    const auto [together, apart] = by_columns ? std::pair(rows, columns) : std::pair(columns, rows);
    check(blas_.create_matrix(&made, type, static_cast<std::uint64_t>(together), static_cast<std::uint64_t>(apart),
                              pitch));
    return made;
  }

  // In the order of the library, which expects the first to be the fastest. Without memory of their own, and with each
  // sum made in one place: in what order it is added depends on the form alone.
  void find(std::uint32_t alignment) {
    constexpr int kAsked = 16;
    constexpr std::size_t kMost = 8;
    cublasLtMatmulPreference_t wish = nullptr;
    check(blas_.create_wish(&wish));
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      if (is_there_) check(blas_.set_of_wish(wish, what, &value, sizeof(value)));
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0});
    want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      want(what, alignment);
    std::array<cublasLtMatmulHeuristicResult_t, kAsked> found{};
    int count = 0;
    if (is_there_) check(blas_.find(handle_, product_, b_, a_, to_, to_, wish, kAsked, found.data(), &count));
    for (int i = 0; is_there_ && i < count && algorithms_.size() < kMost; ++i) {
      const auto& each = found[static_cast<std::size_t>(i)];
      if (each.state == CUBLAS_STATUS_SUCCESS && each.workspaceSize == 0 && sums_in_one_place(each.algo))
        algorithms_.push_back(each.algo);
    }
    if (wish != nullptr) blas_.destroy_wish(wish);
  }

  [[nodiscard]] bool sums_in_one_place(const cublasLtMatmulAlgo_t& algorithm) const {
    const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t what, auto& value) {
      std::size_t written = 0;
      return blas_.get_of_algorithm(&algorithm, what, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS;
    };
    std::int32_t parts = 0;
    std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    return get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) && get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction) &&
           parts <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
  }

  const BlasLt& blas_;
  cublasLtHandle_t handle_;
  bool is_there_ = true;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, to_ = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

// ---------------------------------------------------------------- which algorithm

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

/// Sets the least milliseconds of some rounds. In turns, so that what else the device does and how warm it is meets all
/// alike; the round before lets the host run ahead of the device. @return false if something fails
bool time_in_turns(ProductOfForm& form, const MatrixProduct& product, std::vector<AlgorithmTrial>& trials) {
  constexpr std::size_t kRounds = 3;
  const auto stream = c10::cuda::getCurrentCUDAStream(product.a.get_device()).stream();
  std::vector<std::size_t> timed;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (trials[i].has_same_bits) timed.push_back(i);
  }
  if (timed.size() < 2) return true;
  for (const auto i : timed) {
    if (!form.queue(product, i)) return false;
  }
  std::vector<StreamStopwatch> watches(kRounds * timed.size());
  for (std::size_t k = 0; k < watches.size(); ++k) {
    if (!watches[k].start(stream) || !form.queue(product, timed[k % timed.size()]) || !watches[k].stop(stream))
      return false;
  }
  for (const auto i : timed) trials[i].milliseconds = std::numeric_limits<float>::max();
  for (std::size_t k = 0; k < watches.size(); ++k) {
    const auto passed = watches[k].milliseconds();
    if (!passed) return false;
    auto& least = trials[timed[k % timed.size()]].milliseconds;
    least = std::min(least, *passed);
  }
  return true;
}

std::int64_t extent_of(const at::Tensor& matrix) {
  return 1 + (matrix.size(0) - 1) * matrix.stride(0) + (matrix.size(1) - 1) * matrix.stride(1);
}

/// Compares the bits of results of numbers of our own: with those of a program, as a gradient of ones, sums may be
/// exact in any order. @param first, other  memory like the product's result
std::vector<AlgorithmTrial> compared(ProductOfForm& form, const MatrixProduct& product, const at::Tensor& first,
                                     const at::Tensor& other) {
  constexpr std::uint64_t kSeed = 20;
  auto generator = at::globalContext().defaultGenerator(product.a.device()).clone();
  generator.set_current_seed(kSeed);
  const auto numbers = at::empty({std::max(extent_of(product.a), extent_of(product.b))}, product.a.options());
  numbers.uniform_(-1, 1, generator);
  const auto random = [&](const at::Tensor& like) {
    return like.defined() ? numbers.as_strided(like.sizes(), like.strides()) : like;
  };
  MatrixProduct trial{random(product.a), random(product.b), random(product.bias), first};
  std::vector<AlgorithmTrial> trials(form.algorithms());
  trials[0].has_same_bits = form.queue(trial);
  trial.to = other;
  const auto wanted = as_bits(first), made = as_bits(other);
  for (std::size_t i = 1; i < trials.size(); ++i)
    trials[i].has_same_bits = form.queue(trial, i) && !made.bitwise_xor_(wanted).any().item<bool>();
  return trials;
}

/// Times what makes the same bits on the product's own factors. The first algorithm where something fails.
std::size_t measured_choice(ProductOfForm& form, const MatrixProduct& product) {
  if (form.algorithms() == 1) return 0;
  const auto scratch = [&] {
    return at::empty_strided(product.to.sizes(), product.to.strides(), product.to.options());
  };
  const auto other = scratch();
  auto trials = compared(form, product, product.adds ? scratch() : product.to, other);
  if (time_in_turns(form, {product.a, product.b, product.bias, other}, trials)) return fastest_alike(trials);
  static_cast<void>(cudaGetLastError());
  return 0;
}

bool is_captured(c10::DeviceIndex device) {
  auto status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device).stream(), &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

void choose_algorithm(ProductOfForm& form, const MatrixProduct& product) {
  std::size_t chosen = 0;
  try {
    if (!is_captured(product.a.get_device())) chosen = measured_choice(form, product);
  } catch (const c10::OutOfMemoryError&) {  // no room to try
  }
  form.keep(chosen);
}

/// A lock for each device: behind one of all, a thread could wait for another whose device waits for its own.
struct ProductsOfDevice {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<ProductForm, ProductOfForm> of_forms;
};

}  // namespace

struct MeasuredProducts::Devices {
  std::mutex mutex;
  std::optional<BlasLt> blas;
  std::map<c10::DeviceIndex, ProductsOfDevice> all;
};

MeasuredProducts::MeasuredProducts() : devices_(std::make_unique<Devices>()) {}

bool MeasuredProducts::queue(const MatrixProduct& product, const ProductForm& form) {
  const at::AutoDispatchBelowADInplaceOrView no_history;
  const c10::cuda::CUDAGuard guard(product.a.device());
  cudaSetDevice(product.a.get_device());  // the library works in the thread's context, which a new thread has not
  std::unique_lock<std::mutex> lock(devices_->mutex);
  if (!devices_->blas) devices_->blas.emplace();
  const auto& blas = *devices_->blas;
  auto& own = devices_->all[product.a.get_device()];
  lock.unlock();
  if (!blas.is_there) return false;
  const std::lock_guard<std::mutex> one_at_a_time(own.mutex);
  if (own.handle == nullptr && blas.create(&own.handle) != CUBLAS_STATUS_SUCCESS) return false;
  const auto [at, is_new] = own.of_forms.try_emplace(form, blas, own.handle, form);
  auto& known = at->second;
  if (is_new && known.is_there()) choose_algorithm(known, product);
  return known.is_there() && known.queue(product);
}

#else

struct MeasuredProducts::Devices {};

MeasuredProducts::MeasuredProducts() = default;

bool MeasuredProducts::queue(const MatrixProduct&, const ProductForm&) { return false; }

#endif

MeasuredProducts::~MeasuredProducts() = default;

}  // namespace autopar
