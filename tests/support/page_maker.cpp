// Reads the document of a report on standard input, writes its page to the file that is named, and
// prints its screen.
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/page.hpp"
#include "bench/print.hpp"
#include "bench/record.hpp"

int main(int, char** argv) {
  const auto document = nlohmann::ordered_json::parse(std::cin);
  ddp::bench::write_page(argv[1], document);
  ddp::bench::print(std::cout, ddp::bench::report_from_json(document["ddp_scaling"]));
}
