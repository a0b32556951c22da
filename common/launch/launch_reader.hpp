// common/launch/launch_reader.hpp - inside launch_environment: reads one launcher's variables
// after the other.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "common/launch/launch_environment.hpp"

namespace ddp::internal {

constexpr int kMaxInt = std::numeric_limits<int>::max();

/// A number and the variable or flag it came from, so that a contradiction can name both.
struct Sourced {
  int value = 0;
  std::string source;
};

/// @throws UsageError unless small < limit, naming both sources
void require_below(const Sourced& small, const Sourced& limit);

class LaunchReader {
 public:
  LaunchReader(const Options& options, const GetEnv& getenv) : options_(options), getenv_(getenv) {}

  LaunchEnvironment read();

 private:
  void read_flags();
  void read_spawn();
  void read_torchrun();
  void read_openmpi();
  void read_slurm();
  void read_htcondor();
  void read_alone();

  void set_identity(const Sourced& rank, const Sourced& world_size, const Sourced& local_rank,
                    const Sourced& local_world_size);
  void set_nodes(const Sourced& node_rank, const Sourced& num_nodes);
  void set_even_nodes();
  void set_locality_by_hand(const Sourced& rank, const Sourced& world_size,
                            std::optional<Sourced> local_rank,
                            std::optional<Sourced> local_world_size);
  bool find_master();
  void require_master(const std::string& hint);
  void set_shared_file(const std::string& folder, const std::string& job);
  void add_restarts(const char* name);
  void agrees_with(const char* name, int expected, const std::string& source) const;
  void refuse_rank_of_another(const char* rank_name, const char* world_size_name) const;

  std::optional<std::string> text(const std::string& name) const;
  std::optional<Sourced> number(const std::string& name, int minimum, int maximum = kMaxInt) const;
  Sourced need(const std::string& name, int minimum, int maximum = kMaxInt) const;
  bool set(const std::string& name) const { return getenv_(name).has_value(); }
  static std::optional<Sourced> flag(const std::optional<int>& value, const char* name) {
    return value ? std::optional<Sourced>({*value, name}) : std::nullopt;
  }
  void record(const std::string& what, const std::string& value, const std::string& source) {
    found_.evidence.push_back({what, value, source});
  }
  void record(const std::string& what, const Sourced& number) {
    record(what, std::to_string(number.value), number.source);
  }

  const Options& options_;
  const GetEnv& getenv_;
  LaunchEnvironment found_;
  std::string world_size_source_;
  std::string local_world_size_source_;
};

}  // namespace ddp::internal
