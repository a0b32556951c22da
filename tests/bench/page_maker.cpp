// Reads a report's document from standard input and writes its page to the file in its argument.
#include <iostream>

#include "bench/report.hpp"

int main(int, char** argv) {
  ddp::bench::write_page(argv[1], nlohmann::ordered_json::parse(std::cin));
}
