#include <autopar/io/supervision.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <string>
#include <vector>

#include <unistd.h>

using namespace autopar;

namespace {

std::string variable(const std::string& value) { return "AUTOPAR_RUN=" + value; }

}  // namespace

TEST_CASE("supervision: read back as it was told") {
  const Supervision told{"/a folder/with \"quotes\" and = and \xc3\xbc", "7f3a-12", 3, true};
  const auto read = supervision({"AUTOPAR_STAGES=2", variable(to_text(told)), "AUTOPAR_RUNS=1"});
  REQUIRE(read);
  CHECK(*read == told);
  CHECK_FALSE(supervision({}));
  CHECK_FALSE(supervision({"AUTOPAR_RUN", "AUTOPAR_RUNNER=1"}));
}

TEST_CASE("supervision: snapshots of a job are in shared memory, by user") {
  CHECK(snapshot_folder("7f3a-12") == "/dev/shm/autopar-" + std::to_string(::geteuid()) + "-7f3a-12");
}

TEST_CASE("supervision: what autopar run does not say is refused by name") {
  const auto refused = [](const std::string& value) {
    return refusal([&] { static_cast<void>(supervision({variable(value)})); });
  };
  for (const auto* value : {"", "1", "[]", "{", "null"}) CHECK(contains(refused(value), "AUTOPAR_RUN"));
  const std::string rest = R"("start": 1, "may_change_batch": false})";
  CHECK(contains(refused(R"({"folder": "/x", )" + rest), "job: is missing"));
  CHECK(contains(refused(R"({"folder": "x", "job": "a", )" + rest), "no absolute path"));
  for (const auto* job : {"", "../x", "A", "a b", "a/b"})
    CHECK(contains(refused(R"({"folder": "/x", "job": ")" + std::string(job) + "\", " + rest), "'job'"));
  CHECK(contains(refused(R"({"folder": "/x", "job": "a", "start": 0, "may_change_batch": false})"), "start: "));
  CHECK(contains(refused(R"({"folder": "/x", "job": "a", "start": 1, "may_change_batch": 1})"), "true or false"));
  CHECK(contains(refused(R"({"folder": "/x", "job": "a", "more": 1, )" + rest), "unknown member 'more'"));
}
