#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>
#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/torch/optim/fused.hpp>

#include "models/mlp.hpp"
#include "models/resnet.hpp"
#include "models/transformer.hpp"

namespace train {

/// What is trained, on which data, and how much arithmetic that is.
struct Work {
  std::string name;
  std::int64_t batch = 0;  ///< samples of a rank
  autopar::Precision precision = autopar::Precision::kModule;
  std::string optimizer;  ///< adamw | sgd
  double flops = 0;       ///< of a sample's forward and backward, matrix products alone
  std::string formula{};  ///< of `flops`
  at::Tensor x{}, y{};    ///< a rank's batch, on its device
};

struct Request {
  std::string work;
  std::optional<autopar::Precision> precision;  ///< none: the work's own
  std::int64_t batch = 0;                       ///< 0: the work's own
  std::int64_t layers = 0;                      ///< of a transformer; 0: the work's own
  bool small = false;                           ///< seconds on two cores
  bool written_attention = false;
  c10::Device device = c10::kCPU;
};

namespace detail {

inline Work transformer_work(const Request& request, const models::TransformerSize& size, std::int64_t batch) {
  Work work{request.work, request.batch > 0 ? request.batch : batch, autopar::Precision::kBf16, "adamw"};
  const auto width = static_cast<double>(size.width), layers = static_cast<double>(size.layers);
  const auto length = static_cast<double>(size.length);
  const double parameters = 12 * layers * width * width + static_cast<double>(size.words) * width;
  work.flops = (6 * parameters + 12 * layers * width * length) * length;
  work.formula = "(6 (12 L h^2 + V h) + 12 L h s) s a sample";
  const auto text = torch::randint(size.words, {work.batch, size.length + 1}, torch::kLong).to(request.device);
  work.x = text.slice(1, 0, -1).contiguous();
  work.y = text.slice(1, 1).contiguous();
  return work;
}

inline Work resnet_work(const Request& request, const models::ResNetSize& size, std::int64_t batch,
                        std::int64_t pixels) {
  Work work{request.work, request.batch > 0 ? request.batch : batch, autopar::Precision::kBf16, "sgd"};
  work.flops = 6 * size.multiply_adds(pixels);
  work.formula = "6 x multiply-adds of the forward a sample";
  work.x = torch::randn({work.batch, 3, pixels, pixels}).to(request.device).contiguous(at::MemoryFormat::ChannelsLast);
  work.y = torch::randint(size.classes, {work.batch}, torch::kLong).to(request.device);
  return work;
}

inline Work mlp_work(const Request& request, std::int64_t width, std::int64_t layers, std::int64_t batch) {
  Work work{request.work, request.batch > 0 ? request.batch : batch, autopar::Precision::kTf32, "sgd"};
  work.flops = 6 * static_cast<double>(layers * width * width);
  work.formula = "6 L h^2 a sample";
  work.x = torch::randn({work.batch, width}).to(request.device);
  work.y = torch::randn({work.batch, width}).to(request.device);
  return work;
}

inline models::TransformerSize transformer_size(const Request& request) {
  models::TransformerSize size;
  if (request.work != "gpt") size = {30'522, 2048, request.work == "bert" ? 96 : 24, 32, 512, false, 0.1};
  size.written_attention = request.written_attention;
  if (request.layers > 0) size.layers = request.layers;
  if (request.small) {
    const auto [words, width, layers, heads, length] = std::array<std::int64_t, 5>{1000, 256, 4, 4, 128};
    size = {words, width, layers, heads, length, size.causal, size.dropout, size.written_attention};
  }
  return size;
}

inline models::ResNetSize resnet_size(const Request& request) {
  if (request.small) return {{1, 1, 1, 1}, true, request.work == "resnet50" ? 16 : 32, 100};
  return models::resnet_size(request.work);
}

}  // namespace detail

inline const std::vector<std::string> kWorks{"gpt", "bert24", "bert", "resnet50", "resnet152x4", "resnet152x8", "mlp"};

/// Calls `run(work, make)`, where `make()` gives a module whose forward takes `work.x` and `work.y`. Low precision is
/// that of the reference on GPUs; on CPUs the modules' own, unless asked for.
template <class Run>
void with_work(const Request& request, const Run& run) {
  const auto settled = [&](Work work) {
    if (request.device.is_cpu()) work.precision = autopar::Precision::kModule;
    if (request.precision) work.precision = *request.precision;
    return work;
  };
  if (request.work == "mlp") {
    const std::int64_t width = request.small ? 512 : 5000, layers = request.small ? 10 : 100;
    run(settled(detail::mlp_work(request, width, layers, 64)), [=] { return models::Mlp(width, layers); });
  } else if (request.work == "gpt" || request.work == "bert24" || request.work == "bert") {
    const auto size = detail::transformer_size(request);
    run(settled(detail::transformer_work(request, size, 8)), [=] { return models::Transformer(size); });
  } else {
    const auto size = detail::resnet_size(request);
    const std::int64_t batch = request.small || request.work == "resnet152x8" ? 16
                               : request.work == "resnet50"                   ? 256
                                                                              : 32,
                       pixels = request.small ? 64 : 224;
    run(settled(detail::resnet_work(request, size, batch, pixels)), [=] { return models::ResNet(size); });
  }
}

inline std::unique_ptr<torch::optim::Optimizer> made_optimizer(const Work& work, std::vector<at::Tensor> parameters) {
  if (work.optimizer == "adamw") {
    return std::make_unique<autopar::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-4));
  }
  return std::make_unique<autopar::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1e-3));
}

}  // namespace train
