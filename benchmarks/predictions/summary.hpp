#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "terms.hpp"

/// What all cases together say.
namespace summary {

struct Row {
  std::string model, plan;
  double seconds = 0, fastest = 0, predicted_seconds = 0;     ///< median, shortest step, both of the fastest round
  double slowest = 0;                                         ///< median of the slowest round
  double bytes = 0, resident_bytes = 0, predicted_bytes = 0;  ///< alive, with what the allocator keeps
  std::vector<terms::Terms> terms, predicted_terms;           ///< by rank

  [[nodiscard]] double time_error() const { return predicted_seconds / seconds - 1; }
  [[nodiscard]] double memory_error() const { return predicted_bytes / bytes - 1; }
};

/// The term of a rank that is furthest off, and by how much of the measured step.
struct Wrong {
  std::string term;
  std::size_t rank = 0;
  double predicted = 0, measured = 0;
};
[[nodiscard]] inline Wrong most_wrong(const Row& row) {
  Wrong worst;
  for (std::size_t r = 0; r < row.terms.size(); ++r) {
    for (std::size_t t = 0; t < terms::kNames.size(); ++t) {
      const double predicted = row.predicted_terms[r][t], measured = row.terms[r][t];
      if (std::abs(predicted - measured) <= std::abs(worst.predicted - worst.measured)) continue;
      worst = {terms::kNames[t], r, predicted, measured};
    }
  }
  return worst;
}

/// From the process of a case to the one that sums up.
[[nodiscard]] inline std::string to_text(const Row& row) {
  std::ostringstream out;
  out.precision(17);
  out << row.model << '\n' << row.plan << '\n';
  out << row.seconds << ' ' << row.fastest << ' ' << row.predicted_seconds << ' ' << row.bytes << ' '
      << row.resident_bytes << ' ' << row.predicted_bytes << '\n';
  for (const auto* all : {&row.terms, &row.predicted_terms}) {
    for (const auto& rank : *all) {
      for (const double term : rank) out << term << ' ';
    }
  }
  return out.str();
}
[[nodiscard]] inline Row from_text(const std::string& text) {
  Row row;
  std::istringstream in(text);
  std::getline(in, row.model);
  std::getline(in, row.plan);
  in >> row.seconds >> row.fastest >> row.predicted_seconds >> row.bytes >> row.resident_bytes >> row.predicted_bytes;
  for (auto* all : {&row.terms, &row.predicted_terms}) {
    all->resize(2);
    for (auto& rank : *all) {
      for (double& term : rank) in >> term;
    }
  }
  return row;
}

[[nodiscard]] inline std::string to_json(const Row& row) {
  std::ostringstream out;
  const auto terms = [&](const std::vector<terms::Terms>& ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      out << (r == 0 ? "[{" : ",{");
      for (std::size_t t = 0; t < terms::kNames.size(); ++t) {
        out << (t == 0 ? "\"" : ",\"") << terms::kNames[t] << "\":" << ranks[r][t];
      }
      out << '}';
    }
    out << ']';
  };
  const auto wrong = most_wrong(row);
  out << R"({"benchmark":"predictions","model":")" << row.model << R"(","plan":")" << row.plan << R"(","predicted_s":)"
      << row.predicted_seconds << R"(,"measured_s":)" << row.seconds << R"(,"fastest_s":)" << row.fastest
      << R"(,"predicted_bytes":)" << row.predicted_bytes << R"(,"measured_bytes":)" << row.bytes
      << R"(,"resident_bytes":)" << row.resident_bytes << R"(,"largest_wrong_term":{"term":")" << wrong.term
      << R"(","rank":)" << wrong.rank << R"(,"predicted_s":)" << wrong.predicted << R"(,"measured_s":)"
      << wrong.measured << R"(},"predicted_terms":)";
  terms(row.predicted_terms);
  out << R"(,"measured_terms":)";
  terms(row.terms);
  out << '}';
  return out.str();
}

namespace detail {

template <class Error>
void print_errors(std::ostream& out, const char* what, const std::vector<Row>& rows, Error error) {
  std::vector<double> errors;
  for (const auto& row : rows) errors.push_back(std::abs(error(row)));
  std::sort(errors.begin(), errors.end());
  char line[120];
  std::snprintf(line, sizeof(line), "%s: median error %.1f %%, worst %.1f %%\n", what, 100 * errors[errors.size() / 2],
                100 * errors.back());
  out << line;
}

/// Pairs of plans of a model that differ by more than a tenth in measured time, and those that do whichever rounds are
/// compared.
inline void print_order(std::ostream& out, const std::vector<Row>& rows) {
  int pairs = 0, agree = 0, clear = 0, clear_agree = 0;
  std::ostringstream wrong;
  for (const auto& a : rows) {
    for (const auto& b : rows) {
      if (a.model != b.model || b.seconds <= 1.1 * a.seconds) continue;
      const bool in_order = a.predicted_seconds<b.predicted_seconds, is_clear = b.seconds> 1.1 * a.slowest;
      ++pairs;
      agree += in_order ? 1 : 0;
      clear += is_clear ? 1 : 0;
      clear_agree += is_clear && in_order ? 1 : 0;
      if (in_order) continue;
      char line[240];
      std::snprintf(line, sizeof(line),
                    "  %s: %s before %s: measured %.2f (to %.2f) < %.2f ms, predicted %.2f >= %.2f ms\n",
                    a.model.c_str(), a.plan.c_str(), b.plan.c_str(), 1e3 * a.seconds, 1e3 * a.slowest, 1e3 * b.seconds,
                    1e3 * a.predicted_seconds, 1e3 * b.predicted_seconds);
      wrong << line;
    }
  }
  out << "order: " << agree << " of " << pairs
      << " pairs that differ by more than 10 % are predicted in the measured order, and " << clear_agree << " of "
      << clear << " that do in every round\n"
      << wrong.str();
}

}  // namespace detail

/// A table of all cases, then the errors and the order.
inline void print(std::ostream& out, const std::vector<Row>& rows) {
  char line[240];
  std::snprintf(line, sizeof(line), "%-12s %-25s %10s %10s %7s %10s %10s %7s  %s\n", "model", "plan", "predicted",
                "measured", "error", "predicted", "measured", "error", "largest wrong term: predicted, measured");
  out << '\n' << line;
  for (const auto& row : rows) {
    const auto wrong = most_wrong(row);
    std::snprintf(line, sizeof(line),
                  "%-12s %-25s %7.2f ms %7.2f ms %+5.0f %% %6.1f MiB %6.1f MiB %+5.0f %%  "
                  "%s of rank %zu: %.2f, %.2f ms\n",
                  row.model.c_str(), row.plan.c_str(), 1e3 * row.predicted_seconds, 1e3 * row.seconds,
                  100 * row.time_error(), row.predicted_bytes / 1048576, row.bytes / 1048576, 100 * row.memory_error(),
                  wrong.term.c_str(), wrong.rank, 1e3 * wrong.predicted, 1e3 * wrong.measured);
    out << line;
  }
  detail::print_errors(out, "step time", rows, [](const Row& row) { return row.time_error(); });
  detail::print_errors(out, "peak memory", rows, [](const Row& row) { return row.memory_error(); });
  detail::print_order(out, rows);
}

}  // namespace summary
