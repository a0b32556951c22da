// bench/micro/suites.hpp - which benchmarks there are.
#pragma once

#include <vector>

#include "bench/micro/options.hpp"
#include "bench/micro/team.hpp"

namespace ddp::micro {

/// The same on every rank.
std::vector<Entry> make_entries(const MicroOptions& options, const Team& team);

/// --suite pieces, by what they are pieces of. @param options must outlive the entries
std::vector<Entry> data_pieces(const MicroOptions& options);
std::vector<Entry> optimizer_pieces(const MicroOptions& options);
std::vector<Entry> parameter_pieces(const MicroOptions& options);
std::vector<Entry> snapshot_pieces(const MicroOptions& options);

}  // namespace ddp::micro
