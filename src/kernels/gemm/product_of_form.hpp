#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <c10/cuda/CUDAStream.h>

#include "kernels/gemm/blas_lt.hpp"
#include "kernels/gemm/matrix_product.hpp"

namespace autopar::kernels {

inline cudaDataType_t cuda_type(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case c10::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    case c10::kHalf:
      return CUDA_R_16F;
    case c10::kBFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

/// Products of one form. cuBLASLt's matrices are column-major, ours are row-major: for cuBLASLt `to` is [n, m] = b
/// times a. Descriptors and the handle are never destroyed, because the library may be unloaded before our destructors
/// run.
class ProductOfForm {
 public:
  ProductOfForm(const BlasLt& blas, cublasLtHandle_t handle, const ProductForm& form) : blas_(blas), handle_(handle) {
    const auto type_to = cuda_type(form.type_to);
    check(blas.create_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, form.b_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, form.a_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (form.has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_to));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(form.alignment));  // a pointer with the
                                                                                              // form's alignment
    }
    if (form.left_free > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors_without(form.left_free));
    a_ = matrix(cuda_type(form.type_a), form.rows, form.inner, form.pitch_a, form.a_by_columns);
    b_ = matrix(cuda_type(form.type_b), form.inner, form.columns, form.pitch_b, form.b_by_columns);
    to_ = matrix(type_to, form.rows, form.columns, form.pitch, false);
    find(static_cast<std::uint32_t>(form.alignment));
  }

  [[nodiscard]] bool is_there() const { return is_there_ && !algorithms_.empty(); }
  [[nodiscard]] std::size_t algorithms() const { return algorithms_.size(); }
  /// See AlgorithmTrial.
  [[nodiscard]] bool has_large_tiles(std::size_t algorithm) const {
    std::uint32_t tile = 0;
    return get(algorithms_[algorithm], CUBLASLT_ALGO_CONFIG_TILE_ID, tile) &&
           (tile == CUBLASLT_MATMUL_TILE_128x256 || tile == CUBLASLT_MATMUL_TILE_256x128);
  }
  void keep(std::size_t algorithm) { algorithms_ = {algorithms_[algorithm]}; }

  [[nodiscard]] bool queue(const MatrixProduct& product, std::size_t algorithm = 0) {
    const float one = 1, kept = product.adds ? 1 : 0;
    if (product.bias.defined()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.const_data_ptr());
    if (product.unit_a.defined()) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.unit_b.const_data_ptr());
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.unit_a.const_data_ptr());
    }
    auto* const to = product.to.data_ptr();
    return is_there_ &&
           blas_.multiply(handle_, product_, &one, product.b.const_data_ptr(), b_, product.a.const_data_ptr(), a_,
                          &kept, to, to_, to, to_, &algorithms_[algorithm], nullptr, 0,
                          c10::cuda::getCurrentCUDAStream(product.a.get_device()).stream()) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  [[nodiscard]] static std::int32_t multiprocessors_without(std::int64_t left_free) {
    int device = 0, all = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
    return std::max(1, all - static_cast<std::int32_t>(left_free));
  }
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

  // Algorithms in the library's order, which puts the one expected to be fastest first. They use no workspace and no
  // split-K, so the order of additions depends on the form alone.
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

  template <class T>
  [[nodiscard]] bool get(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what,
                         T& value) const {
    std::size_t written = 0;
    return blas_.get_of_algorithm(&algorithm, what, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS;
  }
  [[nodiscard]] bool sums_in_one_place(const cublasLtMatmulAlgo_t& algorithm) const {
    std::int32_t parts = 0;
    std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    return get(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) &&
           get(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction) && parts <= 1 &&
           reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
  }

  const BlasLt& blas_;
  cublasLtHandle_t handle_;
  bool is_there_ = true;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, to_ = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace autopar::kernels
