#include <autopar/io/cluster_file.hpp>

#include <sstream>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "toml_section.hpp"

namespace autopar {

namespace {

Device read_device(const toml::table& table, const std::string& file) {
  Section section(table, file, "device.");
  Device device;
  device.name = section.text("name");
  device.memory = Bytes(static_cast<std::int64_t>(section.number("memory_gib", 1e-6) * 0x1p30));
  device.memory_bandwidth = BytesPerSecond(section.number("memory_bandwidth_gb_s", 1e-6) * 1e9);
  device.f32 = FlopsPerSecond(section.number("f32_tflops", 1e-6) * 1e12);
  const auto rate = [&](const char* key) {
    return FlopsPerSecond(section.number_or(key, 1e-6, device.f32.value() / 1e12) * 1e12);
  };
  device.f64 = rate("f64_tflops");
  device.tf32 = rate("tf32_tflops");
  device.f16 = rate("f16_tflops");
  device.bf16 = rate("bf16_tflops");
  device.efficiency = section.number_or("efficiency", 1e-6, device.efficiency);
  device.launch = Seconds(section.number_or("launch_us", 0, device.launch.value() * 1e6) * 1e-6);
  section.finish();
  if (device.efficiency > 1)
    throw ConfigError("device.efficiency: a share of the peak cannot exceed 1", file, 0, "efficiency");
  return device;
}

Host read_host(const toml::table& table, const std::string& file) {
  Section section(table, file, "host.");
  Host host;
  host.memory = Bytes(static_cast<std::int64_t>(section.number("memory_gib", 1e-6) * 0x1p30));
  host.memory_bandwidth =
      BytesPerSecond(section.number_or("memory_bandwidth_gb_s", 1e-6, host.memory_bandwidth.value() / 1e9) * 1e9);
  host.link.bandwidth =
      BytesPerSecond(section.number_or("link_bandwidth_gb_s", 1e-9, host.link.bandwidth.value() / 1e9) * 1e9);
  host.link.latency = Seconds(section.number_or("link_latency_us", 0, host.link.latency.value() * 1e6) * 1e-6);
  section.finish();
  return host;
}

LinkLevel read_level(const toml::table& table, const std::string& file) {
  Section section(table, file, "level.");
  LinkLevel level;
  level.name = section.text("name");
  level.span = section.count("span");
  level.link.bandwidth = BytesPerSecond(section.number("bandwidth_gb_s", 1e-9) * 1e9);
  level.link.latency = Seconds(section.number("latency_us", 0) * 1e-6);
  section.finish();
  return level;
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& file) {
  const auto root = parse_toml(text, file);
  Section section(root, file, "");
  Cluster cluster;
  cluster.name = section.text("name");
  cluster.devices = section.count("devices");
  cluster.device = read_device(section.table("device"), file);
  if (const auto* host = section.table_if("host")) cluster.host = read_host(*host, file);
  for (const auto& level : section.tables("level")) cluster.levels.push_back(read_level(*level.as_table(), file));
  section.finish();
  for (std::size_t i = 1; i < cluster.levels.size(); ++i) {
    const int inner = cluster.levels[i - 1].span;
    const int outer = cluster.levels[i].span;
    if (outer <= inner || outer % inner != 0) {
      throw ConfigError("level.span: " + std::to_string(outer) + " must be a multiple of the span before it, " +
                            std::to_string(inner),
                        file, 0, "span");
    }
  }
  if (cluster.levels.back().span < cluster.devices) {
    throw ConfigError("level.span: the last level spans " + std::to_string(cluster.levels.back().span) + " of " +
                          std::to_string(cluster.devices) + " devices; it must join all",
                      file, 0, "span");
  }
  return cluster;
}

Cluster read_cluster(const std::filesystem::path& path) {
  return parse_cluster(read_text_file(path, Bytes(1 << 20)), path.string());
}

std::string to_toml(const Cluster& cluster) {
  const auto& device = cluster.device;
  toml::array levels;
  for (const auto& level : cluster.levels) {
    levels.push_back(toml::table{{"name", level.name},
                                 {"span", level.span},
                                 {"bandwidth_gb_s", level.link.bandwidth.value() / 1e9},
                                 {"latency_us", level.link.latency.value() * 1e6}});
  }
  toml::table root{{"name", cluster.name},
                   {"devices", cluster.devices},
                   {"device", toml::table{{"name", device.name},
                                          {"memory_gib", static_cast<double>(device.memory.value()) / 0x1p30},
                                          {"memory_bandwidth_gb_s", device.memory_bandwidth.value() / 1e9},
                                          {"f64_tflops", device.f64.value() / 1e12},
                                          {"f32_tflops", device.f32.value() / 1e12},
                                          {"tf32_tflops", device.tf32.value() / 1e12},
                                          {"f16_tflops", device.f16.value() / 1e12},
                                          {"bf16_tflops", device.bf16.value() / 1e12},
                                          {"efficiency", device.efficiency},
                                          {"launch_us", device.launch.value() * 1e6}}},
                   {"level", levels}};
  if (cluster.host) {
    root.insert("host", toml::table{{"memory_gib", static_cast<double>(cluster.host->memory.value()) / 0x1p30},
                                    {"memory_bandwidth_gb_s", cluster.host->memory_bandwidth.value() / 1e9},
                                    {"link_bandwidth_gb_s", cluster.host->link.bandwidth.value() / 1e9},
                                    {"link_latency_us", cluster.host->link.latency.value() * 1e6}});
  }
  std::ostringstream out;
  out << root << '\n';
  return out.str();
}

}  // namespace autopar
