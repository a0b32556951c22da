// bench/run/machine.hpp - the machine that the numbers are made on.
#pragma once

#include <nlohmann/json.hpp>

namespace ddp::bench {

/// Cores that this process may use, at least 1.
int available_cores();

/// As CUDA_VISIBLE_DEVICES or else the device files say; no driver is asked.
int visible_gpus();

/// The machine as it is now; what cannot be read is null.
nlohmann::ordered_json describe_machine();

}  // namespace ddp::bench
