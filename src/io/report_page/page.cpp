#include <autopar/io/report_page.hpp>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include <autopar/cost/precision.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/memory/stage_memory.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/text.hpp>

#include "io/report_page/html.hpp"
#include "io/report_page/parts.hpp"
#include "io/report_page/style.hpp"

namespace autopar::report_page {

namespace {

std::string tile(const std::string& value, const std::string& words) {
  return "<div class=\"tile\"><b>" + escaped(value) + "</b><span>" + escaped(words) + "</span></div>\n";
}

std::string title_of(const Plan& plan) {
  return plan.stages.empty() ? "empty plan" : describe(plan) + describe(memory_optimizations_of(plan));
}

std::string binding_words(Binding binding) {
  switch (binding) {
    case Binding::kMemory:
      return "a faster shape was found that does not fit";
    case Binding::kCompute:
      return "most of the step is arithmetic and memory traffic";
    case Binding::kBandwidth:
      return "messages and gradient sums cost more than anything else";
    case Binding::kBubble:
      return "ranks wait for other stages more than for anything else";
  }
  return "";
}

}  // namespace

std::string summary_of(const RunReport& report) {
  const Plan& plan = report.plan;
  const Bytes most = peak_of_ranks(meshes_of(plan), [&](std::size_t stage) { return plan.stages[stage].peak_memory; });
  const std::string precision = plan.precision == Precision::kModule ? "" : ", " + name_of(plan.precision);
  std::string body = "<div class=\"tiles\">\n" + tile(readable(plan.step), "predicted step");
  if (report.measured && report.measured->step > Seconds{})
    body += tile(readable(report.measured->step), "measured step, median of " + std::to_string(report.measured->steps) +
                                                      " on rank " + std::to_string(report.measured->rank.value()));
  if (plan.step > Seconds{})
    body +=
        tile(detail::formatted("%.4g", static_cast<double>(plan.batch) / plan.step.value()), "samples/s, predicted");
  body +=
      tile(std::to_string(plan.world) + " \xC3\x97 " + plan.device, (plan.world == 1 ? "rank" : "ranks") + precision);
  body += tile(std::to_string(plan.batch),
               "samples a step, in " + detail::counted(static_cast<std::size_t>(std::max(0, plan.microbatches)),
                                                       "micro-batch", "micro-batches"));
  body += tile(readable(most), "memory of the fullest rank, of " + readable(plan.device_memory) + " it may use");
  body += tile(percent(plan.bubble), "of the step the average rank waits");
  body += tile(name_of(plan.binding), "binds: " + binding_words(plan.binding));
  if (plan.certificate.lower_bound > Seconds{})
    body += tile("\xE2\x89\xA5 " + readable(plan.certificate.lower_bound),
                 "any plan's step, by the certificate; gap " + gap_percent(plan.certificate.gap));
  body += "</div>\n";
  std::vector<std::string> notes = report.notes;
  notes.insert(notes.end(), plan.notes.begin(), plan.notes.end());
  if (!plan.constraints.empty()) {
    std::string fixed;
    for (const auto& one : plan.constraints) fixed += (fixed.empty() ? "" : ", ") + one;
    notes.push_back("options that were set: " + fixed);
  }
  if (notes.empty()) return body;
  body += "<details" + std::string(notes.size() <= 4 ? " open" : "") + "><summary>Notes (" +
          std::to_string(notes.size()) + ")</summary>\n<ul>\n";
  for (const auto& note : notes) body += "<li>" + escaped(note) + "</li>\n";
  return body + "</ul></details>\n";
}

std::string errors_of(const RunReport& report) {
  if (!report.measured)
    return remark(
        "Nothing was measured: this is a plan without a run. A run with report_file puts its steps, the memory of its "
        "GPU "
        "and the actions of its CPU beside the predictions.");
  if (report.comparisons.empty()) return remark("Nothing was measured yet that the plan predicts.");
  std::vector<std::vector<std::string>> rows;
  for (const Comparison& one : report.comparisons)
    rows.push_back({escaped(one.what), escaped(one.predicted), escaped(one.measured), signed_percent(one.error)});
  return "<p>Measured on rank " + std::to_string(report.measured->rank.value()) + ", after " +
         std::to_string(report.measured->steps) + " training steps.</p>\n" +
         table({{"what"}, {"predicted", true}, {"measured", true}, {"measured is", true}}, rows);
}

std::string runners_up_of(const RunReport& report) {
  if (report.plan.runners_up.empty()) return remark("The search kept no other plan.");
  std::vector<std::vector<std::string>> rows{
      {"<b>" + escaped(title_of(report.plan)) + "</b>", readable(report.plan.step), "", "this plan"}};
  for (const RunnerUp& other : report.plan.runners_up) {
    const double slower = report.plan.step > Seconds{} ? other.step / report.plan.step - 1 : 0;
    rows.push_back({escaped(other.summary), readable(other.step), signed_percent(slower), escaped(other.reason)});
  }
  return table({{"plan"}, {"step", true}, {"step is", true}, {"why not"}}, rows);
}

std::string advice_of(const RunReport& report) {
  if (report.advice.empty()) return remark("Nothing that was looked at makes this plan faster.");
  std::vector<std::vector<std::string>> rows;
  for (const Advice& one : report.advice) {
    const double gain = one.gain(report.plan.step);
    std::string effect = !one.step       ? "no plan"
                         : gain > 0.0005 ? std::string(one.is_bound ? "at most " : "") +
                                               detail::formatted("%.1f", 100 * gain) + " % faster"
                         : gain < -0.0005 ? detail::formatted("%.1f", -100 * gain) + " % slower"
                                          : "no gain";
    std::string how = one.shape;
    if (!one.why.empty()) how += (how.empty() ? "" : "; ") + one.why;
    rows.push_back({escaped(one.change), one.step ? readable(*one.step) : "", escaped(effect), escaped(how)});
  }
  return "<p>What a change is predicted to gain, of this plan's " + readable(report.plan.step) + " a step.</p>\n" +
         table({{"change"}, {"step", true}, {"gain", true}, {"how"}}, rows);
}

}  // namespace autopar::report_page

namespace autopar {

std::string to_html(const RunReport& report, const std::string& mark) {
  namespace page = report_page;
  struct Section {
    const char *id, *heading;
    std::string (*body)(const RunReport&);
  };
  constexpr Section kSections[] = {{"summary", "Summary", page::summary_of},
                                   {"model", "Model over ranks", page::model_of},
                                   {"timeline", "Timeline of a step", page::timeline_of},
                                   {"memory", "Memory over a step", page::memory_of},
                                   {"time", "Where time goes", page::time_of},
                                   {"errors", "Predicted and measured", page::errors_of},
                                   {"runner-ups", "Runner-ups", page::runners_up_of},
                                   {"advice", "Advice", page::advice_of}};
  const Plan& plan = report.plan;
  const std::string title =
      plan.stages.empty() ? "empty plan" : describe(plan) + describe(memory_optimizations_of(plan));
  std::string out = "<!doctype html>\n<!-- " + page::escaped(mark) +
                    " -->\n<html lang=\"en\"><head><meta charset=\"utf-8\">" +
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
                    page::escaped(title) + " \xC2\xB7 autopar</title>\n<style>" + std::string(page::kStyle) +
                    "</style></head>\n<body><main>\n<h1>" + page::escaped(title) + "</h1>\n<nav>";
  for (const Section& one : kSections) out += "<a href=\"#" + std::string(one.id) + "\">" + one.heading + "</a>";
  out += "</nav>\n";
  for (const Section& one : kSections) out += page::section(one.id, one.heading, one.body(report));
  return out + "</main>\n<script>" + std::string(page::kScript) + "</script>\n</body></html>\n";
}

bool is_page(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".html" || ending == ".htm";
}

void write_report_page(const std::filesystem::path& path, const RunReport& report, Overwrite overwrite) {
  const std::string mark = file_mark("report", report.plan.model);
  write_marked_file(path, to_html(report, mark), mark, overwrite);
}

}  // namespace autopar
