// bench/micro/suites.hpp - which benchmarks there are.
#pragma once

#include <string>
#include <vector>

#include "bench/micro/options.hpp"
#include "bench/micro/team.hpp"

namespace ddp::micro {

/// The same on every rank. @param options must outlive the entries
std::vector<Entry> make_entries(const MicroOptions& options, const Team& team);

/// --suite limits. @param ranks "/ranks:2", which the names have
std::vector<Entry> limit_entries(const std::string& ranks, const torch::Device& device);
/// --suite pieces. @param options must outlive the entries
std::vector<Entry> piece_entries(const MicroOptions& options);

}  // namespace ddp::micro
