#pragma once

#include <torch/torch.h>

#include <autopar/autopar.hpp>
