#include "torch/programs/member_watch.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <typeindex>
#include <typeinfo>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules.h>

namespace autopar::programs {

namespace {

constexpr std::size_t kBlock = 4;  // a float, an int: the smallest number that is not mixed up with its neighbour

using Sizes = std::map<std::type_index, std::size_t>;

template <class... Modules>
Sizes sizes_of() {
  return {{std::type_index(typeid(Modules)), sizeof(Modules)}...};
}

/// libtorch's modules whose options enter the program as numbers.
Sizes known_sizes() {
  using namespace torch::nn;
  return sizes_of<DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl, FeatureAlphaDropoutImpl,  //
                  ELUImpl, SELUImpl, CELUImpl, GELUImpl, GLUImpl, HardshrinkImpl, HardtanhImpl, LeakyReLUImpl,
                  RReLUImpl, ReLUImpl, ReLU6Impl, SoftplusImpl, SoftshrinkImpl, ThresholdImpl, SoftmaxImpl, SoftminImpl,
                  LogSoftmaxImpl,  //
                  BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                  InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl, LocalResponseNormImpl, CrossMapLRN2dImpl,  //
                  Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl, ConvTranspose3dImpl,
                  EmbeddingImpl, EmbeddingBagImpl, MultiheadAttentionImpl, RNNImpl, LSTMImpl, GRUImpl,  //
                  AvgPool1dImpl, AvgPool2dImpl, AvgPool3dImpl, MaxPool1dImpl, MaxPool2dImpl, MaxPool3dImpl,
                  LPPool1dImpl, LPPool2dImpl, UpsampleImpl, ConstantPad1dImpl, ConstantPad2dImpl, ConstantPad3dImpl,
                  FunctionalImpl, CosineSimilarityImpl, PairwiseDistanceImpl, TransformerEncoderLayerImpl,
                  TransformerDecoderLayerImpl, L1LossImpl, MSELossImpl, SmoothL1LossImpl, HuberLossImpl,
                  CrossEntropyLossImpl, NLLLossImpl, BCELossImpl, BCEWithLogitsLossImpl, KLDivLossImpl,
                  PoissonNLLLossImpl, MarginRankingLossImpl, TripletMarginLossImpl, CosineEmbeddingLossImpl,
                  HingeEmbeddingLossImpl>();
}

std::span<const std::byte> bytes_between(const std::byte* begin, const std::byte* end) {
  return begin < end ? std::span(begin, end) : std::span<const std::byte>();
}

}  // namespace

MemberWatch::MemberWatch(const torch::nn::Module& model, std::span<const std::byte> own) {
  const auto sizes = known_sizes();
  watch(model, own);
  for (const auto& part : model.modules(false)) {
    const auto known = sizes.find(std::type_index(typeid(*part)));
    if (known == sizes.end()) continue;
    watch(*part, {static_cast<const std::byte*>(dynamic_cast<const void*>(part.get())), known->second});
  }
  ignored_.resize(look({}).bytes.size() / kBlock + 1, false);
}

// What libtorch keeps of every module (names, the mode, handles) is no member that forward computes with.
void MemberWatch::watch(const torch::nn::Module& module, std::span<const std::byte> object) {
  if (object.empty()) return;
  const auto* base = reinterpret_cast<const std::byte*>(&module);
  const auto* end = object.data() + object.size();
  for (const auto part : {bytes_between(object.data(), base), bytes_between(base + sizeof(torch::nn::Module), end)}) {
    if (!part.empty()) members_.push_back(part);
  }
}

template <class Visit>
void MemberWatch::for_each_change(const MembersSeen& seen, std::string_view beside, Visit&& visit) const {
  std::size_t at = 0;
  const auto compare = [&](std::span<const std::byte> part) {
    const auto size = std::min(part.size(), seen.bytes.size() - at);
    if (size > 0 && std::memcmp(part.data(), seen.bytes.data() + at, size) != 0) {
      for (std::size_t i = 0; i < size; ++i) {
        if (part[i] != seen.bytes[at + i]) visit((at + i) / kBlock);
      }
    }
    at += size;
  };
  for (const auto part : members_) compare(part);
  compare(std::as_bytes(std::span(beside)));
}

MembersSeen MemberWatch::look(std::string_view beside) const {
  MembersSeen seen;
  for (const auto part : members_) seen.bytes.insert(seen.bytes.end(), part.begin(), part.end());
  const auto rest = std::as_bytes(std::span(beside));
  seen.bytes.insert(seen.bytes.end(), rest.begin(), rest.end());
  seen.ignored.resize(seen.bytes.size() / kBlock + 1, false);
  return seen;
}

bool MemberWatch::changed(const MembersSeen& seen, std::string_view beside) const {
  bool any = false;
  for_each_change(seen, beside, [&](std::size_t block) {
    any = any || !(seen.ignored[block] || (block < ignored_.size() && ignored_[block]));
  });
  return any;
}

void MemberWatch::ignore_changes(MembersSeen& seen, std::string_view beside) const {
  for_each_change(seen, beside, [&](std::size_t block) { seen.ignored[block] = true; });
  auto now = look(beside);
  now.ignored = std::move(seen.ignored);
  seen = std::move(now);
}

void MemberWatch::ignore_changes_for_all(const MembersSeen& before) {
  for_each_change(before, {}, [&](std::size_t block) { ignored_[block] = true; });
}

}  // namespace autopar::programs
