#include <autopar/shard/convert.hpp>

#include <memory>
#include <utility>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/linear.hpp>

namespace autopar {

namespace {

namespace nn = torch::nn;

/// One layer to be cut: a parallel one in place, or a dense one of a Sequential.
struct Conversion {
  std::string path;
  int dim = 0;
  ParallelLinearImpl* in_place = nullptr;
  nn::SequentialImpl* container = nullptr;
  std::size_t position = 0;
};

/// Those that a Sequential holds: its handle of any type, and its child.
constexpr long kHoldersInSequential = 2;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InvalidArgument("convert_parallel_linear: '" + path + "' " + why);
}

class Search {
 public:
  explicit Search(const ChooseDim& choose) : choose_(choose) {}

  void visit(const std::string& path, nn::Module& module) {
    if (auto* parallel = dynamic_cast<ParallelLinearImpl*>(&module)) return add_parallel(path, *parallel);
    if (dynamic_cast<nn::LinearImpl*>(&module) != nullptr) return refuse_dense(path);
    auto* sequential = dynamic_cast<nn::SequentialImpl*>(&module);
    std::size_t position = 0;
    for (const auto& child : module.named_children()) {
      const auto below = path.empty() ? child.key() : path + "." + child.key();
      if (sequential != nullptr && dynamic_cast<nn::LinearImpl*>(child.value().get()) != nullptr) {
        add_dense(below, *sequential, position);
      } else {
        visit(below, *child.value());
      }
      ++position;
    }
  }

  [[nodiscard]] const std::vector<Conversion>& found() const { return found_; }

 private:
  void add_parallel(const std::string& path, ParallelLinearImpl& layer) {
    const auto dim = choose_(path);
    if (!dim.has_value()) return;
    if (!layer.shards().empty()) refuse(path, "has been cut already; choose other layers");
    found_.push_back({path, *dim, &layer});
  }

  void add_dense(const std::string& path, nn::SequentialImpl& container, std::size_t position) {
    const auto dim = choose_(path);
    if (!dim.has_value()) return;
    constexpr long kOurs = 2;  // ptr() below and the list of children that is walked
    if (container.ptr(position).use_count() > kHoldersInSequential + kOurs) {
      refuse(path,
             "is held elsewhere, too, which would go on pointing to the dense layer; let the Sequential alone "
             "hold it, or make it an ap::ParallelLinear");
    }
    found_.push_back({path, *dim, nullptr, &container, position});
  }

  void refuse_dense(const std::string& path) {
    if (!choose_(path).has_value()) return;
    if (path.empty()) refuse(path, "is the model itself; make ap::ParallelLinear(*linear, dim, group) of it");
    refuse(path,
           "is a torch::nn::Linear that a member or container holds by its type, which would go on pointing to "
           "the dense layer; declare it as ap::ParallelLinear (dense until it is converted), put it into a "
           "torch::nn::Sequential, or choose other layers");
  }

  const ChooseDim& choose_;
  std::vector<Conversion> found_;
};

void replace(const Conversion& conversion, const Group& group) {
  auto& container = *conversion.container;
  const auto dense = std::dynamic_pointer_cast<nn::LinearImpl>(container.ptr(conversion.position));
  GatheredLinear made(*dense, conversion.dim, group);
  const auto name = container.named_children().keys()[conversion.position];
  *(container.begin() + static_cast<std::ptrdiff_t>(conversion.position)) = nn::AnyModule(made);
  container.replace_module(name, made);
}

void require_linear_layers(const nn::Module& model, const std::map<std::string, int>& dims) {
  const auto modules = model.named_modules("", false);  // a model on the stack has no shared_ptr
  for (const auto& [path, dim] : dims) {
    const auto* module = modules.find(path);
    const bool is_linear = module != nullptr && (dynamic_cast<const nn::LinearImpl*>(module->get()) != nullptr ||
                                                 dynamic_cast<const ParallelLinearImpl*>(module->get()) != nullptr);
    if (!is_linear) refuse(path, "is no linear layer of the model; named_modules() has their paths");
  }
}

}  // namespace

std::vector<std::string> convert_parallel_linear(nn::Module& model, const Group& group, const ChooseDim& choose) {
  Search search(choose);
  search.visit("", model);
  std::vector<std::string> paths;
  for (const auto& conversion : search.found()) {
    if (conversion.dim < -1 || conversion.dim > 1) {
      refuse(conversion.path, "cannot have dim " + std::to_string(conversion.dim) + "; 1 or -1 cuts outputs, 0 inputs");
    }
  }
  for (const auto& conversion : search.found()) {
    paths.push_back(conversion.path);
    if (group.is_alone()) continue;
    if (conversion.in_place != nullptr) {
      conversion.in_place->shard(conversion.dim, group);
    } else {
      replace(conversion, group);
    }
  }
  return paths;
}

std::vector<std::string> convert_parallel_linear(nn::Module& model, const Group& group, int dim) {
  return convert_parallel_linear(model, group, [dim](const std::string&) { return std::optional<int>(dim); });
}

std::vector<std::string> convert_parallel_linear(nn::Module& model, const Group& group,
                                                 const std::map<std::string, int>& dims) {
  require_linear_layers(model, dims);
  return convert_parallel_linear(model, group, [&dims](const std::string& path) {
    const auto known = dims.find(path);
    return known == dims.end() ? std::nullopt : std::optional<int>(known->second);
  });
}

}  // namespace autopar
