#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "tool/commands.hpp"

namespace autopar::tool {

int check_instance(const CheckArguments& arguments, std::ostream&) {
  static_cast<void>(read_text_file(arguments.profile));
  throw InvalidArgument("CLUSTER is missing; the order is 'autopar check PLAN PROFILE CLUSTER'. If " +
                        arguments.profile +
                        " is an instance of benchmarks/plan_quality: build autopar with -DAUTOPAR_BUILD_BOTTLENECK=ON");
}

}  // namespace autopar::tool
