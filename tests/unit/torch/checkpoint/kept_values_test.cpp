#include <torch/data/samplers.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <says.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/kept.hpp>

#include "torch/checkpoint/kept_text.hpp"
#include "torch/checkpoint/kept_values.hpp"
#include "torch/checkpoint/metadata.hpp"

// Objects outside the model: their values as text and back, and what ranks agree on.
namespace kept_values_test {

using namespace autopar;
using autopar::detail::kept_object;
using autopar::detail::KeptKind;
using autopar::detail::kMostKeptBytes;
using checkpoint::KeptLoad;
using checkpoint::KeptValue;
using checkpoint::KeptValues;

enum class Phase : std::uint8_t { kWarmUp = 3, kDecay = 250 };
enum Signed : std::int8_t { kNegative = -7 };

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// With `save` and `load` of a string.
struct Notes {
  std::string text;
  std::string save() const { return text; }
  void load(const std::string& bytes) { text = bytes; }
};

/// Whether this text is refused as metadata of a checkpoint.
bool is_refused(const std::string& key, const std::string& text) {
  auto metadata = checkpoint::to_metadata({});
  metadata[key] = text;
  try {
    static_cast<void>(checkpoint::from_metadata(metadata));
    return false;
  } catch (const CheckpointError&) {
    return true;
  }
}

/// Into `target`, by the metadata of a checkpoint.
template <class T>
void copy_by_metadata(T& source, T& target) {
  const auto from = kept_object(source);
  const std::string name = "a.name with spaces.0";
  const checkpoint::SavedInfo saved{{}, {}, {{name, {KeptScope::kAllRanks, {{from.kind, from.save()}}}}}};
  const auto read = checkpoint::from_metadata(checkpoint::to_metadata(saved));
  REQUIRE(read);
  CHECK((read->kept == saved.kept));
  kept_object(target).load(read->kept.at(name).of_ranks.at(0).bytes)();
}

template <class T>
T copied(T value, T target = T()) {
  copy_by_metadata(value, target);
  return target;
}

template <class T>
std::string refusal(T value, const std::string& bytes) {
  const T before = value;
  const auto message = said_by([&] { static_cast<void>(kept_object(value).load(bytes)); });
  CHECK(value == before);
  return message;
}

template <class T, class Bits>
bool same_number(T a, T b) {
  if (std::isnan(a)) return std::isnan(b) && std::signbit(a) == std::signbit(b);
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

TEST_CASE("kept numbers: read back exactly, of any size") {
  std::mt19937_64 random(7);
  const auto integers = [&]<class T>(T /*type*/) {
    for (const T edge : {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T(0)}) {
      CHECK((copied(edge) == edge));
    }
    std::vector<T> many;
    for (int i = 0; i < 100; ++i) many.push_back(static_cast<T>(random()));
    for (const T number : many) CHECK((copied(number) == number));
    CHECK((copied(many) == many));
  };
  integers(char());
  integers(std::int8_t());
  integers(std::uint8_t());
  integers(std::int16_t());
  integers(std::uint32_t());
  integers(std::int64_t());
  integers(std::uint64_t());
  integers(char16_t());
  for (int i = 0; i < 2000; ++i) {
    const auto bits = random();
    const auto number = std::bit_cast<double>(bits);
    CHECK(same_number<double, std::uint64_t>(copied(number), number));
    const auto small = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    CHECK(same_number<float, std::uint32_t>(copied(small), small));
  }
  using Limits = std::numeric_limits<double>;
  for (const double number : {0.0, -0.0, 0.1, Limits::denorm_min(), Limits::max(), Limits::infinity(),
                              -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
    CHECK(same_number<double, std::uint64_t>(copied(number), number));
  }
  const float least = std::numeric_limits<float>::denorm_min();
  CHECK(copied(least) == least);
  CHECK(copied(true));
  CHECK(!copied(false, true));
  CHECK(copied(Phase::kDecay) == Phase::kDecay);
  CHECK(copied(kNegative) == kNegative);
  CHECK(copied(std::vector<bool>{true, false, true}) == std::vector<bool>{true, false, true});
  CHECK(copied(std::vector<double>{0.1, -2e300}) == std::vector<double>{0.1, -2e300});
  CHECK(copied(std::vector<float>{}, std::vector<float>{1}).empty());
}

TEST_CASE("kept strings and objects: any bytes are read back") {
  std::mt19937 random(3);
  for (std::size_t size = 0; size < 40; ++size) {
    std::string bytes(size, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    CHECK(copied(bytes) == bytes);
    CHECK(copied(Notes{bytes}).text == bytes);
  }
}

TEST_CASE("kept tensors: of any type and sizes, into their own device") {
  torch::manual_seed(5);
  using at::kBool, at::kByte, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat;
  for (const auto type : {kBool, kByte, kLong, kHalf, kBFloat16, kFloat, kDouble, kComplexFloat}) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {0}, {3}, {2, 0, 3}, {2, 3, 4}}) {
      const auto value = torch::randn(sizes).mul(9).to(type);
      CHECK(torch::equal(copied(value), value));
      const auto other = copied(value, torch::zeros({7}, type));
      CHECK(torch::equal(other, value));
    }
  }
  auto matrix = torch::randn({4, 6});
  CHECK(torch::equal(copied(matrix.t()), matrix.t()));
  CHECK(torch::equal(copied(torch::conj(matrix.to(kComplexFloat))), torch::conj(matrix.to(kComplexFloat))));
  CHECK(!copied(at::Tensor(), matrix).defined());
  auto target = torch::zeros({4, 6}).set_requires_grad(true);
  const auto view = target.detach();
  copy_by_metadata(matrix, target);
  CHECK(torch::equal(view, matrix));  // in place
  CHECK(target.requires_grad());
  auto expanded = torch::zeros({1, 6}).expand({4, 6});  // its elements share memory
  copy_by_metadata(matrix, expanded);
  CHECK(torch::equal(expanded, matrix));
  CHECK_THROWS_AS(kept_object(matrix = matrix.to_sparse()).save(), CheckpointError);
}

TEST_CASE("kept samplers: go on where they were saved") {
  torch::manual_seed(1);
  torch::data::samplers::RandomSampler sampler(20), same(20);
  static_cast<void>(sampler.next(7));
  const auto saved = kept_object(sampler);
  CHECK(saved.kind == KeptKind::kArchive);
  CHECK(saved.save() == saved.save());
  copy_by_metadata(sampler, same);
  CHECK(kept_object(same).save() == saved.save());  // so ranks can compare them
  CHECK(same.index() == 7);
  CHECK(same.next(13) == sampler.next(13));
  torch::data::samplers::DistributedRandomSampler shares(20, 2, 1), shared(20, 2, 1);
  shares.set_epoch(3);
  shares.reset();
  static_cast<void>(shares.next(4));
  copy_by_metadata(shares, shared);
  CHECK(shared.next(6) == shares.next(6));
  torch::data::samplers::SequentialSampler sequence(9), in_order(9);
  static_cast<void>(sequence.next(4));
  copy_by_metadata(sequence, in_order);
  CHECK(in_order.next(9) == sequence.next(9));
}

TEST_CASE("kept values: what does not fit an object is refused with its text") {
  CHECK(has(refusal(std::int8_t(1), "300"), "its value '300' is none of its type"));
  for (const char* text : {"", " 5", "5 ", "+5", "0x5", "5.0", "5,6", "99999999999999999999", "true"}) {
    CAPTURE(text);
    CHECK(!refusal(5, text).empty());
  }
  CHECK(!refusal(5u, "-1").empty());
  CHECK(!refusal(5., "1e999").empty());
  CHECK(!refusal(true, "1").empty());
  CHECK(!refusal(Phase::kWarmUp, "256").empty());
  for (const char* text : {",", "1,", ",1", "1,,2", "1 2", "1,x", "1,300"}) {
    CAPTURE(text);
    CHECK(!refusal(std::vector<std::int8_t>{4}, text).empty());
  }
  CHECK(has(refusal(3, std::string(9000, '7')), "7…'"));
  at::Tensor tensor = torch::ones({2});
  const auto unchanged = tensor.clone();
  const std::string eight(8, 'x'), past("Float 4611686018427387905,4\n");  // elements * 4 overflows
  for (const auto& bytes : {std::string(), std::string("Float"), "Float 2" + eight, "Float 2\n" + eight + 'x',
                            "Float 3\n" + eight, "Float -2\n" + eight, "Float 2,\n" + eight, "Float x\n" + eight,
                            "Real 2\n" + eight, "QInt8 8\n" + eight, std::string("Undefined \nx"),
                            std::string("Undefined 0\n"), past + eight, "Float 4294967296,4294967296\n" + eight,
                            std::string("Float 4294967296,4294967296\n"), "Double 1\n" + eight, "Long 1\n" + eight}) {
    CAPTURE(bytes);
    CHECK_THROWS_AS(kept_object(tensor).load(bytes), CheckpointError);
    CHECK(torch::equal(tensor, unchanged));
  }
  torch::data::samplers::SequentialSampler sampler(9);
  const auto good = kept_object(sampler).save();
  for (const auto& bytes : {std::string(), std::string("PK"), good.substr(0, good.size() / 2), good.substr(9)}) {
    CHECK_THROWS_AS(kept_object(sampler).load(bytes), CheckpointError);
  }
}

TEST_CASE("kept values in metadata: hostile texts are refused") {
  const std::string key = "autopar.kept.x";
  CHECK(!is_refused(key, "integer:5"));
  CHECK(!is_refused(key, "per_rank integer:5 string:"));
  CHECK(!is_refused(key, "string:QQ=="));
  for (const char* text : {"",
                           ":",
                           "integer",
                           "Integer:5",
                           "integers",
                           " integer:5",
                           "number:5",
                           "per_rank",
                           "per_rank ",
                           "per_rankinteger:5",
                           "per_rank  integer:5",
                           "per_rank integer:5 ",
                           "per_rank integer:5\tinteger:6",
                           "per_rank per_rank integer:5",
                           "string:Q",
                           "string:QQ",
                           "string:QQ=",
                           "string:QR==",
                           "string:====",
                           "string:Q===",
                           "string:QQ==QQ==",
                           "string:Q Q=",
                           "string:QUI",
                           "string:QUJ=",
                           "string:\xff\xff\xff\xff",
                           "tensor:-_-_",
                           "archive:=QQQ"}) {
    CAPTURE(text);
    CHECK(is_refused(key, text));
  }
  CHECK(is_refused("autopar.kept.", "integer:5"));
  CHECK(is_refused("autopar.kept.a\nb", "integer:5"));
  CHECK(is_refused("autopar.kept.\xff", "integer:5"));
  CHECK(is_refused("autopar.keptx", "integer:5"));
  CHECK(is_refused(key, "integers:" + std::string(kMostKeptBytes + 1, '1')));
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {  // flipped anywhere: refused, or another value that is written as read
    std::string text = "per_rank string:QUJDRA== integers:1,2";
    text[random() % text.size()] = static_cast<char>(random());
    std::string again;
    const auto refused = said_by([&] { again = checkpoint::to_text(checkpoint::kept_value_in(text)); });
    CHECK((!refused.empty() || again == text));
  }
}

TEST_CASE("keep: names are unique, and can be shown") {
  KeptValues kept;
  int a = 1, b = 2;
  const auto message_of = [&](const std::string& name) {
    return said_by([&] { kept.add(name, kept_object(b), KeptScope::kAllRanks); });
  };
  kept.add("epoch", kept_object(a), KeptScope::kAllRanks);
  CHECK(has(message_of("epoch"), "the name 'epoch' is taken"));
  CHECK(has(message_of(""), "it is empty"));
  for (const char* name : {"a\nb", "a\tb", "\x1b[1m", "\x7f", "a\xe2\x80\xae", "\xff"})
    CHECK(!message_of(name).empty());
  CHECK(message_of("épo che.0/per_rank").empty());
}

std::mutex mutex;  // of Catch's macros

/// What all ranks of a world throw; empty if none does, and a failure if they throw different messages.
std::string thrown_by_all(int ranks, const std::function<void(World&)>& work) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  loopback::run(ranks, [&](World& world) {
    try {
      work(world);
    } catch (const CheckpointError& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
    world.barrier();  // the world goes on
  });
  for (const auto& message : messages) CHECK(message == messages[0]);
  return messages[0];
}

TEST_CASE("collect: values and names that differ between ranks are refused") {
  const auto refused = [](const std::function<void(KeptValues&, int rank)>& add) {
    return thrown_by_all(3, [&](World& world) {
      KeptValues kept;
      add(kept, world.rank());
      static_cast<void>(kept.collect(world, "cannot save x"));
    });
  };
  std::vector<int> numbers{4, 4, 5};
  std::vector<std::string> texts{"a", "a", "b"};
  std::vector<double> halves(3, 0.5);
  const auto of = [](auto& values, int rank) { return kept_object(values[static_cast<std::size_t>(rank)]); };
  using enum KeptScope;
  const auto differs = refused([&](KeptValues& kept, int rank) { kept.add("epoch", of(numbers, rank), kAllRanks); });
  CHECK(has(differs, "cannot save x: kept value 'epoch' is 4 on rank 0 and 5 on rank 2"));
  CHECK(has(differs, "ap::kPerRank"));
  const auto texts_differ = refused([&](KeptValues& kept, int rank) { kept.add("t", of(texts, rank), kAllRanks); });
  CHECK(has(texts_differ, "'t' is of 1 bytes with checksum"));
  const auto scopes = refused([&](KeptValues& kept, int rank) {
    kept.add("epoch", of(numbers, rank), rank == 1 ? KeptScope::kPerRank : kAllRanks);
  });
  CHECK(has(scopes, "'epoch' is registered as integer on rank 0 and as per-rank integer on rank 1"));
  const auto kinds = refused([&](KeptValues& kept, int rank) {
    kept.add("epoch", rank == 2 ? of(halves, rank) : of(numbers, rank), kAllRanks);
  });
  CHECK(has(kinds, "as integer on rank 0 and as double on rank 2"));
  const auto lacking = refused([&](KeptValues& kept, int rank) {
    if (rank != 1) kept.add("epoch", of(halves, rank), kAllRanks);
  });
  CHECK(has(lacking, "'epoch' is registered on rank 0 and not on rank 1"));
  const auto only = refused([&](KeptValues& kept, int rank) {
    if (rank == 2) kept.add("epoch", of(halves, rank), kAllRanks);
  });
  CHECK(has(only, "'epoch' is registered on rank 2 and not on rank 0"));
  CHECK(refused([&](KeptValues& kept, int rank) {
          const char* const names[] = {"a", "b"};  // in another order
          for (const int i : {0, 1}) kept.add(names[(i + rank) % 2], of(halves, rank), kAllRanks);
        }).empty());
}

TEST_CASE("collect: rank 0 has the values of all ranks, and large ones are refused") {
  std::mutex lock;
  std::map<std::string, KeptValue> collected;
  const auto message = thrown_by_all(3, [&](World& world) {
    std::vector<std::int64_t> own(static_cast<std::size_t>(world.rank()), world.rank());
    std::string same = "same";
    KeptValues kept;
    kept.add("own", kept_object(own), KeptScope::kPerRank);
    kept.add("same", kept_object(same), KeptScope::kAllRanks);
    const auto values = kept.collect(world, "cannot save x");
    const std::lock_guard guard(lock);
    if (world.rank() == 0) collected = values;
  });
  CHECK(message.empty());
  CHECK((collected == std::map<std::string, KeptValue>{
                          {"own",
                           {KeptScope::kPerRank,
                            {{KeptKind::kIntegers, ""}, {KeptKind::kIntegers, "1"}, {KeptKind::kIntegers, "2,2"}}}},
                          {"same", {KeptScope::kAllRanks, {{KeptKind::kString, "same"}}}}}));
  const auto size = static_cast<std::int64_t>(kMostKeptBytes);
  const auto large = [&](at::Tensor tensor, KeptScope scope) {
    return thrown_by_all(2, [&](World& world) {
      at::Tensor own = tensor;
      KeptValues kept;
      kept.add("large", kept_object(own), scope);
      static_cast<void>(kept.collect(world, "cannot save x"));
    });
  };
  CHECK(has(large(torch::zeros({size + 1}, at::kByte), KeptScope::kAllRanks),
            "kept value 'large': it has 16777217 bytes"));
  CHECK(has(large(torch::zeros({size + 1}, at::kByte), KeptScope::kAllRanks), "make it a buffer of the module"));
  CHECK(large(torch::zeros({size / 2 + 1}, at::kByte), KeptScope::kAllRanks).empty());
  CHECK(has(large(torch::zeros({size / 2 + 1}, at::kByte), KeptScope::kPerRank), "'large' of all ranks: it has"));
  std::string text(kMostKeptBytes + 1, 'x');
  KeptValues kept;
  kept.add("text", kept_object(text), KeptScope::kAllRanks);
  const auto refused = thrown_by_all(1, [&](World& world) { static_cast<void>(kept.collect(world, "cannot save x")); });
  CHECK(has(refused, "kept value 'text': it has 16777217 bytes"));
}

/// Refuses one text, after it has taken it.
struct Fragile {
  std::string text = "before";
  bool refuses_all = false;
  std::string save() const { return text; }
  void load(const std::string& bytes) {
    text = bytes;
    if (refuses_all || bytes == "poison") throw std::runtime_error("cannot digest it");
  }
};

TEST_CASE("KeptLoad: all objects of all ranks change, or none") {
  const KeptValue five{KeptScope::kAllRanks, {{KeptKind::kInteger, "5"}}};
  const auto text = [](const std::string& bytes) {
    return KeptValue{KeptScope::kPerRank, {{KeptKind::kText, "fine"}, {KeptKind::kText, bytes}}};
  };
  struct Objects {
    int a = 1, z = 2;
    at::Tensor tensor = torch::zeros({2});
    Fragile fragile{};
  };
  const auto load = [&](std::vector<Objects>& objects, const KeptValue& of_fragile, const KeptValue& of_z) {
    objects.resize(2);
    return thrown_by_all(2, [&](World& world) {
      auto& mine = objects[static_cast<std::size_t>(world.rank())];
      KeptValues kept;
      kept.add("a", kept_object(mine.a), KeptScope::kAllRanks);
      kept.add("fragile", kept_object(mine.fragile), KeptScope::kPerRank);
      kept.add("z", kept_object(mine.z), KeptScope::kAllRanks);
      KeptLoad loading(world, kept, {{"a", five}, {"fragile", of_fragile}, {"z", of_z}}, Missing::kRefused,
                       "cannot load x");
      CHECK(mine.a == 1);
      loading.take();
    });
  };
  const auto unchanged = [](const std::vector<Objects>& objects) {
    for (const auto& one : objects) {
      if (one.a != 1 || one.z != 2 || one.fragile.text != "before") return false;
    }
    return true;
  };
  std::vector<Objects> good;
  CHECK(load(good, text("well"), five).empty());
  CHECK(good[1].fragile.text == "well");
  CHECK((good[0].z == 5 && good[1].a == 5));
  std::vector<Objects> refused;
  const auto poisoned = load(refused, text("poison"), five);
  CHECK(has(poisoned, "cannot load x: rank 1: load of kept value 'fragile': cannot digest it; nothing has changed"));
  CHECK(unchanged(refused));
  std::vector<Objects> misfit;
  CHECK(has(load(misfit, text("well"), {KeptScope::kAllRanks, {{KeptKind::kInteger, "5000000000"}}}),
            "kept value 'z': its value '5000000000' is none of its type"));
  CHECK(unchanged(misfit));
  std::vector<Objects> other_kind;
  CHECK(has(load(other_kind, text("well"), {KeptScope::kAllRanks, {{KeptKind::kDouble, "5"}}}),
            "kept value 'z' is double in it, the registered one is integer"));
  CHECK(unchanged(other_kind));
  std::vector<Objects> for_good(2);
  for_good[1].fragile.refuses_all = true;
  const auto lost = load(for_good, text("well"), five);
  CHECK(has(lost, "cannot digest it: rank 1: the kept values 'fragile' could not be set back"));
  CHECK((for_good[0].a == 1 && for_good[1].a == 1 && for_good[0].fragile.text == "before"));
}

TEST_CASE("KeptLoad: missing and unknown names, and values of other worlds") {
  const KeptValue five{KeptScope::kAllRanks, {{KeptKind::kInteger, "5"}}};
  const KeptValue of_two{KeptScope::kPerRank, {{KeptKind::kInteger, "6"}, {KeptKind::kInteger, "7"}}};
  std::vector<std::string> lines;
  const auto load = [&](int ranks, std::vector<int>& numbers, KeptScope scope,
                        const std::map<std::string, KeptValue>& saved, Missing missing = Missing::kRefused) {
    numbers.assign(static_cast<std::size_t>(ranks), 1);
    return thrown_by_all(ranks, [&](World& world) {
      world.log().set_writer([&](const std::string& line) {
        const std::lock_guard lock(mutex);
        lines.push_back(line);
      });
      KeptValues kept;
      kept.add("epoch", kept_object(numbers[static_cast<std::size_t>(world.rank())]), scope);
      KeptLoad(world, kept, saved, missing, "cannot load x").take();
    });
  };
  std::vector<int> numbers;
  CHECK(has(load(2, numbers, KeptScope::kAllRanks, {}), "it lacks the kept value 'epoch'; to load the rest"));
  CHECK(load(2, numbers, KeptScope::kAllRanks, {}, Missing::kAllowed).empty());
  CHECK(numbers == std::vector<int>{1, 1});
  CHECK(load(2, numbers, kPerRank, {{"epoch", of_two}}).empty());
  CHECK(numbers == std::vector<int>{6, 7});
  for (const int ranks : {1, 3}) {
    const auto refused = load(ranks, numbers, kPerRank, {{"epoch", of_two}}, Missing::kAllowed);
    CHECK(
        has(refused, "kept value 'epoch' has one for each of 2 ranks in it, this world has " + std::to_string(ranks)));
    CHECK(numbers[0] == 1);
  }
  CHECK(has(load(2, numbers, KeptScope::kAllRanks, {{"epoch", of_two}}), "register it with ap::kPerRank"));
  CHECK(load(3, numbers, kPerRank, {{"epoch", five}}).empty());
  CHECK(numbers == std::vector<int>{5, 5, 5});
  CHECK(lines.empty());
  CHECK(load(2, numbers, KeptScope::kAllRanks, {{"epoch", five}, {"best", of_two}, {"x.y", five}}).empty());
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "load ignores kept values that are not registered: 'best', 'x.y'"));
}

}  // namespace kept_values_test
