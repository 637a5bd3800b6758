// expect: make_program: the schedule does not model SchedulePolicy: it needs
// expect: int peak_activations(StageId, int stages, int microbatches) const
// expect: rank_orders(const Pipeline&, int microbatches) const
#include <autopar/schedule/program.hpp>

struct MySchedule {
  using policy_category = autopar::schedule_policy_tag;
  std::vector<autopar::ComputeAction> order(autopar::StageId stage, int stages, int microbatches) const;
};

autopar::Program program(const autopar::Pipeline& pipeline, const autopar::BatchLayout& layout) {
  return autopar::make_program(pipeline, layout, MySchedule{});
}
