#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include <autopar/runtime/one_caller.hpp>
#include <autopar/runtime/world.hpp>

#include "control_plane.hpp"
#include "health.hpp"
#include "host_transport.hpp"

namespace autopar::detail {

/// This rank's place on its host.
struct Locality {
  int rank = 0;
  int size = 1;
};

/// What World needs of the processes or threads beneath it.
class WorldBackend {
 public:
  WorldBackend(std::shared_ptr<Health> health, const Log& log) : health_(std::move(health)), log_(log) {}
  WorldBackend(const WorldBackend&) = delete;
  WorldBackend& operator=(const WorldBackend&) = delete;
  virtual ~WorldBackend() = default;

  [[nodiscard]] Rank rank() const { return health_->self(); }
  [[nodiscard]] int size() const { return health_->size(); }
  [[nodiscard]] Locality locality() const { return locality_; }
  [[nodiscard]] Health& health() { return *health_; }
  [[nodiscard]] const std::shared_ptr<Health>& shared_health() const { return health_; }
  [[nodiscard]] Log& log() { return log_; }
  /// Set at the end of ~World; what comes after is a mistake of the program.
  void set_ended() noexcept { ended_.store(true); }
  [[nodiscard]] bool ended() const noexcept { return ended_.load(); }
  void set_expects_exception() noexcept {
    expects_exception_.store(true);
    stop_watching();
  }
  [[nodiscard]] bool expects_exception() const noexcept { return expects_exception_.load(); }
  [[nodiscard]] ControlPlane& control() { return *control_; }
  [[nodiscard]] OneCaller& caller() { return caller_; }
  [[nodiscard]] int count_model() noexcept { return ++models_; }

  /// What makes transports in place of this; empty: nothing does.
  [[nodiscard]] const TransportFactory& transports() const { return transports_; }
  void set_transports(TransportFactory transports) { transports_ = std::move(transports); }

  /// Collective: an independent context in host memory.
  [[nodiscard]] virtual std::shared_ptr<HostTransport> make_transport() = 0;
  /// Ends of other processes are no failures from now on, and the launcher sees each by itself.
  virtual void stop_watching() noexcept {}
  /// Tells the other ranks that this one makes no further calls.
  virtual void announce_leaving() noexcept = 0;
  /// The end of ~World: waits for the others and ends what the backend began, or aborts if anybody failed.
  virtual void close() noexcept = 0;

 protected:
  void set_control(std::shared_ptr<HostTransport> transport) {
    control_ = std::make_unique<ControlPlane>(std::move(transport));
  }
  void set_locality(Locality locality) { locality_ = locality; }

 private:
  OneCaller caller_;
  std::shared_ptr<Health> health_;
  Log log_;
  std::unique_ptr<ControlPlane> control_;
  TransportFactory transports_;
  Locality locality_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> expects_exception_{false};
  std::atomic<int> models_{0};
};

}  // namespace autopar::detail
