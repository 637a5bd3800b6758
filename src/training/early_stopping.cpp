#include <autopar/training/early_stopping.hpp>

#include <limits>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>

namespace autopar::training {

using nlohmann::json;

EarlyStopping::EarlyStopping(std::int64_t patience, Better better, double least)
    : patience_(patience), better_(better), least_(least) {
  if (patience < 1) throw InvalidArgument("patience = " + std::to_string(patience) + ": it is at least 1");
  if (!(least >= 0)) throw InvalidArgument("least = " + std::to_string(least) + ": it is not negative");
}

bool EarlyStopping::see(double value) {
  if (is_better(value, best_, better_, least_)) {
    best_ = value;
    without_better_ = 0;
  } else {
    ++without_better_;
  }
  return is_over();
}

std::string EarlyStopping::save() const {
  json state{{"without_better", without_better_}};
  if (best_) state["best"] = *best_;
  return state.dump();
}

void EarlyStopping::load(const std::string& text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto state = json::parse(text, nullptr, false);
  if (!state.is_object() || !state.contains("without_better") || !state["without_better"].is_number_unsigned() ||
      state["without_better"].get<std::uint64_t>() > kMost || (state.contains("best") && !state["best"].is_number()))
    throw InvalidArgument("'" + text + "' is not what EarlyStopping saved");
  best_ = state.contains("best") ? std::optional<double>(state["best"].get<double>()) : std::nullopt;
  without_better_ = state["without_better"];
}

}  // namespace autopar::training
