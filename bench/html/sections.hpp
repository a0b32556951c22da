// bench/html/sections.hpp - the parts of the page, in the order in which they stand on it.
#pragma once

#include <string>
#include <vector>

#include "bench/html/document.hpp"
#include "bench/html/markup.hpp"
#include "bench/html/series.hpp"

namespace ddp::bench::html {

/// What all sections are made from. Points into itself: not to be copied.
struct Material {
  explicit Material(const nlohmann::ordered_json& json)
      : document(read_document(json)), series(document.runs), groups(group_runs(document)) {}
  Material(const Material&) = delete;
  Material& operator=(const Material&) = delete;

  Document document;
  SeriesCatalog series;
  std::vector<Group> groups;
};

/// Title, result in one sentence, what is wrong with the report, machine and software.
std::string overview(const Material& material);

/// The fastest of each model, and how much faster than one process; HTML.
std::string result_sentence(const Material& material);
/// The fastest of each model and scaling.
std::string winners_table(const Material& material);

// Each of these has no HTML if the document has nothing for it.
Section summary_section(const Material& material);
Section step_time_section(const Material& material);
Section speedup_section(const Material& material);
Section efficiency_section(const Material& material);
Section phases_section(const Material& material);
Section prediction_section(const Material& material);
Section extrapolation_section(const Material& material);
Section all_reduce_section(const Material& material);
Section ratios_section(const Material& material);
Section resources_section(const Material& material);
Section problems_section(const Material& material);
Section method_section(const Material& material);

/// Samples per second relative to one process; from the comparison's own two numbers where the
/// document does not give it.
Number speedup_of(const Run& run, const Group& group);

}  // namespace ddp::bench::html
