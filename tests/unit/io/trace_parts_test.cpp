#include <catch_shim.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/trace_file.hpp>
#include <autopar/io/trace_parts.hpp>

// Traces of several ranks: the file, and the parts that it is joined from.
namespace trace_parts_test {

using namespace autopar;
namespace fs = std::filesystem;

constexpr std::uint64_t kModel = 7;

TraceEvent bar(int rank, const std::string& lane, double begin, double end) {
  return {Rank(rank), lane, lane + " bar", Seconds(begin), Seconds(end)};
}

TracePart part_of(int rank, std::int64_t step = 1) {
  TraceEvent op{Rank(rank), "compute",    "aten::relu", Seconds(0.25), Seconds(0.5), TraceCategory::kOperator,
                step,       "aten::relu", "layers.0"};
  TraceEvent action{Rank(rank), "compute", "forward", Seconds(0), Seconds(1), TraceCategory::kForward, step};
  return {kModel, {Rank(rank), "rank " + std::to_string(rank) + " (host, cpu)", "a note"}, {action, op}};
}

std::vector<bool> all(int ranks) { return std::vector<bool>(static_cast<std::size_t>(ranks), true); }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("to_chrome_trace: bars of a thread nest or follow one another") {
  const auto text = to_chrome_trace({bar(0, "a", 0, 1), bar(0, "a", 0.5, 2), bar(0, "a", 0.2, 0.4), bar(0, "a", 1, 2),
                                     bar(0, "a", 2, 3), bar(1, "a", 0, 1)},
                                    kModel, {{Rank(0), "rank 0 (h, cpu)", "a note"}});
  const auto rows = trace_rows::bars_of(text);
  REQUIRE(rows.size() == 6);
  for (const auto& a : rows) {
    for (const auto& b : rows) {
      if (a.thread != b.thread || a.begin > b.begin || a.text == b.text) continue;
      CHECK((a.end <= b.begin || b.end <= a.end));
    }
  }
  CHECK(count(text, "thread_name") == 3);
  CHECK(count(text, "\"a 2\"") == 1);
  CHECK(count(text, "\"process_name\"") == 1);
  CHECK(count(text, "\"labels\":\"a note\"") == 1);
}

TEST_CASE("to_chrome_trace: each row has ph, ts, pid and tid") {
  auto part = part_of(3, 5);
  const auto text = to_chrome_trace(part.events, kModel, {part.process});
  const auto rows = count(text, "\"ph\":");
  CHECK(rows == 3 + 1 + 2);
  for (const std::string key : {"\"ts\":", "\"pid\":3,", "\"tid\":"}) CHECK(count(text, key) == rows);
  const auto bars = trace_rows::bars_of(text);
  REQUIRE(bars.size() == 2);
  CHECK(bars[0].category == "forward");
  CHECK(bars[1].category == "operator");
  CHECK(bars[1].op == "aten::relu");
  CHECK(bars[1].module == "layers.0");
  CHECK(bars[1].step == 5);
}

TEST_CASE("trace part: what is written is read back") {
  const auto part = part_of(2);
  const auto text = to_text(part);
  CHECK(text.starts_with("{\"format\":\"autopar trace part of model 0000000000000007\","));
  const auto back = parse_trace_part(text, "p");
  CHECK(to_text(back) == text);
  CHECK(back.events[1].module == "layers.0");
  CHECK(back.events[0].step == 1);
}

TEST_CASE("trace part: hostile text is refused, never a crash") {
  const auto good = to_text(part_of(2));
  const auto with = [&](const std::string& from, const std::string& to) {
    auto text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return refusal([&] { (void)parse_trace_part(text.replace(at, from.size(), to), "p"); });
  };
  CHECK(with("\"rank\":2", "\"rank\":-1").find("rank") != std::string::npos);
  CHECK(with("\"rank\":2", "\"rank\":4294967296").find("rank") != std::string::npos);
  CHECK(with("trace part", "plan").find("that of another file") != std::string::npos);
  CHECK(with("\"forward\",1", "\"fourward\",1").find("number 0 is no event") != std::string::npos);
  CHECK(with("1000000.0", "1e400") != "");
  CHECK(with("1000000.0", "-1") != "");
  CHECK(with("1000000.0", "\"1\"") != "");
  CHECK(with("\"layers.0\"", "null").find("number 1 is no event") != std::string::npos);
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    auto text = good;
    for (int k = 0; k < 1 + round % 5; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (round % 4 == 0) text.resize(random() % text.size());
    static_cast<void>(refusal([&] { (void)parse_trace_part(text, "p"); }));
  }
}

TEST_CASE("trace parts: who ends last joins and removes them, in any order") {
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    const TempFolder folder;
    const fs::path file = folder / "t.json";
    TraceParts(file, 3, Overwrite::kOwn).open("run");
    for (const int rank : order) {
      const TraceParts parts(file, 3, Overwrite::kOwn);
      CHECK(parts.run() == "run");
      parts.write(part_of(rank, 1));
      parts.finish(part_of(rank, 2), all(3));
    }
    CHECK_FALSE(fs::exists(file.string() + ".parts"));
    const auto text = read_text_file(file);
    for (int rank = 0; rank < 3; ++rank) {
      const auto bars = trace_rows::latest_bars_of(text, rank);
      REQUIRE(bars.size() == 2);
      CHECK(bars[0].step == 2);
    }
    CHECK(trace_rows::bars_of(text).size() == 6);
  }
}

TEST_CASE("trace parts: ranks that end at once leave one whole file") {
  constexpr int kRanks = 8;
  for (int round = 0; round < 5; ++round) {
    const TempFolder folder;
    const fs::path file = folder / "t.json";
    TraceParts(file, kRanks, Overwrite::kOwn).open("run");
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] { TraceParts(file, kRanks, Overwrite::kOwn).finish(part_of(rank), all(kRanks)); });
    for (auto& rank : ranks) rank.join();
    CHECK(trace_rows::bars_of(read_text_file(file)).size() == 2 * kRanks);
    CHECK_FALSE(fs::exists(file.string() + ".parts"));
  }
}

TEST_CASE("trace parts: a join waits for another one") {
  const TempFolder folder;
  const fs::path file = folder / "t.json";
  const TraceParts parts(file, 1, Overwrite::kOwn);
  parts.open("run");
  const int other = ::open((file.string() + ".parts/.lock").c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(::flock(other, LOCK_EX) == 0);
  std::thread rank([&] { parts.finish(part_of(0), all(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(fs::exists(file));
  ::close(other);
  rank.join();
  CHECK(fs::exists(file));
}

TEST_CASE("trace parts: a rank whose part was joined meanwhile leaves no folder") {
  const TempFolder folder;
  const fs::path file = folder / "t.json", parts = file.string() + ".parts";
  TraceParts(file, 2, Overwrite::kOwn).open("run");
  const int lock = ::open((parts / ".lock").c_str(), O_RDWR | O_CREAT, 0666);
  REQUIRE(::flock(lock, LOCK_EX) == 0);
  std::thread rank([&] { CHECK(TraceParts(file, 2, Overwrite::kOwn).finish(part_of(1), all(2)).ranks == 0); });
  while (!fs::exists(parts / "rank-1.end.json")) std::this_thread::yield();
  fs::remove(parts / "rank-1.end.json");  // as the last rank does, before the lock is made that the other one waits for
  fs::remove(parts / "run");
  ::close(lock);
  rank.join();
  CHECK_FALSE(fs::exists(parts));
}

TEST_CASE("trace parts: a killed rank's part is joined, and kept by the next start") {
  const TempFolder folder;
  const fs::path file = folder / "t.json";
  const TraceParts parts(file, 2, Overwrite::kOwn);
  parts.open("run");
  parts.write(part_of(1, 4));  // then it is killed
  CHECK(parts.finish(part_of(0, 5), all(2)).ranks == 2);
  CHECK(trace_rows::latest_bars_of(read_text_file(file), 1).size() == 2);
  CHECK(fs::exists(file.string() + ".parts"));
  const auto kept = TraceParts(file, 3, Overwrite::kOwn).recover();  // the next start may have other ranks
  CHECK(kept.ranks == 2);
  CHECK(kept.path == fs::path(folder / "t.killed.json"));
  CHECK(kept.skipped.empty());
  const auto text = read_text_file(kept.path);
  CHECK(trace_rows::latest_bars_of(text, 0).front().step == 5);
  CHECK(trace_rows::latest_bars_of(text, 1).front().step == 4);
  CHECK_FALSE(fs::exists(file.string() + ".parts"));
  CHECK(TraceParts(file, 2, Overwrite::kOwn).recover().ranks == 0);
}

TEST_CASE("trace parts: damaged, foreign and strange files are left out") {
  const TempFolder folder;
  const fs::path file = folder / "t.json", inside = file.string() + ".parts";
  const TraceParts parts(file, 6, Overwrite::kOwn);
  parts.open("run");
  parts.write(part_of(0));
  const auto good = to_text(part_of(1));
  write_text_file(inside / "rank-1.json", good.substr(0, good.size() / 2));
  write_text_file(inside / "rank-2.json",
                  "\x7f"
                  "ELF garbage");
  write_text_file(inside / "rank-3.json", good);  // says rank 1
  auto other = part_of(4);
  other.model = kModel + 1;
  write_text_file(inside / "rank-4.json", to_text(other));
  REQUIRE(::mkfifo((inside / "rank-5.json").c_str(), 0600) == 0);
  write_text_file(inside / "rank-99999999999.json", good);
  write_text_file(inside / "mine.txt", "not autopar's");
  const auto joined = parts.join(kModel);
  CHECK(joined.ranks == 1);
  CHECK(joined.skipped.size() == 5);
  for (const auto& line : joined.skipped) CHECK(line.find("a part of the trace is left out: ") == 0);
  CHECK(trace_rows::bars_of(read_text_file(file)).size() == 2);
  const auto kept = parts.recover();
  CHECK(kept.ranks == 1);
  CHECK(kept.skipped.size() == 5);
  CHECK(fs::exists(inside / "mine.txt"));
  CHECK_FALSE(fs::exists(inside / "rank-1.json"));
}

TEST_CASE("trace parts: a trace that is no regular file has none") {
  const TempFolder folder;
  for (const fs::path& file : {fs::path("/dev/null"), fs::path(folder / ""), fs::path(folder / ".")}) {
    CAPTURE(file.string());
    CHECK(refusal([&] { TraceParts(file, 2, Overwrite::kOwn).open("run"); }).find("regular file") != std::string::npos);
  }
  write_text_file(folder / "t.json", "my thesis");
  const TraceParts parts(folder / "t.json", 1, Overwrite::kOwn);
  parts.write(part_of(0));
  CHECK(refusal([&] { parts.join(kModel); }).find("was not written by autopar") != std::string::npos);
  CHECK(read_text_file(folder / "t.json") == "my thesis");
}

}  // namespace trace_parts_test
