// bench/report/predict_command.hpp - bench predict: what is asked, at which rates, and the answer.
#pragma once

namespace ddp::bench {

/// @return the exit code @throws UsageError
int run_predict(int argc, const char* const* argv);

}  // namespace ddp::bench
