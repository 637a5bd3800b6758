#pragma once

#include <torch/torch.h>

#include <catch_shim.hpp>
