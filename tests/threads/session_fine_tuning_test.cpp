#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

// Models that begin with weights of others, in files as others write them, and weights that they export.
namespace session_fine_tuning_test {

namespace ap = autopar;
namespace nn = torch::nn;
using at::Tensor;
using Names = std::vector<std::string>;

std::mutex mutex;  // of Catch's macros

/// A file of another program: named tensors, no checksums of autopar's in what it says.
using Tensors = std::vector<std::pair<std::string, Tensor>>;

void write_foreign(const std::filesystem::path& path, const Tensors& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = data.size();
    data.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    std::string sizes;
    for (const auto size : tensor.sizes()) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    header += ",\"" + name + "\":{\"dtype\":\"" + (tensor.scalar_type() == at::kLong ? "I64" : "F32") +
              "\",\"shape\":[" + sizes + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(length.data(), &size, sizeof(size));
  ap::write_text_file(path, length + header + data);
}

/// Values that differ from name to name.
Tensor values(std::vector<int64_t> sizes) {
  static int count = 0;
  const auto numel = c10::multiply_integers(sizes);
  return torch::arange(numel, torch::kFloat).add(++count).mul(0.37F).sin().div(4).view(sizes).contiguous();
}

Tensor find(const Tensors& tensors, const std::string& name) {
  const auto found = std::ranges::find_if(tensors, [&](const auto& each) { return each.first == name; });
  REQUIRE(found != tensors.end());
  return found->second;
}

// ---------------------------------------------------------------- torchvision

/// A basic block, with torchvision's names.
struct BlockImpl : nn::Module {
  BlockImpl() { nets::register_all(*this, "conv1", conv1, "bn1", bn1, "conv2", conv2, "bn2", bn2); }
  Tensor forward(const Tensor& x) { return torch::relu(bn2(conv2(torch::relu(bn1(conv1(x))))) + x); }
  nn::Conv2d conv1{nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)};
  nn::Conv2d conv2{nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)};
  nn::BatchNorm2d bn1{4}, bn2{4};
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  explicit ResNetImpl(int64_t classes = 3) : fc(4, classes) {
    nets::register_all(*this, "conv1", conv1, "bn1", bn1, "layer1", layer1, "fc", fc);
  }
  Tensor forward(const Tensor& x) { return fc(layer1->forward(torch::relu(bn1(conv1(x)))).mean({2, 3})).pow(2).mean(); }
  nn::Conv2d conv1{nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)};
  nn::BatchNorm2d bn1{4};
  nn::Sequential layer1{Block(), Block()};
  nn::Linear fc;
};
TORCH_MODULE(ResNet);

/// What torchvision's resnet would save, at this size, of 10 classes.
Tensors torchvision_file() {
  Tensors tensors{{"conv1.weight", values({4, 3, 3, 3})}};
  const auto add_norm = [&](const std::string& name) {
    tensors.emplace_back(name + ".weight", values({4}));
    tensors.emplace_back(name + ".bias", values({4}));
    tensors.emplace_back(name + ".running_mean", values({4}));
    tensors.emplace_back(name + ".running_var", values({4}).add(1));
    tensors.emplace_back(name + ".num_batches_tracked", torch::full({}, 1000, torch::kLong));
  };
  add_norm("bn1");
  for (const auto* block : {"layer1.0", "layer1.1"}) {
    for (const auto* number : {"1", "2"}) {
      tensors.emplace_back(std::string(block) + ".conv" + number + ".weight", values({4, 4, 3, 3}));
      add_norm(std::string(block) + ".bn" + number);
    }
  }
  tensors.emplace_back("fc.weight", values({10, 4}));
  tensors.emplace_back("fc.bias", values({10}));
  return tensors;
}

const std::vector<ap::Options> kPlans{{.stages = 2, .microbatches = 2, .replicas = {1, 1}},
                                      {.stages = 1, .zero = 3, .replicas = {2}}};

TEST_CASE("fine-tuning: a torchvision file under a head of another size", "[files]") {
  const TempFolder folder;
  const auto file = torchvision_file();
  write_foreign(folder / "resnet18-5c106cde.pth.safe", file);  // a name of another kind
  for (const auto& options : kPlans) {
    const std::vector<ResNet> nets{ResNet(), ResNet()};
    nets[1]->fc->weight.data().copy_(nets[0]->fc->weight.data());
    nets[1]->fc->bias.data().copy_(nets[0]->fc->bias.data());
    const auto head = nets[0]->fc->weight.detach().clone();
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<ResNet> model(world, nets[static_cast<std::size_t>(world.rank())], options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      const auto path = folder / "resnet18-5c106cde.pth.safe";
      const auto refused = said_by([&] { model->load(path); });
      const auto report = model->load(path, {.skip = {"fc."}});
      model->prepare(torch::ones({4, 3, 5, 5}));
      const auto state = model->gather_state();
      model(torch::ones({4, 3, 5, 5})).backward();
      const std::lock_guard lock(mutex);
      CHECK_THAT(refused, Catch::Matchers::ContainsSubstring("'fc.weight' is f32 with sizes [10, 4], the model has f32 "
                                                             "with sizes [3, 4]; to leave the model's as it is"));
      CHECK(report.skipped == Names{"fc.weight", "fc.bias"});
      CHECK(report.loaded.size() == file.size() - 2);
      if (world.rank() != 0) return;
      CHECK(torch::equal(state["fc.weight"], head));
      for (const auto& item : state) {
        if (!item.key().starts_with("fc.")) CHECK(torch::equal(item.value(), find(file, item.key())));
      }
    });
  }
}

// ---------------------------------------------------------------- transformers

struct SelfImpl : nn::Module {
  SelfImpl() { nets::register_all(*this, "query", query, "key", key, "value", value); }
  Tensor forward(const Tensor& x) {
    return torch::softmax(query(x).matmul(key(x).transpose(1, 2)), -1).matmul(value(x));
  }
  nn::Linear query{4, 4}, key{4, 4}, value{4, 4};
};
TORCH_MODULE(Self);

/// A layer with names of its own: `attention.query`, where BERT has `attention.self.query`.
struct LayerImpl : nn::Module {
  LayerImpl() { nets::register_all(*this, "attention", attention, "dense", dense, "norm", norm); }
  Tensor forward(const Tensor& x) { return norm(dense(attention(x)) + x); }
  Self attention;
  nn::Linear dense{4, 4};
  nn::LayerNorm norm{nn::LayerNormOptions({4})};
};
TORCH_MODULE(Layer);

/// Its weight is the table.
struct DecoderImpl : nn::Module {
  explicit DecoderImpl(const Tensor& table)
      : weight(register_parameter("weight", table)), bias(register_parameter("bias", torch::zeros({8}))) {}
  Tensor forward(const Tensor& x) { return torch::nn::functional::linear(x, weight, bias); }
  Tensor weight, bias;
};
TORCH_MODULE(Decoder);

struct BertImpl : nn::Module {
  BertImpl() {
    nets::register_all(*this, "words", words, "layer", layer, "decoder", decoder, "classifier", classifier);
  }
  Tensor forward(const Tensor& ids) {
    const auto x = layer(words(ids));
    return decoder(x).pow(2).mean() + classifier(x.mean(1)).pow(2).mean();
  }
  nn::Embedding words{nn::EmbeddingOptions(8, 4)};
  Layer layer;
  Decoder decoder{words->weight};
  nn::Linear classifier{4, 2};
};
TORCH_MODULE(Bert);

Tensors transformers_file() {
  const std::string layer = "bert.encoder.layer.0.";
  Tensors tensors{{"bert.embeddings.word_embeddings.weight", values({8, 4})},
                  {"bert.embeddings.position_ids", torch::arange(8, torch::kLong)}};
  for (const auto* part : {"query", "key", "value"}) {
    tensors.emplace_back(layer + "attention.self." + part + ".weight", values({4, 4}));
    tensors.emplace_back(layer + "attention.self." + part + ".bias", values({4}));
  }
  tensors.emplace_back(layer + "attention.output.dense.weight", values({4, 4}));
  tensors.emplace_back(layer + "attention.output.dense.bias", values({4}));
  tensors.emplace_back(layer + "attention.output.LayerNorm.weight", values({4}));
  tensors.emplace_back(layer + "attention.output.LayerNorm.bias", values({4}));
  tensors.emplace_back("cls.predictions.bias", values({8}));
  tensors.emplace_back("cls.seq_relationship.weight", values({2, 4}));
  tensors.emplace_back("cls.seq_relationship.bias", values({2}));
  return tensors;
}

const ap::LoadOptions kBert{.missing = ap::Missing::kAllowed,
                            .unexpected = ap::Missing::kAllowed,
                            .rename = {{"bert.embeddings.word_embeddings.", "words."},
                                       {"bert.encoder.layer.0.attention.output.LayerNorm.", "layer.norm."},
                                       {"bert.encoder.layer.0.attention.output.", "layer."},
                                       {"bert.encoder.layer.0.attention.self.", "layer.attention."},
                                       {"cls.predictions.", "decoder."}},
                            .skip = {"classifier.b"}};

TEST_CASE("fine-tuning: a transformers file with other names and ties", "[files]") {
  const TempFolder folder;
  auto file = transformers_file();
  write_foreign(folder / "table.safetensors", file);
  file[0].first = "cls.predictions.decoder.weight";  // the other name of the tied tensor
  write_foreign(folder / "decoder.safetensors", file);
  file.emplace_back("bert.embeddings.word_embeddings.weight", file[0].second);
  write_foreign(folder / "both.safetensors", file);
  auto by_decoder = kBert;
  by_decoder.rename[0] = {"cls.predictions.decoder.", "decoder."};
  auto both = kBert;
  both.rename.emplace_back("cls.predictions.decoder.", "decoder.");
  for (const auto& options : kPlans) {
    for (const bool is_early : {true, false}) {
      ap::loopback::run(2, [&](ap::World& world) {
        const auto net = nets::made<BertImpl>(3);
        const auto fresh = net->classifier->weight.detach().clone();
        ap::AutoParallel<BertImpl> model(world, net, options);
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        model->attach(optimizer);
        const auto ids = torch::arange(8, torch::kLong).view({2, 4});
        if (!is_early) model->prepare(ids);
        const auto twice = said_by([&] { model->load(folder / "both.safetensors", both); });
        const auto by_other = model->load(folder / "decoder.safetensors", by_decoder);
        const auto report = model->load(folder / "table.safetensors", kBert);
        if (is_early) model->prepare(ids);
        const auto state = model->gather_state();
        const std::lock_guard lock(mutex);
        CHECK_THAT(twice, Catch::Matchers::ContainsSubstring("would both become 'words.weight'"));
        for (const auto& each : {by_other, report}) {
          CHECK(each.loaded.size() == 12);
          CHECK(each.loaded.front() == "words.weight");
          CHECK(each.missing == Names{"classifier.weight"});
          CHECK(each.skipped == Names{"classifier.bias"});
          CHECK(each.unexpected ==
                Names{"bert.embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"});
        }
        if (world.rank() != 0) return;
        CHECK(torch::equal(state["words.weight"], file[0].second));
        CHECK(torch::equal(state["decoder.weight"], file[0].second));
        CHECK(torch::equal(state["decoder.bias"], find(file, "cls.predictions.bias")));
        CHECK(torch::equal(state["layer.attention.key.weight"],
                           find(file, "bert.encoder.layer.0.attention.self.key.weight")));
        CHECK(
            torch::equal(state["layer.norm.bias"], find(file, "bert.encoder.layer.0.attention.output.LayerNorm.bias")));
        CHECK(torch::equal(state["classifier.weight"], fresh));
      });
    }
  }
}

// ---------------------------------------------------------------- errors

struct NetImpl : nn::Module {
  NetImpl() { nets::register_all(*this, "body", body, "head", head); }
  Tensor forward(const Tensor& x) { return head(torch::tanh(body(x))).pow(2).mean(); }
  nn::Linear body{4, 6}, head{6, 3};
};
TORCH_MODULE(Net);

/// What a rank has: bytes of parameters and of state, and hyper-parameters.
std::pair<std::vector<std::string>, std::vector<ap::parameters::HyperParameters>> state_of(
    const ap::AutoParallel<NetImpl>& model, torch::optim::AdamW& optimizer) {
  std::vector<std::string> bytes;
  const auto add = [&](const Tensor& tensor) {
    bytes.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  for (const auto& parameter : model->owned_parameters()) {
    add(parameter);
    for (const auto& [name, state] : ap::parameters::state_of(optimizer, parameter)) add(state);
  }
  return {bytes, ap::parameters::hyper_parameters(optimizer)};
}

TEST_CASE("fine-tuning: each broken rule is an error of all ranks", "[files]") {
  const TempFolder folder;
  write_foreign(folder / "f.safetensors", {{"old.weight", values({6, 4})},
                                           {"body.bias", values({6})},
                                           {"head.weight", values({2, 6})},
                                           {"more", values({1})}});
  const auto lax = ap::LoadOptions{.missing = ap::Missing::kAllowed, .unexpected = ap::Missing::kAllowed};
  const auto with = [&](const std::function<void(ap::LoadOptions&)>& change) {
    auto options = lax;
    options.optimizer = ap::Missing::kAllowed;
    options.rename = {{"old.", "body."}};
    options.skip = {"head.w"};
    change(options);
    return options;
  };
  const std::vector<std::pair<std::string, ap::LoadOptions>> broken{
      {"it lacks 'head.bias'", with([](auto& o) { o.missing = ap::Missing::kRefused; })},
      {"the model has no 'more'", with([](auto& o) { o.unexpected = ap::Missing::kRefused; })},
      {"'head.weight' is f32 with sizes [2, 6]", with([](auto& o) { o.skip.clear(); })},
      {"would both become 'body.bias'", with([](auto& o) { o.rename.emplace_back("more", "body.bias"); })},
      {"{'olt.', 'body.'}} renames nothing", with([](auto& o) { o.rename.emplace_back("olt.", "body."); })},
      {".skip = {'haed'} skips nothing", with([](auto& o) { o.skip.emplace_back("haed"); })},
      {"it has no state of optimizer 0", with([](auto& o) { o.optimizer = ap::Missing::kRefused; })}};
  for (const auto& options : kPlans) {
    for (const bool is_early : {true, false}) {
      ap::loopback::run(2, [&](ap::World& world) {
        ap::AutoParallel<NetImpl> model(world, nets::made<NetImpl>(3), options);
        torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
        model->attach(optimizer);
        const auto step = [&] {
          optimizer.zero_grad();
          model(torch::ones({4, 4})).backward();
          optimizer.step();
        };
        if (!is_early) step();
        const auto before = is_early ? decltype(state_of(model, optimizer)){} : state_of(model, optimizer);
        for (const auto& [part, how] : broken) {
          const auto said = said_by([&] { model->load(folder / "f.safetensors", optimizer, how); });
          const std::lock_guard lock(mutex);
          CAPTURE(part, said, is_early);
          CHECK(said.find("cannot load " + (folder / "f.safetensors").string()) != std::string::npos);
          CHECK(said.find(part) != std::string::npos);
        }
        const bool same = is_early || state_of(model, optimizer) == before;
        const auto good = with([](auto&) {});
        const auto one = with([](auto& o) { o.skip.emplace_back("head.b"); });
        const auto differ =
            said_by([&] { model->load(folder / "f.safetensors", optimizer, world.rank() == 0 ? good : one); });
        const auto report = model->load(folder / "f.safetensors", optimizer, good);
        ap::AutoParallel<NetImpl> undisturbed(world, nets::made<NetImpl>(3), options);
        torch::optim::AdamW its(undisturbed->parameters(), torch::optim::AdamWOptions(0.1));
        undisturbed->attach(its);
        if (is_early) {
          undisturbed->load(folder / "f.safetensors", its, good);
          for (auto* each : {&model, &undisturbed}) (*each)->prepare(torch::ones({4, 4}));
        }
        const bool same_early = !is_early || state_of(model, optimizer) == state_of(undisturbed, its);
        step();
        const std::lock_guard lock(mutex);
        CHECK(same);
        CHECK(same_early);
        CHECK_THAT(differ, Catch::Matchers::ContainsSubstring(".skip \"head.b\""));
        CHECK_THAT(differ, Catch::Matchers::ContainsSubstring("the ranks disagree"));
        CHECK(report.loaded == Names{"body.weight", "body.bias"});
        CHECK(report.missing == Names{"head.bias"});
      });
    }
  }
}

// ---------------------------------------------------------------- export

TEST_CASE("export_weights: read back under any plan, or refused on all", "[files]") {
  const TempFolder folder;
  const auto ids = torch::arange(8, torch::kLong).view({2, 4});
  int count = 0;
  for (const auto& options : kPlans) {
    const auto path = folder / ("to/" + std::to_string(count++) + "/net.weights");
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<BertImpl> model(world, nets::made<BertImpl>(3), options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      model(ids).backward();
      model->export_weights(path);
      ap::AutoParallel<BertImpl> other(world, nets::made<BertImpl>(4), kPlans[static_cast<std::size_t>(count % 2)]);
      torch::optim::SGD of_other(other->parameters(), 0.1);
      other->attach(of_other);
      const auto report = other->load(path, ap::LoadOptions{});
      other->prepare(ids);
      const auto state = model->gather_state(), read = other->gather_state();
      const auto refused = said_by([&] { model->export_weights(path, torch::kInt); });
      const auto differ =
          said_by([&] { model->export_weights(path, world.rank() == 0 ? torch::kHalf : torch::kFloat); });
      const auto missing = said_by([&] { model->export_weights(path / "below"); });
      model->export_weights(path.string() + ".half", torch::kHalf);
      const auto half = said_by([&] { model->load(path.string() + ".half"); });
      const std::lock_guard lock(mutex);
      CHECK(report.missing.empty());
      CHECK(report.loaded.size() == 14);
      CHECK_THAT(refused, Catch::Matchers::ContainsSubstring("weights cannot be exported as Int"));
      CHECK_THAT(differ, Catch::Matchers::ContainsSubstring("the ranks disagree"));
      CHECK_THAT(missing, Catch::Matchers::ContainsSubstring("cannot export weights to"));
      CHECK_THAT(half, Catch::Matchers::ContainsSubstring("is f16 with sizes"));
      for (const auto& item : state) CHECK(torch::equal(read[item.key()], item.value()));
    });
    const ap::SafetensorsReader file(path);
    CHECK(file.entries().size() == 14);
    CHECK(file.metadata().at("decoder.weight") == "words.weight");
  }
}

}  // namespace session_fine_tuning_test
