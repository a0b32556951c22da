// tests/support/bad_environments.hpp - what the launchers set, and environments to be refused.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ddp::test {

using Variables = std::map<std::string, std::string>;

/// What each launcher really sets for one rank of four on two nodes (spawn: one node).
extern const Variables kTorchrun;
extern const Variables kSpawn;
extern const Variables kPlain;
extern const Variables kOpenMpi;
extern const Variables kSlurm;
extern const Variables kCondor;
/// One rank of two on one node.
extern const Variables kFlux;
extern const Variables kHydra;
extern const Variables kJsrun;
extern const Variables kPals;

Variables with(Variables variables, const Variables& changes);
Variables without(Variables variables, const std::vector<std::string>& names);

struct BadEnvironment {
  Variables variables;
  std::string named;  ///< the variable that the refusal must name, or several with blanks
};

/// Variables that should be numbers, each with many values that are none.
std::vector<BadEnvironment> environments_with_no_number();
/// Each launcher's environment with one variable missing.
std::vector<BadEnvironment> environments_with_a_gap();
/// Out of range, contradicting each other, or hostile.
std::vector<BadEnvironment> contradictory_environments();

/// Whether `line` has each of the words of `all`: RANK is not in LOCAL_RANK.
bool names(const std::string& line, const std::string& all);
/// The environment on one line, for messages.
std::string describe(const Variables& variables);

}  // namespace ddp::test
