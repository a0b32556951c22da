// Expands Slurm node lists on stdin, one a line, for slurm_test.py: comma-joined, or "refused".
#include <iostream>
#include <string>

#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"

int main() {
  for (std::string list; std::getline(std::cin, list);) {
    std::string line;
    try {
      for (const std::string& host : ddp::expand_node_list(list)) {
        line += (line.empty() ? "" : ",") + host;
      }
    } catch (const ddp::UsageError&) {
      line = "refused";
    }
    std::cout << line << '\n';
  }
  return std::cout.flush() ? 0 : 1;
}
