// expect: use of deleted function
// expect: parameters_to_vector
#include <torch/nn/utils/convert_parameters.h>

#include <autopar/torch/parameter_handles.hpp>

// No rank has all parameters, so a vector of them would silently be a part.
at::Tensor all(const autopar::ParameterHandles& handles) { return torch::nn::utils::parameters_to_vector(handles); }
