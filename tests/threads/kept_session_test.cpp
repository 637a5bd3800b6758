#include <torch/data/samplers.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include "noisy_net.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// What a program keeps with its model: trainings that go on in the middle of an epoch, and loads that are refused.
namespace kept_session_test {

namespace ap = autopar;
namespace fs = std::filesystem;
using torch::data::samplers::DistributedRandomSampler;
using torch::data::samplers::RandomSampler;

using nets::NoisyNet;
using Model = ap::AutoParallel<NoisyNet>;

std::mutex mutex;  // of Catch's macros

NoisyNet net(std::uint64_t seed) {
  return nets::seeded(seed, [] { return NoisyNet(); });
}

ap::Options replicated(int ranks) { return {.stages = 1, .replicas = {ranks}}; }

enum class Phase { kFirst, kSecond };

/// The place of a training in its data, and what it has found.
struct Place {
  int epoch = 0;
  std::int64_t batch = 0;  ///< of the epoch
  double best = std::numeric_limits<double>::infinity();
  Phase phase = Phase::kFirst;
  std::string note = "none";
  std::vector<float> losses;
  at::Tensor best_weight;
};

constexpr std::int64_t kBatches = 6, kBatch = 4;

/// One rank's training. One sampler gives each rank its own samples, another all ranks the same.
class Training {
 public:
  Training(ap::World& world, std::uint64_t seed, bool keeps_sampler = true)
      : model_(world, net(seed), replicated(world.size())),
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(0.01)),
        sampler_(static_cast<std::size_t>(kBatches * kBatch * world.size()), static_cast<std::size_t>(world.size()),
                 static_cast<std::size_t>(world.rank())),
        order_(nets::seeded(seed, [] { return RandomSampler(kBatches * kBatch); })) {
    model_->attach(optimizer_);
    model_->keep("epoch", place_.epoch);
    model_->keep("batch", place_.batch);
    model_->keep("best", place_.best);
    model_->keep("phase", place_.phase);
    model_->keep("note", place_.note);
    model_->keep("losses", place_.losses);
    model_->keep("best weight", place_.best_weight);
    if (!keeps_sampler) return;
    model_->keep("sampler", sampler_, ap::kPerRank);
    model_->keep("order", order_);
  }

  /// Until `batches` more are done.
  void run(std::int64_t batches) {
    for (; place_.epoch < 2; ++place_.epoch, place_.batch = 0) {
      if (place_.batch == 0) {
        sampler_.set_epoch(static_cast<std::size_t>(place_.epoch));
        sampler_.reset();
        nets::seeded(static_cast<std::uint64_t>(place_.epoch), [&] {
          order_.reset();
          return 0;
        });
      }
      while (place_.batch < kBatches) {
        if (batches-- == 0) return;
        const auto mine = *sampler_.next(kBatch), of_all = *order_.next(kBatch);
        std::vector<at::Tensor> rows;
        for (std::size_t i = 0; i < mine.size(); ++i) {
          rows.push_back(torch::arange(4, torch::kFloat).add(static_cast<double>(mine[i] + 2 * of_all[i])).sin());
        }
        step(torch::stack(rows));
        ++place_.batch;
      }
    }
  }
  Model& model() { return model_; }
  torch::optim::AdamW& optimizer() { return optimizer_; }
  Place& place() { return place_; }

 private:
  void step(const at::Tensor& x) {
    optimizer_.zero_grad();
    auto loss = model_(x);
    loss.backward();
    optimizer_.step();
    const auto value = loss.item<float>();
    place_.losses.push_back(value);
    if (value < place_.best) {
      place_.best = value;
      place_.phase = Phase::kSecond;
      place_.note = "best at " + std::to_string(place_.losses.size());
      place_.best_weight = model_->gather(model_->parameters().front()).clone();
    }
  }

  Place place_;
  Model model_;
  torch::optim::AdamW optimizer_;
  DistributedRandomSampler sampler_;
  RandomSampler order_;
};

/// What a training has made, on rank 0.
struct Result {
  std::vector<float> losses;
  double best = 0;
  std::string note, weight;
  std::vector<std::string> state;
  friend bool operator==(const Result&, const Result&) = default;
};

std::string bytes_of(const at::Tensor& tensor) {
  const auto data = tensor.contiguous();
  return {static_cast<const char*>(data.data_ptr()), data.nbytes()};
}

Result result_of(int ranks, const std::function<void(ap::World&, const std::function<void(Training&)>& done)>& body) {
  Result result;
  ap::loopback::run(ranks, [&](ap::World& world) {
    body(world, [&](Training& training) {
      const auto state = training.model()->gather_state();
      if (world.rank() != 0) return;
      result.losses = training.place().losses;
      result.best = training.place().best;
      result.note = training.place().note;
      result.weight = bytes_of(training.place().best_weight);
      for (const auto& item : state) result.state.push_back(bytes_of(item.value()));
    });
  });
  return result;
}

TEST_CASE("keep: a training resumed in the middle of an epoch is bit-equal", "[files]") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TempFolder folder;
    const auto undisturbed = result_of(ranks, [&](ap::World& world, const auto& done) {
      Training training(world, 1);
      training.run(kBatches + 2);
      training.model()->save(folder / "run", training.optimizer());
      training.run(2 * kBatches);
      done(training);
    });
    REQUIRE(undisturbed.losses.size() == 2 * kBatches);
    const auto resumed = [&](bool is_early, bool keeps_sampler) {
      return result_of(ranks, [&](ap::World& world, const auto& done) {
        Training training(world, 99, keeps_sampler);
        if (!is_early) training.run(3);
        training.model()->load(folder / "run", training.optimizer());
        training.run(2 * kBatches);
        done(training);
      });
    };
    CHECK(resumed(/*is_early=*/true, true) == undisturbed);
    CHECK(resumed(/*is_early=*/false, true) == undisturbed);
    CHECK(resumed(/*is_early=*/true, false).losses != undisturbed.losses);  // the samplers matter
  }
}

template <class Error = ap::CheckpointError>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Runs on this many ranks with a model that is deployed, or is not yet.
void with_model(int ranks, bool is_deployed, const std::function<void(Model&, torch::optim::SGD&, int rank)>& work) {
  ap::loopback::run(ranks, [&](ap::World& world) {
    Model model(world, net(5), replicated(world.size()));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    if (is_deployed) {
      model(torch::ones({2, 4})).backward();
      optimizer.step();
    }
    work(model, optimizer, world.rank());
  });
}

TEST_CASE("keep: values come back in any world, or are refused by name", "[files]") {
  const TempFolder folder;
  with_model(2, true, [&](Model& model, torch::optim::SGD& optimizer, int rank) {
    std::int64_t epoch = 7, own = 10 + rank;
    auto means = torch::arange(3, torch::kDouble);
    model->keep("epoch", epoch);
    model->keep("means", means);
    model->save(folder / "equal", optimizer);
    model->keep("own", own, ap::kPerRank);
    model->save(folder / "per_rank", optimizer);
    const auto taken = message_of<ap::InvalidArgument>([&] { model->keep("own", epoch); });
    epoch += rank;
    const auto differs = message_of([&] { model->save(folder / "differs", optimizer); });
    const std::lock_guard lock(mutex);
    CAPTURE(taken, differs);
    CHECK(has(taken, "the name 'own' is taken"));
    CHECK(has(differs, "kept value 'epoch' is 7 on rank 0 and 8 on rank 1"));
    CHECK(has(differs, "cannot save"));
    CHECK(!fs::exists(folder / "differs"));
  });
  for (const int ranks : {1, 2, 3}) {
    for (const bool is_deployed : {false, true}) {
      with_model(ranks, is_deployed, [&](Model& model, torch::optim::SGD& optimizer, int rank) {
        int epoch = 0;  // another size of integer
        std::int64_t own = 0;
        at::Tensor means;
        model->keep("epoch", epoch);
        model->keep("means", means);
        model->load(folder / "equal", optimizer);
        const auto first = std::pair(std::exchange(epoch, 0), means.clone());
        model->keep("own", own, ap::kPerRank);
        const auto refused = message_of([&] { model->load(folder / "equal", optimizer); });
        const auto after_refused = epoch;
        model->load(folder / "equal", optimizer, {.missing = ap::Missing::kAllowed});
        const auto allowed = std::pair(std::exchange(epoch, 0), own);
        const auto other_world = message_of([&] { model->load(folder / "per_rank", optimizer); });
        const std::lock_guard lock(mutex);
        CAPTURE(ranks, is_deployed, rank, refused, other_world);
        CHECK(first.first == 7);
        CHECK(torch::equal(first.second, torch::arange(3, torch::kDouble)));
        CHECK(has(refused, "it lacks the kept value 'own'"));
        CHECK(after_refused == 0);
        CHECK(allowed == std::pair<int, std::int64_t>(7, 0));
        if (ranks == 2) {
          CHECK(other_world.empty());
          CHECK((epoch == 7 && own == 10 + rank));
        } else {
          CHECK(has(other_world, "kept value 'own' has one for each of 2 ranks in it, this world has"));
          CHECK((epoch == 0 && own == 0));
        }
      });
    }
  }
}

/// Loads what it likes.
struct Picky {
  std::string text = "mine";
  std::string save() const { return text; }
  void load(const std::string& bytes) {
    text = bytes;
    if (bytes == "poison") throw std::runtime_error("cannot digest it");
  }
};

TEST_CASE("keep: an object that refuses its value leaves all unchanged", "[files]") {
  const TempFolder folder;
  with_model(2, true, [&](Model& model, torch::optim::SGD& optimizer, int) {
    Picky picky{"poison"};
    int a = 3, z = 4;
    model->keep("a", a);
    model->keep("picky", picky);
    model->keep("z", z);
    model->save(folder / "run", optimizer);
    model(torch::ones({2, 4})).backward();
    optimizer.step();
    picky.text = "mine";
    a = z = 0;
    const auto before = model->gather_state();
    const auto refused = message_of([&] { model->load(folder / "run", optimizer); });
    const auto after = model->gather_state();
    const std::lock_guard lock(mutex);
    CAPTURE(refused);
    CHECK(has(refused, "load of kept value 'picky': cannot digest it; nothing has changed"));
    CHECK((a == 0 && z == 0 && picky.text == "mine"));
    for (const auto& item : before) CHECK(torch::equal(item.value(), after[item.key()]));
  });
}

}  // namespace kept_session_test
