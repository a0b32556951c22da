// common/launch/output_files.hpp - what a run will write, looked at before it computes anything.
#pragma once

#include "common/launch/options.hpp"

namespace ddp {

/// For rank 0, who writes them. Changes nothing.
/// @throws UsageError unless --snapshot is, or can become, a regular file in a writable folder (it
/// is replaced by a rename, which would end a device or a pipe), and --metrics can be written
void check_output_files(const Options& options);

}  // namespace ddp
