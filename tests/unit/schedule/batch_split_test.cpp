#include <autopar/schedule/batch_split.hpp>
#include <autopar/testing/pipelines.hpp>

#include <map>
#include <set>
#include <string>

#include <catch_shim.hpp>

using namespace autopar;
using testing::Dice;

namespace {

/// (rank, position in its local batch) of every sample of a micro-batch, by the definition.
std::vector<std::pair<int, std::int64_t>> samples_of(const BatchLayout& layout, int m) {
  std::vector<std::pair<int, std::int64_t>> out;
  std::int64_t first = 0;
  for (std::size_t r = 0; r < layout.local.size(); ++r) {
    const auto b = layout.local[r];
    // sample i lies M*(i + 1) - 1 parts of 1/M sample into the batch, of which what the ranks before left over is
    // missing
    const auto shift = first % layout.microbatches;
    first += b;
    for (std::int64_t i = 0; i < b; ++i) {
      if (((i + 1) * layout.microbatches - shift - 1) / b == m) out.emplace_back(static_cast<int>(r), i);
    }
  }
  return out;
}

std::string refusal(const Pipeline& pipeline, const BatchLayout& layout) {
  try {
    BatchSplit split(pipeline, layout);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("BatchSplit: random layouts follow the definition", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const auto [pipeline, layout] = testing::random_case(seed, 6, 6);
    const BatchSplit split(pipeline, layout);
    std::set<std::int64_t> keys;
    std::int64_t total = 0;
    for (int m = 0; m < layout.microbatches; ++m) {
      const auto samples = samples_of(layout, m);
      REQUIRE(split.size(m) == static_cast<std::int64_t>(samples.size()));
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const auto [rank, offset] = samples[i];
        const auto position = static_cast<std::int64_t>(i);
        const auto piece = split.piece(Rank(rank), m);
        REQUIRE(piece.begin <= position);
        REQUIRE(position < piece.end);
        REQUIRE(split.local(Rank(rank), m).begin + position - piece.begin == offset);
        std::int64_t global = offset;
        for (int r = 0; r < rank; ++r) global += layout.local[static_cast<std::size_t>(r)];
        REQUIRE(split.first_global_sample(m, {position, position + 1}) == global);
        REQUIRE(keys.insert(global).second);
      }
    }
    for (const auto samples : layout.local) total += samples;
    REQUIRE(static_cast<std::int64_t>(keys.size()) == total);
  }
}

TEST_CASE("BatchSplit: micro-batches are even for any local batches", "[schedule]") {
  for (int ranks = 1; ranks <= 12; ++ranks) {
    Pipeline pipeline{.ranks = ranks, .stages = {{Rank(0)}}, .channels = {}, .groups = {}};
    for (std::int64_t local = 0; local <= 5; ++local) {
      for (int microbatches = 1; microbatches <= 6; ++microbatches) {
        CAPTURE(ranks, local, microbatches);
        const BatchLayout layout{std::vector<std::int64_t>(static_cast<std::size_t>(ranks), local), microbatches};
        const BatchSplit split(pipeline, layout);
        std::int64_t least = split.size(0), most = 0;
        for (int m = 0; m < microbatches; ++m) {
          least = std::min(least, split.size(m));
          most = std::max(most, split.size(m));
        }
        CHECK(most - least <= (ranks * local % microbatches == 0 ? 0 : 1));
      }
    }
  }
}

TEST_CASE("BatchSplit: slices of a stage cover its micro-batch once", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const auto [pipeline, layout] =
        seed % 2 == 0 ? testing::random_case(seed, 6, 6) : testing::random_chunked_case(seed, 6, 6);
    const BatchSplit split(pipeline, layout);
    for (int m = 0; m < layout.microbatches; ++m) {
      for (int s = -2; s < static_cast<int>(pipeline.stages.size()); ++s) {
        const StageId stage = s == -2 ? kSource : s == -1 ? kSink : StageId(s);
        std::int64_t end = 0;
        const auto slices = split.slices(stage, m);
        const auto tensor = s < 0 ? 1 : static_cast<std::size_t>(pipeline.stages[static_cast<std::size_t>(s)].tensor());
        REQUIRE(slices.size() % tensor == 0);
        for (std::size_t i = 0; i < slices.size(); ++i) {
          const MicrobatchSlice& slice = slices[i];
          if (i % tensor > 0) {  // another shard of the same replica
            REQUIRE(slice.samples == slices[i - 1].samples);
            const Mesh& mesh = pipeline.stages[static_cast<std::size_t>(s)];
            REQUIRE(mesh.replica_of(slice.rank) == mesh.replica_of(slices[i - 1].rank));
            continue;
          }
          REQUIRE(slice.samples.begin == end);
          REQUIRE(!slice.samples.empty());
          end = slice.samples.end;
          if (s >= 0 && !split.keeps_pieces()) {
            const auto replicas = static_cast<std::int64_t>(pipeline.stages[static_cast<std::size_t>(s)].replicas());
            REQUIRE(slice.samples.size() >= split.size(m) / replicas);
            REQUIRE(slice.samples.size() <= (split.size(m) + replicas - 1) / replicas);
          }
        }
        REQUIRE(end == split.size(m));
      }
    }
  }
}

TEST_CASE("BatchSplit: stages on all ranks keep every rank's samples", "[schedule]") {
  const Mesh all{Rank(1), Rank(0)};
  Pipeline pipeline{.ranks = 2,
                    .stages = {all, all},
                    .channels = {{kSource, StageId(0), ChannelKind::kBatched, true},
                                 {StageId(0), StageId(1), ChannelKind::kBatched, true}},
                    .groups = {}};
  const BatchSplit same(pipeline, {{5, 2}, 1});
  REQUIRE(same.keeps_pieces());
  for (const Channel& channel : pipeline.channels) {
    for (const Route& route : same.routes(channel, 0, Flow::kValue)) REQUIRE(route.from == route.to);
  }
  CHECK(same.slice(StageId(1), 0, 0) == Interval{5, 7});
  pipeline.stages[1] = {Rank(0), Rank(1)};
  CHECK_FALSE(BatchSplit(pipeline, {{5, 2}, 1}).keeps_pieces());
}

TEST_CASE("BatchSplit: a single stage on all ranks needs no messages", "[schedule]") {
  const Pipeline pipeline{.ranks = 3,
                          .stages = {{Rank(2), Rank(0), Rank(1)}},
                          .channels = {{kSource, StageId(0), ChannelKind::kBatched, true},
                                       {kSource, StageId(0), ChannelKind::kReplicated, true},
                                       {StageId(0), kSink, ChannelKind::kBatched, true}},
                          .groups = {}};
  const BatchSplit split(pipeline, {{5, 0, 2}, 2});
  REQUIRE(split.keeps_pieces());
  for (int m = 0; m < 2; ++m) {
    for (const Channel& channel : pipeline.channels) {
      for (const Flow flow : {Flow::kValue, Flow::kGradient}) {
        const auto routes = split.routes(channel, m, flow);
        REQUIRE(routes.size() == 2);
        for (const Route& route : routes) REQUIRE(route.from == route.to);
      }
    }
  }
  REQUIRE(split.slice(StageId(0), 0, 0) == split.piece(Rank(2), 0));
}

TEST_CASE("BatchSplit: each rank gets each sample once from a holder", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const auto [pipeline, layout] =
        seed % 2 == 0 ? testing::random_case(seed, 6, 4) : testing::random_chunked_case(seed, 6, 4);
    const BatchSplit split(pipeline, layout);
    for (const Channel& channel : pipeline.channels) {
      if (channel.kind != ChannelKind::kBatched) continue;
      for (int m = 0; m < layout.microbatches; ++m) {
        for (const Flow flow : {Flow::kValue, Flow::kGradient}) {
          if (flow == Flow::kGradient && !channel.differentiable) continue;
          std::map<Rank, Interval> held;
          for (const auto& slice : split.slices(writer_of(channel, flow), m)) held[slice.rank] = slice.samples;
          std::map<Rank, std::int64_t> next;
          for (const auto& slice : split.slices(reader_of(channel, flow), m)) next[slice.rank] = slice.samples.begin;
          for (const Route& route : split.routes(channel, m, flow)) {
            REQUIRE(!route.samples.empty());
            REQUIRE(intersect(route.samples, held.at(route.from)) == route.samples);
            REQUIRE(route.samples.begin == next.at(route.to));
            next[route.to] = route.samples.end;
          }
          for (const auto& slice : split.slices(reader_of(channel, flow), m))
            REQUIRE(next.at(slice.rank) == slice.samples.end);
        }
      }
    }
  }
}

TEST_CASE("BatchSplit: replicated values and partial sums are sent once", "[schedule]") {
  const Pipeline pipeline{.ranks = 5,
                          .stages = {{Rank(0), Rank(1), Rank(2)}, {Rank(3), Rank(4)}},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kReplicated, true},
                                       {StageId(0), StageId(1), ChannelKind::kPartialSum, true},
                                       {kSource, StageId(1), ChannelKind::kReplicated, false}},
                          .groups = {}};
  const BatchSplit split(pipeline, {{6, 0, 0, 0, 0}, 1});
  const auto& channels = pipeline.channels;
  CHECK(split.routes(channels[0], 0, Flow::kValue) ==
        std::vector<Route>{{Rank(0), Rank(3), {}}, {Rank(1), Rank(4), {}}});
  CHECK(split.routes(channels[1], 0, Flow::kValue) ==
        std::vector<Route>{{Rank(0), Rank(3), {}}, {Rank(1), Rank(4), {}}, {Rank(2), Rank(3), {}}});
  CHECK(split.routes(channels[1], 0, Flow::kGradient) ==
        std::vector<Route>{{Rank(3), Rank(0), {}}, {Rank(4), Rank(1), {}}, {Rank(3), Rank(2), {}}});
  CHECK(split.routes(channels[2], 0, Flow::kValue) ==
        std::vector<Route>{{Rank(3), Rank(3), {}}, {Rank(4), Rank(4), {}}});
  CHECK(split.routes(channels[2], 0, Flow::kGradient).empty());

  const BatchSplit one_sample(pipeline, {{0, 0, 1, 0, 0}, 1});  // the last replica of each stage holds it
  CHECK(one_sample.routes(channels[0], 0, Flow::kValue) == std::vector<Route>{{Rank(2), Rank(4), {}}});
  CHECK(one_sample.routes(channels[1], 0, Flow::kValue) == std::vector<Route>{{Rank(2), Rank(4), {}}});
  const BatchSplit nothing(pipeline, {{0, 0, 0, 0, 0}, 1});
  for (const Channel& channel : channels) CHECK(nothing.routes(channel, 0, Flow::kValue).empty());
}

TEST_CASE("BatchSplit: totals go from all holders to all readers", "[schedule]") {
  const Pipeline pipeline{.ranks = 4,
                          .stages = {{Rank(2), Rank(0)}, {Rank(0), Rank(1), Rank(2)}},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kTotal, true}},
                          .groups = {}};
  const auto& total = pipeline.channels[0];
  CHECK(BatchSplit(pipeline, {{0, 6, 0, 0}, 1}).routes(total, 0, Flow::kValue) ==
        std::vector<Route>{{Rank(2), Rank(0), {}},
                           {Rank(2), Rank(1), {}},
                           {Rank(2), Rank(2), {}},
                           {Rank(0), Rank(0), {}},
                           {Rank(0), Rank(1), {}},
                           {Rank(0), Rank(2), {}}});
  const BatchSplit one_sample(pipeline, {{0, 1, 0, 0}, 1});  // the last replica of each stage holds it
  CHECK(one_sample.routes(total, 0, Flow::kValue) == std::vector<Route>{{Rank(0), Rank(2), {}}});
  CHECK(one_sample.routes(total, 0, Flow::kGradient) == std::vector<Route>{{Rank(2), Rank(0), {}}});
}

TEST_CASE("BatchSplit: a tensor shard gets its copy from one shard", "[schedule]") {
  const Mesh wide({Rank(0), Rank(1), Rank(2), Rank(3)}, 2), narrow{Rank(4)};
  const Pipeline pipeline{.ranks = 5,
                          .stages = {wide, narrow, wide},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, true},
                                       {StageId(1), StageId(2), ChannelKind::kReplicated, true},
                                       {kSource, StageId(0), ChannelKind::kReplicated, true},
                                       {StageId(0), StageId(2), ChannelKind::kPartialSum, true}},
                          .groups = {}};
  const BatchSplit split(pipeline, {{4, 0, 0, 0, 0}, 1});
  const auto ways = [&](std::size_t channel, Flow flow) {
    std::vector<std::pair<int, int>> out;
    for (const Route& route : split.routes(pipeline.channels[channel], 0, flow))
      out.emplace_back(route.from.value(), route.to.value());
    return out;
  };
  using Ways = std::vector<std::pair<int, int>>;
  CHECK(ways(0, Flow::kValue) == Ways{{0, 4}, {2, 4}});
  CHECK(ways(0, Flow::kGradient) == Ways{{4, 0}, {4, 1}, {4, 2}, {4, 3}});
  CHECK(ways(1, Flow::kValue) == Ways{{4, 0}, {4, 1}, {4, 2}, {4, 3}});
  CHECK(ways(1, Flow::kGradient) == Ways{{0, 4}, {2, 4}});
  CHECK(ways(2, Flow::kValue) == Ways{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
  CHECK(ways(2, Flow::kGradient) == Ways{{0, 0}, {2, 2}});
  CHECK(ways(3, Flow::kValue) == Ways{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
}

TEST_CASE("BatchSplit: malformed pipelines and layouts are refused", "[schedule]") {
  const Pipeline good{.ranks = 2,
                      .stages = {{Rank(0)}, {Rank(1)}},
                      .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, true}},
                      .groups = {{{Rank(0), Rank(1)}, StageId::none(), 1}}};
  const BatchLayout layout{{1, 1}, 1};
  using Catch::Matchers::ContainsSubstring;
  REQUIRE(refusal(good, layout).empty());
  const auto changed = [&](auto change) {
    Pipeline pipeline = good;
    change(pipeline);
    return refusal(pipeline, layout);
  };
  CHECK_THAT(changed([](Pipeline& p) { p.stages[1] = {}; }), ContainsSubstring("stage 1 has no rank"));
  CHECK_THAT(changed([](Pipeline& p) { p.stages[1] = {Rank(2)}; }), ContainsSubstring("ranks are 0 to 1"));
  CHECK(changed([](Pipeline& p) { p.stages[1] = {Rank(1), Rank(0)}; }).empty());
  CHECK_THAT(changed([](Pipeline& p) {
               p.stages[1] = {Rank(0), Rank(1), Rank(0)};
             }),
             ContainsSubstring("stage 1 has rank 0 twice"));
  CHECK_THAT(changed([](Pipeline& p) { p.channels[0].to = StageId(2); }), ContainsSubstring("does not exist"));
  CHECK_THAT(changed([](Pipeline& p) { std::swap(p.channels[0].from, p.channels[0].to); }),
             ContainsSubstring("from an earlier to a later"));
  CHECK_THAT(changed([](Pipeline& p) {
               p.channels[0] = {StageId(1), kSink, ChannelKind::kPartialSum, true};
             }),
             ContainsSubstring("to the sink; reduce them"));
  CHECK_THAT(changed([](Pipeline& p) {
               p.channels[0] = {StageId(1), kSink, ChannelKind::kReplicated, true};
             }),
             ContainsSubstring("to the sink; reduce them"));
  CHECK_THAT(changed([](Pipeline& p) {
               p.channels[0] = {kSource, StageId(1), ChannelKind::kPartialSum, true};
             }),
             ContainsSubstring("partial sums from the source"));
  CHECK_THAT(changed([](Pipeline& p) {
               p.channels[0] = {StageId(1), kSink, ChannelKind::kTotal, true};
             }),
             ContainsSubstring("to the sink; reduce them"));
  CHECK_THAT(changed([](Pipeline& p) {
               p.channels[0] = {kSource, StageId(1), ChannelKind::kTotal, true};
             }),
             ContainsSubstring("partial sums from the source"));
  CHECK_THAT(changed([](Pipeline& p) { p.groups[0].ranks = {Rank(1)}; }), ContainsSubstring("fewer than two"));
  CHECK_THAT(changed([](Pipeline& p) { p.groups[0].ranks = {Rank(1), Rank(0)}; }), ContainsSubstring("ascending"));
  CHECK_THAT(changed([](Pipeline& p) { p.groups[0].buckets = -1; }), ContainsSubstring("-1 buckets"));
  CHECK_THAT(changed([](Pipeline& p) { p.groups[0].stage = StageId(2); }),
             ContainsSubstring("group 0 belongs to a stage"));
  CHECK_THAT(changed([](Pipeline& p) { p.groups[0].zero = 3; }), ContainsSubstring("group 0 belongs to a stage"));
  CHECK_THAT(refusal(good, {{1}, 1}), ContainsSubstring("1 local batches for 2 ranks"));
  CHECK_THAT(refusal(good, {{1, 1}, 0}), ContainsSubstring("0 micro-batches"));
  CHECK_THAT(refusal(good, {{1, -3}, 1}), ContainsSubstring("rank 1 has -3 samples"));
}
