#pragma once

/// All of the component training.

#include <autopar/training/accumulate.hpp>
#include <autopar/training/batch_watch.hpp>
#include <autopar/training/better.hpp>
#include <autopar/training/early_stopping.hpp>
#include <autopar/training/epochs.hpp>
#include <autopar/training/event_file.hpp>
#include <autopar/training/from_first.hpp>
#include <autopar/training/goodput.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/metrics.hpp>
#include <autopar/training/parameter_groups.hpp>
#include <autopar/training/peak_flops.hpp>
#include <autopar/training/progress.hpp>
#include <autopar/training/run.hpp>
#include <autopar/training/run_folder.hpp>
#include <autopar/training/schedules.hpp>
#include <autopar/training/time_spent.hpp>
#include <autopar/training/values.hpp>
