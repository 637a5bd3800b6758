#include <autopar/training/log.hpp>

#include <algorithm>
#include <iomanip>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

namespace autopar::training {

namespace {

constexpr double kGib = 1 << 30;

double most_of(World& world, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()), 0);
  all[static_cast<std::size_t>(world.rank())] = mine;
  world.all_reduce_sum(std::span(all), "memory of the fullest rank");
  return static_cast<double>(*std::max_element(all.begin(), all.end()));
}

std::string text_of(const Values& values) {
  std::ostringstream text;
  for (const auto& [name, value] : values)
    text << (text.tellp() > 0 ? "  " : "") << name << ' ' << std::setprecision(5) << value;
  return text.str();
}

}  // namespace

Log::Log(World& world, const std::filesystem::path& folder, const LogOptions& options, std::int64_t done)
    : world_(world),
      options_(options),
      shown_(done),
      first_(done + 1),
      progress_("", options.work.unit, options.steps * options.work.units, world.rank() == 0,
                done * options.work.units) {
  if (options.every < 1) throw InvalidArgument("every = " + std::to_string(options.every) + ": it is at least 1");
  if (!folder.empty() && world.rank() == 0) metrics_.emplace(folder, done);
  if (done >= options.steps) {
    say("nothing to do: step " + std::to_string(done) + " is done, of " + std::to_string(options.steps));
  }
}

void Log::step(std::int64_t step, const Values& values, std::int64_t memory) {
  const double gib = most_of(world_, memory) / kGib;
  if (world_.rank() != 0) return;
  std::ostringstream text;
  text << "step " << step << "  " << text_of(values) << std::fixed << std::setprecision(2);
  progress_.count((step - std::exchange(shown_, step)) * options_.work.units);
  const double speed = progress_.units_per_second();
  Values all = values;
  all.emplace_back(options_.work.unit + "_per_second", speed);
  if (options_.work.peak_flops) {
    const double flops = options_.work.flops * speed / static_cast<double>(options_.work.units);
    const double mfu = flops / (*options_.work.peak_flops * world_.size());
    all.emplace_back("mfu", mfu);
    text << "  MFU " << 100 * mfu << " %";
  }
  all.emplace_back("memory_gib", gib);
  text << "  " << gib << " GiB";
  progress_.show(text.str());
  if (metrics_) metrics_->write(step, all);
}

void Log::write(std::int64_t step, const Values& values) {
  if (world_.rank() != 0) return;
  progress_.say("step " + std::to_string(step) + ": " + text_of(values));
  record(step, values);
}

void Log::record(std::int64_t step, const Values& values) {
  if (metrics_) metrics_->write(step, values);
}

}  // namespace autopar::training
