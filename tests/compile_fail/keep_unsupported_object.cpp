// expect: autopar: keep takes a bool, integer, float, double, enum, std::string, std::vector of numbers or
#include <memory>

#include <autopar/torch/parallel_module.hpp>

void keep_pointer(autopar::ParallelModule& model, std::unique_ptr<int>& epoch) { model.keep("epoch", epoch); }
