#include <autopar/io/checkpoint_index.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <replaced.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <span>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>

using namespace autopar;

namespace {

/// Two files; a tensor in one, one in flat shards, one by columns, of which a half is shared by two ranks.
CheckpointIndex sample_index() {
  CheckpointIndex index;
  index.generation = 7;
  index.metadata = {{"autopar.seed", "17"}, {"quote", "\"\n\xc3\xa4"}};
  index.files = {{"model-0000-g7.safetensors", Bytes(1000), 0x0123456789abcdefULL},
                 {"model-0001-g7.safetensors", Bytes(2000), std::numeric_limits<std::uint64_t>::max()},
                 {"optimizer-0002-g7.safetensors", Bytes(2000), 0}};
  index.model = {{{"scale", DType::kF32, {}}, {}, {{0, ElementSlices::whole(1)}}},
                 {{"a.bias", DType::kBF16, {5}}, {"b.bias"}, {{0, {1, {{0, 2}}, {0, 2}}}, {1, {1, {{2, 5}}, {0, 3}}}}},
                 {{"a.weight", DType::kF32, {3, 4}},
                  {},
                  {{0, {3, {{0, 1}, {3, 4}}, {0, 6}}}, {1, {3, {{1, 3}}, {0, 2}}}, {2, {3, {{1, 3}}, {2, 6}}}}},
                 {{"none", DType::kI64, {0, 5}}, {}, {}}};
  index.optimizer = {{{"a.bias", DType::kF32, {5}}, {}, {{2, ElementSlices::whole(5)}}}};
  return index;
}

std::string index_refusal(const std::string& json) {
  return refusal([&] { (void)parse_checkpoint_index(json, "index.json"); });
}
std::string index_refusal(const CheckpointIndex& index) {
  return refusal([&] { (void)to_json(index); });
}

/// The text with a checksum that fits, so that what else is wrong is found.
std::string sealed_index(const std::string& text) {
  const auto body = text.substr(0, text.find(",\n\"checksum\""));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(body)))));
  return body + ",\n\"checksum\":\"" + digits + "\"}\n";
}

/// The model tensor "t" of a file for each part.
CheckpointIndex index_of(const std::vector<std::int64_t>& shape, const std::vector<ElementSlices>& parts) {
  CheckpointIndex index;
  CheckpointTensor tensor{{"t", DType::kU8, shape}, {}, {}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    index.files.push_back({std::to_string(i) + ".safetensors", Bytes(0), 0});
    tensor.parts.push_back({static_cast<std::int32_t>(i), parts[i]});
  }
  index.model = {tensor};
  return index;
}

/// How often each element is in the parts, counted one by one. @pre each part is valid alone
std::vector<int> times_covered(std::int64_t elements, const std::vector<ElementSlices>& parts) {
  std::vector<int> count(static_cast<std::size_t>(elements));
  for (const auto& [blocks, ranges, part] : parts) {
    std::int64_t position = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (const auto& range : ranges) {
        for (auto i = range.begin; i < range.end; ++i, ++position) {
          if (position >= part.begin && position < part.end)
            ++count[static_cast<std::size_t>(block * (elements / blocks) + i)];
        }
      }
    }
  }
  return count;
}

std::int64_t number_below(std::mt19937& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
}

/// Ascending cuts of [0, end], with both ends.
std::vector<std::int64_t> random_cuts(std::mt19937& random, std::int64_t end, std::int64_t most) {
  std::vector<std::int64_t> cuts{0, end};
  for (auto k = number_below(random, most + 1); k > 0; --k) cuts.push_back(number_below(random, end + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Parts that cover blocks of this length: columns dealt out to owners, each owner's slices cut among replicas.
std::vector<ElementSlices> random_parts(std::mt19937& random, std::int64_t blocks, std::int64_t length) {
  const auto owners = 1 + number_below(random, 3);
  std::vector<std::vector<Interval>> ranges(static_cast<std::size_t>(owners));
  const auto columns = random_cuts(random, length, 4);
  for (std::size_t i = 0; i + 1 < columns.size(); ++i)
    ranges[static_cast<std::size_t>(number_below(random, owners))].push_back({columns[i], columns[i + 1]});
  std::vector<ElementSlices> parts;
  for (const auto& of_owner : ranges) {
    std::int64_t size = 0;
    for (const auto& range : of_owner) size += range.size();
    const auto cuts = random_cuts(random, blocks * size, 2);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) parts.push_back({blocks, of_owner, {cuts[i], cuts[i + 1]}});
  }
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

}  // namespace

TEST_CASE("checkpoint index: round trip, and equal bytes for equal values") {
  for (const auto& index : {sample_index(), CheckpointIndex{}}) {
    const auto text = to_json(index);
    CHECK(parse_checkpoint_index(text, "i") == index);
    CHECK(to_json(parse_checkpoint_index(text, "i")) == text);
    CHECK(sealed_index(text) == text);
    CHECK(text.starts_with(R"({"format":"autopar checkpoint","version":3)"));
  }
}

TEST_CASE("checkpoint index: random indexes round trip") {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    CheckpointIndex index;
    index.generation = number_below(random, 1'000'000);
    for (auto k = number_below(random, 3); k > 0; --k)
      index.metadata["k" + std::to_string(random())] = std::to_string(k);
    for (int i = 0; i < 12; ++i)
      index.files.push_back({"f" + std::to_string(i) + ".safetensors", Bytes(random()), random()});
    for (auto* list : {&index.model, &index.optimizer}) {
      for (auto k = number_below(random, 5); k > 0; --k) {
        const auto blocks = 1 + number_below(random, 6), length = 1 + number_below(random, 9);
        CheckpointTensor tensor{
            {(list == &index.model ? "m" : "o") + std::to_string(k), DType::kF64, {blocks, length}}};
        if (random() % 2 == 0) tensor.aliases = {"alias" + std::to_string(k)};
        auto file = static_cast<std::int32_t>(0);
        for (const auto& part : random_parts(random, blocks, length)) tensor.parts.push_back({file++, part});
        list->push_back(tensor);
      }
    }
    REQUIRE(parse_checkpoint_index(to_json(index), "i") == index);
  }
}

TEST_CASE("checkpoint index: parts cover exactly when each element is counted once") {
  std::mt19937 random(5);
  int exact = 0, not_exact = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto blocks = 1 + number_below(random, 5), length = 1 + number_below(random, 7);
    auto parts = random_parts(random, blocks, length);
    if (round % 3 != 0) {  // one part starts or ends elsewhere, is missing, is there twice, or is a flat range
      const auto chosen = static_cast<std::size_t>(number_below(random, static_cast<std::int64_t>(parts.size())));
      auto& part = parts[chosen];
      std::int64_t size = 0;
      for (const auto& range : part.ranges) size += range.size();
      const auto change = random() % 5;
      if (change == 0) part.part.begin = number_below(random, part.part.end + 1);
      if (change == 1) part.part.end = part.part.begin + number_below(random, blocks * size - part.part.begin + 1);
      if (change == 2) parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(chosen));
      if (change == 3) parts.push_back(ElementSlices(part));
      if (change == 4) {
        const auto cuts = random_cuts(random, blocks * length, 1);
        part = {1, {{cuts[0], cuts[1]}}, {0, cuts[1] - cuts[0]}};
      }
    }
    const auto counts = times_covered(blocks * length, parts);
    const bool expected = std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
    const auto message = index_refusal(index_of({blocks, length}, parts));
    CAPTURE(round, blocks, length, message);
    REQUIRE(message.empty() == expected);
    const bool is_twice = std::any_of(counts.begin(), counts.end(), [](int count) { return count > 1; });
    REQUIRE(contains(message, "is in two parts") == is_twice);
    ++(expected ? exact : not_exact);
  }
  CHECK(exact > 6000);
  CHECK(not_exact > 6000);
}

TEST_CASE("checkpoint index: mixed flat parts and slices by columns cover a tensor") {
  // Row 0 and a half of row 1 flat; the rest of the columns of rows 1 and 2 by two owners.
  const std::vector<ElementSlices> parts{{1, {{0, 6}}, {0, 6}}, {3, {{0, 2}}, {4, 6}}, {3, {{2, 4}}, {2, 6}}};
  CHECK(index_refusal(index_of({3, 4}, parts)).empty());
  CHECK(contains(index_refusal(index_of({3, 4}, {parts[0], parts[1]})), "its parts have 8 of its 12 elements"));
  CHECK(contains(index_refusal(index_of({3, 4}, {parts[0], {3, {{0, 2}}, {3, 6}}, parts[2]})),
                 "element 5 is in two parts"));
}

TEST_CASE("checkpoint index: the check does not depend on the number of blocks") {
  const std::int64_t rows = std::int64_t{1} << 50;
  std::vector<ElementSlices> columns;
  for (std::int64_t i = 0; i < 8; ++i) columns.push_back({rows, {{i, i + 1}}, {0, rows}});
  CHECK(index_refusal(index_of({rows, 8}, columns)).empty());
  columns[3].part.end -= 1;
  CHECK(contains(index_refusal(index_of({rows, 8}, columns)), "elements"));
  // Many parts: a vocabulary of 50,000 rows, by columns, among 1,000 ranks.
  std::vector<ElementSlices> many;
  for (std::int64_t i = 0; i < 1000; ++i) many.push_back({50'000, {{4 * i, 4 * i + 4}}, {0, 200'000}});
  CHECK(index_refusal(index_of({50'000, 4000}, many)).empty());
}

TEST_CASE("checkpoint index: what could not be read is not written") {
  const auto with = [](const auto& change) {
    auto index = sample_index();
    change(index);
    return index_refusal(index);
  };
  using Index = CheckpointIndex;
  CHECK(contains(with([](Index& i) { i.generation = -1; }), "generation"));
  CHECK(contains(with([](Index& i) { i.metadata["k"] = "\xff"; }), "UTF-8"));
  for (const char* name : {"", ".", "..", ".safetensors", "a/b.safetensors", "../b.safetensors", "/b.safetensors",
                           "index.json", ".autopar-lock", "model"}) {
    CHECK(contains(with([&](Index& i) { i.files[0].name = name; }), "is not the name of a .safetensors file"));
  }
  CHECK(contains(with([](Index& i) { i.files[0].name = std::string("a\0.safetensors", 14); }), "is not the name"));
  CHECK(contains(with([](Index& i) { i.files[0].name = std::string(300, 'a') + ".safetensors"; }), "is not the name"));
  CHECK(contains(with([](Index& i) { i.files[1].name = i.files[0].name; }), "is there twice"));
  CHECK(contains(with([](Index& i) { i.files[1].bytes = Bytes(-1); }), "less than 0 bytes"));
  CHECK(contains(with([](Index& i) { i.model[1].entry.name = "scale"; }), "model tensor 'scale': the name is there"));
  CHECK(contains(with([](Index& i) { i.model[1].aliases = {"scale"}; }), "alias 'scale' is there twice"));
  CHECK(contains(with([](Index& i) { i.model[1].aliases = {"x", "x"}; }), "alias 'x' is there twice"));
  CHECK(contains(with([](Index& i) { i.model[0].parts[0].file = 3; }), "no file 3 among 3"));
  CHECK(contains(with([](Index& i) { i.model[0].parts[0].file = -1; }), "no file -1 among 3"));
  CHECK(contains(with([](Index& i) { i.model[1].parts[1].file = 0; }), "two tensors of this name"));
  CHECK(contains(with([](Index& i) { i.optimizer[0].parts[0].file = 1; }), "two tensors of this name"));
  CHECK(contains(with([](Index& i) { i.model[0].entry.shape = {-1}; }), "sizes"));
  CHECK(contains(with([](Index& i) { i.model[0].entry.shape = {1LL << 32, 1LL << 31}; }), "sizes"));
  CHECK(contains(with([](Index& i) { i.model[0].parts.clear(); }), "have 0 of its 1 elements"));
  CHECK(contains(with([](Index& i) { i.model[3].parts = {{0, ElementSlices::whole(1)}}; }), "no elements"));
  CHECK(with([](Index& i) { i.model[3].parts = {{0, ElementSlices::whole(0)}}; }).empty());
  const auto with_part = [&](const ElementSlices& elements) {
    return with([&](Index& i) { i.model[2].parts[1].elements = elements; });
  };
  CHECK(contains(with_part({0, {{1, 3}}, {0, 2}}), "part 1: 12 elements are not 0 equal blocks"));
  CHECK(contains(with_part({-3, {{1, 3}}, {0, 2}}), "not -3 equal blocks"));
  CHECK(contains(with_part({5, {{1, 2}}, {0, 2}}), "part 0: has 3 blocks, another part has 5"));
  CHECK(contains(with_part({2, {{1, 3}}, {0, 2}}), "has 2 blocks, another part has 3"));
  CHECK(contains(with_part({3, {{1, 5}}, {0, 2}}), "do not ascend within 0 to 4"));
  CHECK(contains(with_part({3, {{-1, 1}}, {0, 2}}), "do not ascend"));
  CHECK(contains(with_part({3, {{3, 1}}, {0, 2}}), "do not ascend"));
  CHECK(contains(with_part({3, {{2, 3}, {1, 2}}, {0, 2}}), "do not ascend"));
  CHECK(contains(with_part({3, {{1, 3}, {2, 4}}, {0, 2}}), "do not ascend"));
  CHECK(contains(with_part({3, {{1, 3}}, {0, 7}}), "[0, 7) is no part of the 6 elements"));
  CHECK(contains(with_part({3, {{1, 3}}, {-1, 2}}), "[-1, 2) is no part"));
  CHECK(contains(with_part({3, {{1, 3}}, {2, 1}}), "[2, 1) is no part"));
  CHECK(contains(with_part({3, {}, {0, 1}}), "[0, 1) is no part of the 0 elements"));
}

TEST_CASE("checkpoint index: other formats and versions are refused by name") {
  const auto text = to_json(sample_index());
  CHECK(contains(index_refusal(replaced(text, "autopar checkpoint", "autopar costs")),
                 "index.json: format: 'autopar costs' is no 'autopar checkpoint'"));
  CHECK(contains(index_refusal("{}"), "format: is missing"));
  CHECK(contains(index_refusal("[]"), "expected an object"));
  CHECK(contains(index_refusal(replaced(text, "\"version\":3", "\"version\":4")),
                 "has version 4, this autopar reads 3; load it with the autopar that wrote it"));
  CHECK(contains(index_refusal(replaced(text, "\"version\":3", "\"version\":\"3\"")),
                 "version: expected a whole number"));
  CHECK(contains(index_refusal(replaced(text, "\"generation\":7", "\"generation\":8")), "was altered"));
  CHECK(contains(index_refusal(text.substr(0, text.size() - 1)), "was altered"));
  CHECK(contains(index_refusal(text + "\n"), "was altered"));
}

TEST_CASE("checkpoint index: wrong members are refused despite the checksum") {
  const auto text = to_json(sample_index());
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& part) {
    const auto message = index_refusal(sealed_index(replaced(text, from, to)));
    CAPTURE(from, to, message);
    CHECK(contains(message, part));
  };
  const std::string huge = "123456789012345678901234567890";
  refused("\"generation\":7", "\"generation\":-7", "generation");
  refused("\"generation\":7", "\"generation\":7.5", "generation");
  refused("\"generation\":7", "\"generation\":" + huge, "generation");
  refused("\"generation\":7", "\"generation\":18446744073709551615", "generation");
  refused("\"generation\":7", "\"generations\":7", "generation: is missing");
  refused("\"generation\":7", "\"generation\":7,\"extra\":1", "unknown member 'extra'");
  refused("\"generation\":7", "\"generation\":7,\"generation\":7", "there twice");
  refused("\"metadata\":{", "\"metadata\":{\"k\":1,", "metadata: expected text as 'k'");
  refused("\"metadata\":{", "\"metadata\":[],\"x\":{", "metadata: expected an object");
  refused("\"bytes\":1000", "\"bytes\":" + huge, "files[0].bytes");
  refused("0123456789abcdef", "0123456789ABCDEF", "files[0].header_checksum: expected 16 hexadecimal digits");
  refused("\"dtype\":\"bf16\"", "\"dtype\":\"bf17\"", "model[1].dtype: 'bf17' is not an element type");
  refused("\"shape\":[3,4]", "\"shape\":[3,-4]", "model[2].shape");
  refused("\"shape\":[3,4]", "\"shape\":[3,\"4\"]", "model[2].shape");
  refused("\"shape\":[3,4]", "\"shape\":12", "model[2].shape: expected a list");
  refused("\"shape\":[3,4]", "\"shape\":[3," + huge + "]", "model[2].shape");
  refused("\"shape\":[3,4]", "\"shape\":[9223372036854775807,9223372036854775807]", "sizes");
  refused("\"aliases\":[\"b.bias\"]", "\"aliases\":[1]", "model[1].aliases: expected a list of texts");
  refused("\"file\":2", "\"file\":2147483648", "file");
  refused("\"file\":2", "\"file\":2147483647", "no file 2147483647");
  refused("\"blocks\":3", "\"blocks\":9223372036854775807", "equal blocks");
  refused("\"ranges\":[[1,3]]", "\"ranges\":[[1,3,4]]", "ranges: expected [begin, end]");
  refused("\"ranges\":[[1,3]]", "\"ranges\":[1,3]", "ranges: expected lists");
  refused("\"ranges\":[[1,3]]", "\"ranges\":[[1,9223372036854775807]]", "do not ascend");
  refused("\"part\":[2,6]", "\"part\":[2]", "part: expected [begin, end]");
  refused("\"part\":[2,6]", "\"part\":[2,9223372036854775807]", "is no part");
  refused("\"part\":[2,6]", "\"part\":[1,6]", "in two parts");
  refused("\"part\":[2,6]", "\"part\":[3,6]", "have 11 of its 12 elements");
  refused("\"part\":[2,6]", "\"part\":[2,6],\"of\":1", "unknown member 'model[2].parts[2].of'");
  refused("\"optimizer\":[", "\"optimizer\":[[],", "expected an object");
}

TEST_CASE("checkpoint index: truncated or damaged text never crashes") {
  const auto index = sample_index();
  const auto good = to_json(index);
  for (std::size_t length = 0; length < good.size(); ++length)
    REQUIRE(contains(index_refusal(good.substr(0, length)), "index.json: "));
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto text = good;
    for (int bit = 0; bit < 8; ++bit) {
      text[at] = static_cast<char>(good[at] ^ (1 << bit));
      REQUIRE_FALSE(index_refusal(text).empty());
    }
  }
  std::mt19937 random(5);
  const std::string pieces = "0123456789[]{}\",:-";
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {  // with a checksum that fits: whatever is read is valid
    auto text = good;
    for (int k = 0; k < 1 + round % 4; ++k) text[random() % text.size()] = pieces[random() % pieces.size()];
    if (text.find(",\n\"checksum\"") == std::string::npos) continue;
    try {
      const auto read = parse_checkpoint_index(sealed_index(text), "i");
      REQUIRE(parse_checkpoint_index(to_json(read), "i") == read);
      ++accepted;
    } catch (const CheckpointError&) {
    }
  }
  CHECK(accepted > 0);
  CHECK_FALSE(index_refusal(std::string(100'000, '[')).empty());
  CHECK_FALSE(index_refusal("{\"format\":" + std::string(1000, '1') + "}").empty());
}
