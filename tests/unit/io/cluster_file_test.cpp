#include <autopar/io/cluster_file.hpp>

#include <catch_shim.hpp>
#include <replaced.hpp>

#include <autopar/core/error.hpp>

using namespace autopar;

namespace {

const std::string kGood = R"(name = "two nodes"
devices = 16

[device]
name = "A100-40"
memory_gib = 40
memory_bandwidth_gb_s = 1555
f64_tflops = 9.7
f32_tflops = 19.5
tf32_tflops = 156
f16_tflops = 312
bf16_tflops = 312
efficiency = 0.5
launch_us = 5

[[level]]
name = "NVLink"
span = 8
bandwidth_gb_s = 300
latency_us = 3

[[level]]
name = "InfiniBand"
span = 16
bandwidth_gb_s = 25
latency_us = 8
)";

}  // namespace

TEST_CASE("parse_cluster: round trip") {
  const auto cluster = parse_cluster(kGood, "c.toml");
  CHECK(cluster.devices == 16);
  CHECK(cluster.device.memory == Bytes(std::int64_t{40} << 30));
  CHECK(cluster.device.efficiency == 0.5);
  CHECK(cluster.between(Rank(1), Rank(7)) == cluster.levels[0].link);
  CHECK(cluster.between(Rank(7), Rank(8)) == cluster.levels[1].link);
  const auto again = parse_cluster(to_toml(cluster), "again");
  CHECK(to_toml(again) == to_toml(cluster));
}

TEST_CASE("parse_cluster: host round trip, without one devices are CPUs") {
  CHECK_FALSE(parse_cluster(kGood, "c.toml").host);
  const auto with = [](const std::string& keys) {
    return replaced(kGood, "[device]", "[host]\n" + keys + "\n[device]");
  };
  const auto cluster = parse_cluster(
      with("memory_gib = 128\nmemory_bandwidth_gb_s = 51\nlink_bandwidth_gb_s = 12.5\nlink_latency_us = 7"), "c.toml");
  REQUIRE(cluster.host);
  CHECK(cluster.host->memory == Bytes(std::int64_t{128} << 30));
  CHECK(cluster.host->memory_bandwidth == BytesPerSecond(51e9));
  CHECK(cluster.host->link == Link{Seconds(7e-6), BytesPerSecond(12.5e9)});
  CHECK(to_toml(parse_cluster(to_toml(cluster), "again")) == to_toml(cluster));
  const auto least = parse_cluster(with("memory_gib = 1"), "c.toml");
  CHECK(least.host->link.latency.value() == Approx(Host{}.link.latency.value()));
  CHECK(least.host->link.bandwidth.value() == Approx(Host{}.link.bandwidth.value()));
  CHECK_THROWS_WITH(parse_cluster(with("memory = 1"), "c.toml"), Catch::Contains("host.memory_gib: is missing"));
  CHECK_THROWS_WITH(parse_cluster(with("memory_gib = 1\nlink_gb_s = 1"), "c.toml"), Catch::Contains("host.link_gb_s"));
}

TEST_CASE("parse_cluster: mistakes are named") {
  const auto refused = [](const std::string& toml, const std::string& part) {
    try {
      (void)parse_cluster(toml, "c.toml");
      FAIL("accepted");
    } catch (const ConfigError& error) {
      CAPTURE(error.what());
      CHECK(std::string(error.what()).find(part) != std::string::npos);
    }
  };
  refused(replaced(kGood, "devices = 16", "devices = 0"), "devices");
  refused(replaced(kGood, "[device]", "[=device]"), "key");
  refused(replaced(kGood, "devices = 16", "devices = 17"), "must join all");
  refused(replaced(kGood, "devices = 16", ""), "devices: is missing");
  refused(replaced(kGood, "f32_tflops = 19.5", "f32_tflop = 19.5"), "f32_tflops: is missing");
  refused(replaced(kGood, "efficiency", "eficiency"), "did you mean 'efficiency'");
  refused(replaced(kGood, "efficiency = 0.5", "efficiency = 1.5"), "share");
  refused(replaced(kGood, "latency_us = 8", "latency_us = -8"), "latency_us");
  refused(replaced(kGood, "latency_us = 8", "latency_us = nan"), "latency_us");
  refused(replaced(kGood, "span = 16", "span = 12"), "multiple");
  refused(replaced(kGood, "memory_gib = 40", "memory_gib = \"40\""), "memory_gib");
  refused(replaced(kGood, "[device]", "[device"), "c.toml:4");
  refused("", "name: is missing");
}
