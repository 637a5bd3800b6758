#include "torch/device/cuda/recorded_graph.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <autopar/core/error.hpp>

namespace autopar::devices {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// @throws Error if a call of the runtime failed
void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears the error, which the runtime would return from the next call, too
  throw Error(std::string("CUDA refuses to ") + what + " a graph: " + cudaGetErrorString(status) +
              "; set cuda_graphs = off");
}

/// The memory of one or several graphs. While it lives, no other code gets the memory that their kernels write.
class GraphMemory {
 public:
  explicit GraphMemory(c10::DeviceIndex device) : device_(device) {
    // libtorch numbers its own graphs' pools from 1.
    static std::atomic<c10::CaptureId_t> made{0};
    id_ = {(c10::CaptureId_t{1} << 63) + ++made, 0};
  }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  ~GraphMemory() {
    for (; takers_ > 0; --takers_) allocator::releasePool(device_, id_);
  }

  /// From now on memory that is allocated for streams of this capture belongs to this object.
  void take(unsigned long long capture) {
    allocator::beginAllocateToPool(device_, id_, [capture](cudaStream_t stream) {
      cudaStreamCaptureStatus status{};
      unsigned long long id = 0;
      return cudaStreamGetCaptureInfo(stream, &status, &id) == cudaSuccess && status == cudaStreamCaptureStatusActive &&
             id == capture;
    });
    ++takers_;
    is_taking_ = true;
  }
  void end() {
    if (std::exchange(is_taking_, false)) allocator::endAllocateToPool(device_, id_);
  }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t id_{};
  int takers_ = 0;
  bool is_taking_ = false;
};

class RecordedGraph final : public DeviceRecording {
 public:
  RecordedGraph(c10::DeviceIndex device, const RecordedGraph* beside)
      : device_(device), memory_(beside != nullptr ? beside->memory_ : std::make_shared<GraphMemory>(device)) {}
  ~RecordedGraph() override {
    const c10::DeviceGuard here({c10::kCUDA, device_});
    if (runnable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(runnable_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
  }

  void record(cudaStream_t stream, const std::function<void()>& work) {
    // Relaxed mode: autograd's threads allocate memory and load kernels during the capture, which does not affect
    // queued work.
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin");
    try {
      cudaStreamCaptureStatus status{};
      unsigned long long capture = 0;
      require(cudaStreamGetCaptureInfo(stream, &status, &capture), "begin");
      memory_->take(capture);
      work();
    } catch (...) {
      end(stream);
      throw;
    }
    require(end(stream), "record");
    require(cudaGraphInstantiate(&runnable_, graph_, 0), "build");
  }

  /// Whether a node copies from or to host memory, or runs on the host: replays would see the data of the capture.
  [[nodiscard]] bool reads_host() const {
    std::size_t count = 0;
    require(cudaGraphGetNodes(graph_, nullptr, &count), "read");
    std::vector<cudaGraphNode_t> nodes(count);
    require(cudaGraphGetNodes(graph_, nodes.data(), &count), "read");
    for (auto* const node : nodes) {
      cudaGraphNodeType type{};
      require(cudaGraphNodeGetType(node, &type), "read");
      if (type == cudaGraphNodeTypeHost && !is_of_nccl(node)) return true;
      if (type != cudaGraphNodeTypeMemcpy) continue;
      cudaMemcpy3DParms copy{};
      require(cudaGraphMemcpyNodeGetParams(node, &copy), "read");
      if (!is_on_device(copy.srcPtr.ptr) || !is_on_device(copy.dstPtr.ptr)) return true;
    }
    return false;
  }

  void run() const override {
    require(cudaGraphLaunch(runnable_, c10::cuda::getCurrentCUDAStream(device_).stream()), "run");
  }

 private:
  cudaError_t end(cudaStream_t stream) {
    const auto status = cudaStreamEndCapture(stream, &graph_);
    if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
    memory_->end();
    return status;
  }

  /// NCCL hands what travels without the device's help to its own threads, in each run.
  static bool is_of_nccl(cudaGraphNode_t node) {
    cudaHostNodeParams called{};
    require(cudaGraphHostNodeGetParams(node, &called), "read");
    Dl_info where{};
    return dladdr(reinterpret_cast<void*>(called.fn), &where) != 0 && where.dli_fname != nullptr &&
           std::string_view(where.dli_fname).find("libnccl") != std::string_view::npos;
  }

  static bool is_on_device(const void* memory) {
    cudaPointerAttributes attributes{};
    require(cudaPointerGetAttributes(&attributes, memory), "read");
    return attributes.type == cudaMemoryTypeDevice;
  }

  c10::DeviceIndex device_;
  std::shared_ptr<GraphMemory> memory_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceRecording> record_graph(c10::Stream stream, const std::function<void()>& work,
                                              const DeviceRecording* beside) {
  const c10::StreamGuard here(stream);
  auto graph = std::make_unique<RecordedGraph>(stream.device_index(), dynamic_cast<const RecordedGraph*>(beside));
  graph->record(c10::cuda::CUDAStream(stream).stream(), work);
  if (graph->reads_host()) return nullptr;
  return graph;
}

}  // namespace autopar::devices
