#include "torch/interpret/segment_node.hpp"

#include <memory>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/assert.hpp>

#include "torch/interpret/backward_source.hpp"

namespace autopar::interpret {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

/// Whether the gradient of an entering value is passed on to its producer.
bool goes_through(Segment::Entry entry) { return entry == Segment::Entry::kThrough || entry == Segment::Entry::kView; }

}  // namespace

/// The autograd node that receives the gradients of the values that enter the second run.
class SegmentNode::Entrance : public torch::autograd::Node {
 public:
  variable_list apply(variable_list&& gradients) override {
    gradients_ = std::move(gradients);
    return {};
  }
  [[nodiscard]] variable_list take() { return std::move(gradients_); }
  std::string name() const override { return "EntranceOfSegment"; }

 private:
  variable_list gradients_;
};

/// Puts the second run's values into the stage's environment, and restores it on destruction.
class SegmentNode::Borrowed {
 public:
  explicit Borrowed(SegmentNode& node) : node_(node), before_(node.kept_.size()) {}
  ~Borrowed() {
    for (const auto value : node_.segment_.made) node_.values_[value.index()].reset();
    for (std::size_t i = 0; i < given_; ++i) slot(i) = std::move(before_[i]);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  /// Sets the next value of Segment::entering.
  void give(at::Tensor value) {
    before_[given_] = std::exchange(slot(given_), std::move(value));
    ++given_;
  }
  /// Leaves the next value unchanged.
  void skip() { give(slot(given_)); }

 private:
  [[nodiscard]] at::Tensor& slot(std::size_t i) { return node_.values_[node_.segment_.entering[i].value.index()]; }

  SegmentNode& node_;
  std::vector<at::Tensor> before_;
  std::size_t given_ = 0;
};

SegmentNode::Kept SegmentNode::elements_of(const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    return {SavedVariable(tensor, false), {}};  // an
                                                // expanded
                                                // tensor
  return {SavedVariable(tensor.detach().clone(at::MemoryFormat::Contiguous), false), tensor.strides().vec()};
}

at::Tensor SegmentNode::Kept::unpack() const {
  auto tensor = value.unpack();
  if (strides.empty()) return tensor;
  const at::NoGradGuard no_grad;
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

SegmentNode::SegmentNode(OpInterpreter& runner, const Segment& segment, replay::Environment& values,
                         const SliceContext& slice, std::size_t batch_norms)
    : runner_(runner), segment_(segment), values_(values), slice_(slice), batch_norms_(batch_norms) {
  torch::autograd::edge_list edges;
  for (const auto& [value, entry] : segment.entering) {
    const auto& tensor = values[value.index()];
    if (goes_through(entry)) {
      edges.push_back(tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                                 : torch::autograd::Edge());
    }
    switch (entry) {
      case Segment::Entry::kThrough:
      case Segment::Entry::kOwn:
        kept_.push_back({SavedVariable(tensor, false), {}});
        break;
      case Segment::Entry::kView:
        kept_.push_back(elements_of(tensor));
        break;
      case Segment::Entry::kCopy:
        kept_.push_back({SavedVariable(tensor.detach().clone(), false), {}});
        break;
      case Segment::Entry::kUnread:
        kept_.emplace_back();
        break;
    }
  }
  set_next_edges(std::move(edges));
}

void SegmentNode::attach(const std::shared_ptr<SegmentNode>& node) {
  int inputs = 0;
  for (const auto value : node->segment_.leaving) {
    auto& tensor = node->values_[value.index()];
    const bool has_gradient = tensor.defined() && tensor.requires_grad();
    node->input_of_.push_back(has_gradient ? inputs++ : -1);
    if (!has_gradient) continue;
    tensor = tensor.detach();
    torch::autograd::set_history(tensor, node);
  }
}

variable_list SegmentNode::apply(variable_list&& gradients) {
  // Deleted by autograd's deleter, like every node.
  const std::shared_ptr<Entrance> entrance(new Entrance, torch::autograd::deleteNode);
  torch::autograd::edge_list roots;
  variable_list of_roots;
  {
    const at::AutoGradMode with_history(true);
    Borrowed borrowed(*this);
    std::size_t edge = 0;
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (segment_.entering[i].entry == Segment::Entry::kUnread) {
        borrowed.skip();
        continue;
      }
      auto value = kept_[i].unpack();
      if (goes_through(segment_.entering[i].entry)) {
        if (next_edge(edge++).is_valid()) {
          value = value.detach();
          torch::autograd::set_history(value, entrance);
        } else {
          entrance->add_input_metadata(torch::autograd::Node::undefined_input());
        }
      }
      borrowed.give(std::move(value));
    }
    std::vector<NormSample> ignored(batch_norms_);
    runner_.run(values_, slice_, ignored, nullptr, segment_.ops);
    for (std::size_t i = 0; i < segment_.leaving.size(); ++i) {
      if (input_of_[i] < 0) continue;
      auto& gradient = gradients[static_cast<std::size_t>(input_of_[i])];
      if (!gradient.defined()) continue;
      roots.push_back(torch::autograd::impl::gradient_edge(values_[segment_.leaving[i].index()]));
      of_roots.push_back(std::move(gradient));
    }
  }
  if (!roots.empty()) BackwardSource::run(std::move(roots), std::move(of_roots));
  auto out = entrance->take();
  out.resize(num_outputs());
  return out;
}

void SegmentNode::release_variables() {
  for (auto& kept : kept_) kept.value.reset_data();
}

}  // namespace autopar::interpret
