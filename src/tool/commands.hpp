#pragma once

#include <iosfwd>
#include <string>

#include "inputs.hpp"

namespace autopar::tool {

struct PlanArguments {
  ProblemArguments problem;
  std::string out;
  bool force = false;  ///< replace whatever is there
  bool json = false;
};
int plan_command(const PlanArguments& arguments, std::ostream& out, std::ostream& err);

struct ExplainArguments {
  std::vector<std::string> files;  ///< a plan; or a profile and a cluster; or all three
  ProblemArguments problem;        ///< its files are filled in from `files`
  bool json = false;
};
int explain_command(ExplainArguments arguments, std::ostream& out, std::ostream& err);

struct CheckArguments {
  std::string plan, profile;
  std::string cluster;  ///< empty: `profile` is an instance of benchmarks/plan_quality, and `plan` its plan
  double devices = 0, memory = 0, bandwidth = 0;  ///< of an instance; 0 = as its file says
  double lower_bound = 0;                         ///< of an instance, claimed
  std::string costs;                              ///< measured ones; empty = from peak rates
  bool json = false;
};
int check_command(const CheckArguments& arguments, std::ostream& out);
/// A plan of benchmarks/plan_quality, and the bound that it printed.
/// @throws InvalidArgument if the tool was built without the component bottleneck
int check_instance(const CheckArguments& arguments, std::ostream& out);

struct SimulateArguments {
  std::string plan, profile, cluster;
  std::string costs;  ///< measured ones; empty = from peak rates
  std::string trace;
  bool force = false;  ///< replace whatever is there
  bool json = false;
};
int simulate_command(const SimulateArguments& arguments, std::ostream& out);

struct ReportArguments {
  std::string plan, profile, cluster;  ///< empty: the page does without
  ProblemArguments problem;            ///< costs and options of the search for advice
  std::string out;
  bool quick = false;  ///< no search for advice
  bool force = false;  ///< replace whatever is there
};
int report_command(ReportArguments arguments, std::ostream& out);

struct TopArguments {
  std::string run;      ///< folder of a run of training::Run
  bool once = false;    ///< show one page, also on a terminal
  double interval = 1;  ///< s between pages
};
/// On a terminal it shows pages until the process is interrupted.
int top_command(const TopArguments& arguments, std::ostream& out);

struct DiffArguments {
  std::string first, second;
  bool json = false;
};
int diff_command(const DiffArguments& arguments, std::ostream& out);

}  // namespace autopar::tool
