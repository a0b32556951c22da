// tools/submit/settings.hpp - what is to be run, where its output goes and what it needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::submit {

/// What a job asks a cluster for, all per node. Memory is in MB, as HTCondor and Slurm count it.
struct Resources {
  std::int64_t nodes = 1;
  std::optional<std::int64_t> cpus;  ///< none: one per process
  std::optional<std::int64_t> memory_mb;  ///< none: the cluster's default
  std::int64_t gpus = 0;
  std::optional<std::int64_t> gpu_memory_mb;  ///< of each GPU, at least
  std::optional<std::int64_t> time_s;  ///< of one start of the job; none: the cluster's default
  std::string account;
  std::string partition;  ///< Slurm only
  std::string constraint;  ///< Slurm only: features that the nodes must have
  std::optional<std::int64_t> bid;  ///< HTCondor only, on clusters that have bids
  std::vector<std::string> transfer_files;  ///< HTCondor only: absolute paths; empty: the nodes see
                                            ///< the same files as this machine
};

/// The settings file. Relative paths in it start at its own folder.
struct Settings {
  std::string script_path;  ///< absolute: the program of every job
  std::string interpreter;  ///< absolute: what runs that; empty: python3 if it is to, else nobody
  std::string out_dir;  ///< absolute, need not exist yet
  std::vector<std::string> arguments;
  std::string device = "auto";  ///< "auto", "cpu" or "cuda"
  Resources resources;
};

/// Reads the part of YAML that settings need. Nothing is converted behind the reader's back: "010",
/// "yes" and "1:30" are refused where a number or a text is asked for, and so are anchors, aliases,
/// tags, merge keys, keys given twice, more than one document, 1 MiB or 8 levels.
/// @param file    named in the messages, which say file:line:column, the key, its value and what
///                was expected
/// @param folder  absolute, where relative paths start
/// @throws UsageError
Settings parse_settings(const std::string& file, std::string_view text, const std::string& folder);

/// @throws UsageError also if the file cannot be read
Settings read_settings(const std::string& file);

/// A time in any of Slurm's forms, "90", "6:00:00" or "1-06", in seconds.
/// @throws UsageError starting with `name`
std::int64_t parse_time(const std::string& name, const std::string& text);

/// An account, a partition or a constraint: letters, digits and `others`.
/// @throws UsageError starting with `name`
void check_name(const std::string& name, const std::string& text, std::string_view others);
inline constexpr std::string_view kAccountOthers = "_.-@";
inline constexpr std::string_view kPartitionOthers = "_.-,";
inline constexpr std::string_view kConstraintOthers = "_.-,|&*[]()";

inline constexpr std::int64_t kMostNodes = 65536;
inline constexpr int kMostGpus = 1024;  // of one node

}  // namespace ddp::submit
