#pragma once

#include <optional>
#include <string>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// One kind of accelerator, or one CPU rank: the parameters of a roofline model.
struct Device {
  std::string name = "cpu";
  Bytes memory{};  ///< usable by the process
  BytesPerSecond memory_bandwidth{1e10};
  FlopsPerSecond f64{1e10};  ///< peak dense matrix rates by element type
  FlopsPerSecond f32{2e10};
  FlopsPerSecond tf32{2e10};  ///< equal to f32 on devices without TF32
  FlopsPerSecond f16{2e10};
  FlopsPerSecond bf16{2e10};
  double efficiency = 0.6;  ///< share of the peak rates that large kernels reach, in (0, 1]
  Seconds launch{5e-6};     ///< minimal time of one operator

  [[nodiscard]] FlopsPerSecond peak(DType dtype) const {
    switch (dtype) {
      case DType::kF64:
        return f64;
      case DType::kF16:
        return f16;
      case DType::kBF16:
        return bf16;
      default:
        return f32;
    }
  }
  friend bool operator==(const Device&, const Device&) = default;
};

/// Transfer time = latency + size / bandwidth, in one direction.
struct Link {
  Seconds latency{};
  BytesPerSecond bandwidth{1e9};

  [[nodiscard]] Seconds transfer(Bytes bytes) const { return latency + bytes / bandwidth; }
  friend bool operator==(const Link&, const Link&) = default;
};

/// The host memory that belongs to one device, and the link between device and host.
struct Host {
  Bytes memory{};                                    ///< this device's share
  BytesPerSecond memory_bandwidth{2e10};             ///< this device's share, while the optimizers of all devices run
                                                     ///< on the host
  Link link{Seconds(1e-5), BytesPerSecond(1.2e10)};  ///< between a device and its host, while all devices copy
  friend bool operator==(const Host&, const Host&) = default;
};

/// One level of the link hierarchy (a node, a rack, …): ranks [k*span, (k+1)*span) communicate over `link`.
struct LinkLevel {
  std::string name;
  int span = 1;
  Link link;
  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

/// Equal devices joined by a hierarchy of links, innermost level first; the last level spans all devices.
struct Cluster {
  std::string name = "unnamed";
  int devices = 1;
  Device device;
  std::vector<LinkLevel> levels;
  std::optional<Host> host{};  ///< empty: the devices are CPUs, whose memory is the host's

  /// The link of the innermost level that contains both ranks.
  /// @throws InvalidArgument if no level contains both
  [[nodiscard]] const Link& between(Rank a, Rank b) const {
    for (const auto& level : levels) {
      if (a.value() / level.span == b.value() / level.span) return level.link;
    }
    throw InvalidArgument("cluster '" + name + "': no link level joins ranks " + std::to_string(a.value()) + " and " +
                          std::to_string(b.value()) + "; the last level's span must be at least " +
                          std::to_string(devices));
  }

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

}  // namespace autopar
