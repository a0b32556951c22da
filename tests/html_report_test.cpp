// The page of a report: it holds what the document says, needs nothing else, and survives documents
// that are old, hostile or damaged.
#include "bench/report/html_report.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/html/svg.hpp"
#include "bench/html/text.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/page.hpp"
#include "tests/support/run_program.hpp"

#if !defined(DDP_BIN_DIR) || !defined(DDP_SOURCE_DIR)
#error "expected DDP_BIN_DIR, the folder with the programs, and DDP_SOURCE_DIR, the checkout"
#endif

namespace {

namespace fs = std::filesystem;
using ddp::bench::make_html_report;
using ddp::test::Element;
using ddp::test::only;
using ddp::test::read_page;
using nlohmann::ordered_json;
namespace html = ddp::bench::html;

/// A report with something in every field: one process, two and four ranks, a control, a peer, and
/// a run that failed.
const ordered_json& full_document() {
  static const ordered_json document = ordered_json::parse(
      std::ifstream(std::string(DDP_SOURCE_DIR) + "/tests/support/full_report.json"));
  return document;
}

constexpr std::size_t kTwoRanks = 1;
constexpr std::size_t kControl = 3;
constexpr std::size_t kFailed = 5;

bool has_text(const Element& page, const std::string& text) {
  return page.text.find(text) != std::string::npos;
}

const Element& with_id(const Element& page, const std::string& id) {
  std::vector<const Element*> found;
  for (const Element* element : page.all("*")) {
    if (element->attribute("id") == id) {
      found.push_back(element);
    }
  }
  INFO(id);
  return only(found);
}

std::vector<std::string> section_ids(const Element& page) {
  std::vector<std::string> ids;
  for (const Element* section : page.all("section")) {
    ids.push_back(section->attribute("id"));
  }
  return ids;
}

/// True if a word of it is what a program prints for a number that is none.
bool has_no_number(const std::string& text) {
  static const std::set<std::string> words = {"nan", "inf", "infinity", "undefined", "null"};
  std::string word;
  for (const char c : text + ".") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      if (words.count(word) > 0) {
        return true;
      }
      word.clear();
    }
  }
  return false;
}

/// Everything that has to hold whatever the document is.
void check_page(const Element& page) {
  static const std::set<std::string> known = {
      "html",   "head",    "meta",    "title",   "style",      "body",   "header", "main",
      "footer", "section", "nav",     "div",     "p",          "ul",     "li",     "b",
      "i",      "a",       "h1",      "h2",      "h3",         "dl",     "dt",     "dd",
      "pre",    "code",    "table",   "caption", "thead",      "tbody",  "tr",     "th",
      "td",     "details", "summary", "figure",  "figcaption", "span",   "button", "script",
      "svg",    "g",       "line",    "path",    "rect",       "circle", "text"};
  static const std::set<std::string> coordinates = {"x",  "y",  "x1", "y1",    "x2",    "y2",
                                                    "cx", "cy", "r",  "width", "height"};
  std::size_t scripts = 0;
  for (const Element* element : page.all("*")) {
    if (known.count(element->name) == 0) {
      FAIL("an element that no page has: " << element->name);
    }
    scripts += element->name == "script" ? 1U : 0U;
    for (const auto& [key, value] : element->attributes) {
      if (key == "src" || key.rfind("on", 0) == 0 || (key == "href" && value.rfind('#', 0) != 0)) {
        FAIL("<" << element->name << " " << key << "=\"" << value << "\">");
      }
      if (coordinates.count(key) > 0) {
        const double number = element->number(key);
        if (!(std::abs(number) < 1e4)) {
          FAIL(element->name << " " << key << "=" << value);
        }
      }
      if (key == "d" || key == "viewBox") {
        if (value.find_first_not_of("MLZ0123456789.- ") != std::string::npos) {
          FAIL(element->name << " " << key << "=" << value);
        }
      }
    }
    if (element->name == "td" || element->name == "text" || element->name == "dd" ||
        element->name == "title" || element->name == "p") {
      if (has_no_number(element->text)) {
        FAIL("no number: " << element->text);
      }
    }
    if (element->name == "td" && element->attributes.count("data-value") > 0) {
      if (!std::isfinite(element->number("data-value"))) {
        FAIL("data-value=" << element->attribute("data-value"));
      }
    }
  }
  CHECK(scripts == 2);
  for (const Element* table : page.all("table")) {
    const std::size_t columns = table->all("thead").front()->all("th").size();
    for (const Element* row : table->all("tbody").front()->all("tr")) {
      if (!row->has_class("group")) {
        CHECK(row->all("td").size() == columns);
      }
    }
  }
}

/// The page of a document, checked.
std::unique_ptr<Element> page_of(const ordered_json& document) {
  std::unique_ptr<Element> page = read_page(make_html_report(document));
  check_page(*page);
  return page;
}

TEST_CASE("numbers are shown as people read them", "[html]") {
  CHECK(html::show(0.04123) == "0.0412");
  CHECK(html::show(1.2345) == "1.23");
  CHECK(html::show(1234.5) == "1,234");
  CHECK(html::show(0.0) == "0.00");
  CHECK(html::show(4.5e9) == "4.5·10⁹");
  CHECK(html::show(1e-7) == "10⁻⁷");
  CHECK(html::show(-3.25e300) == "-3.2·10³⁰⁰");
  CHECK(html::show(std::nullopt) == "–");
  CHECK(html::show(std::nan("")) == "–");
  CHECK(html::show_count(1234567.0) == "1,234,567");
  CHECK(html::show_count(-1234567.0) == "-1,234,567");
  CHECK(html::show_size(4.0) == "4 B");
  CHECK(html::show_size(32768.0) == "32 KiB");
  CHECK(html::show_size(1572864.0) == "1.50 MiB");
  CHECK(html::show_percent(0.714) == "71 %");
  CHECK(html::show_signed_percent(0.0714) == "+7.1 %");
  CHECK(html::show_efficiency(0.0004) == "<0.01");
  CHECK(html::coordinate(std::nan("")) == "0");
  CHECK(html::coordinate(12.3456) == "12.35");
  CHECK(html::coordinate(-0.001) == "0");
  CHECK(html::shortened("αβγδε", 4) == "αβγ…");
  CHECK(html::shortened("αβγδ", 4) == "αβγδ");
  CHECK(html::escape("<a href='x'>\"&\x01") == "&lt;a href=&#39;x&#39;&gt;&quot;&amp;\xEF\xBF\xBD");
}

TEST_CASE("the page of a full report has all sections and says what the document says", "[html]") {
  const ordered_json& document = full_document();
  const auto page = page_of(document);
  CHECK(section_ids(*page) == std::vector<std::string>{"summary", "step-time", "speed-up",
                                                       "efficiency", "phases", "prediction",
                                                       "extrapolation", "all-reduce", "ratios",
                                                       "resources", "problems", "method"});
  CHECK(page->all("nav").front()->all("a").size() == 12);

  // The sentence: four ranks, 4 * 32 samples in 0.875 ms against 32 in 0.5 ms.
  const Element& result = only(page->with_class("p", "result"));
  CHECK(result.text ==
        "Most samples per second: 03_ddp_spawn on 4 ranks (gloo) for S (2.29× one process).");

  // Every run with a speed is in the summary, with its exact numbers behind the rounded ones.
  const Element& summary = with_id(*page, "summary");
  std::vector<const Element*> rows;
  for (const Element* row : summary.all("tr")) {
    if (!row->all("td").empty()) {
      rows.push_back(row);
    }
  }
  std::size_t next = 0;
  for (const ordered_json& run : document["ddp_scaling"]["runs"]) {
    if (run["kind"] == "control") {
      continue;
    }
    CAPTURE(run["name"]);
    REQUIRE(next < rows.size());
    const std::vector<const Element*> cells = rows[next++]->all("td");
    CHECK(cells[0]->text == run["stage"].get<std::string>());
    CHECK(cells[3]->number("data-value") == run["world_size"].get<double>());
    if (!run["error"].is_null()) {
      CHECK(cells[5]->text == "no speed");
      continue;
    }
    CHECK(cells[5]->number("data-value") == run["step_ms"]["median"].get<double>());
    CHECK(cells[5]->text == html::show(run["step_ms"]["median"].get<double>()));
    CHECK(cells[7]->number("data-value") == run["samples_per_second"].get<double>());
    CHECK(cells[8]->number("data-value") == run["relative_speedup"].get<double>());
    CHECK(cells[9]->number("data-value") == run["efficiency"].get<double>());
    CHECK(cells[10]->text == "ok");
  }
  CHECK(next == rows.size());

  const Element& problems = with_id(*page, "problems");
  CHECK(has_text(problems, "rank 1 exited with 1: no route to 10.0.0.7"));
  CHECK(has_text(problems, "one node only"));
  CHECK(has_text(with_id(*page, "method"), "bench --models S"));
  CHECK(has_text(with_id(*page, "method"), "64-128-128-10, synthetic classes, batch 32"));
  CHECK(has_text(with_id(*page, "method"), "bench --nodes 2"));
  CHECK(has_text(with_id(*page, "extrapolation"), "The network stays as it is."));
  CHECK(has_text(*page, "3d196e62d607-dirty"));
  CHECK(has_text(with_id(*page, "phases"), "102 KiB, 1 MiB"));
  CHECK(has_text(with_id(*page, "resources"), "rank 1, 61 % of steps, +4.2 %"));
  CHECK(has_text(with_id(*page, "resources"), "41.5 %"));
  CHECK(has_text(with_id(*page, "prediction"), "fused_sgd"));
}

/// Every number of the document that a table is made for.
TEST_CASE("every number that was measured can be read from a table", "[html]") {
  const ordered_json& document = full_document();
  const auto page = page_of(document);
  std::multiset<double> shown;
  for (const Element* cell : page->all("td")) {
    if (cell->attributes.count("data-value") > 0) {
      shown.insert(cell->number("data-value"));
    }
  }
  const auto check = [&](const ordered_json& value, const std::string& what) {
    CAPTURE(what, value.dump());
    REQUIRE(value.is_number());
    CHECK(shown.count(value.get<double>()) > 0);
  };
  const ordered_json& scaling = document["ddp_scaling"];
  for (const ordered_json& run : scaling["runs"]) {
    if (!run["error"].is_null() || run["kind"] == "control") {
      continue;
    }
    for (const char* key : {"samples_per_second", "relative_speedup", "efficiency", "floor_ms",
                            "predicted_step_ms", "peak_rss_mib", "job_peak_rss_mib",
                            "cpu_utilisation", "no_comm_step_ms", "global_batch"}) {
      check(run[key], key);
    }
    check(run["startup_ms"].get<double>() / 1e3, "startup");
    for (const char* part : {"step_ms", "phases_ms"}) {
      for (const auto& [key, value] : run[part].items()) {
        check(value, key);
      }
    }
    for (const char* key : {"alone_ms", "hidden_share", "bytes_per_step", "bus_bandwidth_gbps",
                            "exposed_by_difference_ms"}) {
      check(run["comm"][key], key);
    }
    for (const char* key : {"compute_ms", "comm_ms", "ring_step_ms", "tree_step_ms", "residual"}) {
      check(run["prediction"][key], key);
    }
    for (const char* key : {"utilisation_percent", "power_w", "memory_mib"}) {
      check(run["gpu"][key], key);
    }
  }
  for (const ordered_json& comparison : scaling["comparisons"]) {
    check(comparison["ratio_median"], "ratio");
    if (comparison["ci95"].is_array()) {
      check(comparison["ci95"][0], "low");
      check(comparison["ci95"][1], "high");
    }
  }
  for (const ordered_json& sample : scaling["all_reduce"]) {
    check(sample["bytes"], "bytes");
    check(sample["time_us"]["median"], "time");
    check(sample["bus_bandwidth_gbps"], "bus");
  }
  for (const ordered_json& model : scaling["communication_models"]) {
    check(model["regimes"][0]["alpha_us"], "alpha");
    check(model["regimes"][0]["beta_us_per_mib"], "beta");
    check(model["median_relative_error"], "error");
  }
  for (const ordered_json& extrapolation : scaling["extrapolations"]) {
    check(extrapolation["predicted_step_ms"], "extrapolated");
    check(extrapolation["efficiency"], "extrapolated efficiency");
  }
  check(scaling["limits"][0]["fp32_gflops"], "limit");
  check(scaling["micro"][0]["bandwidth_gbps"], "micro");
}

TEST_CASE("the page needs nothing from outside and holds the document", "[html]") {
  ordered_json document = full_document();
  document["ddp_scaling"]["settings"]["command"] = "</script><!-- <script> \\u003c \"";
  const std::string text = make_html_report(document);
  const auto page = page_of(document);

  CHECK(ordered_json::parse(with_id(*page, "document").text) == document);
  const std::string policy = page->all("meta")[1]->attribute("content");
  CHECK(policy.find("default-src 'none'") == 0);
  const std::string style = only(page->all("style")).text;
  CHECK(style.find("url(") == std::string::npos);
  CHECK(style.find("@import") == std::string::npos);
  const std::string script = page->all("script")[1]->text;
  for (const char* loader : {"fetch", "XMLHttpRequest", "import", "http:", "https:", "eval"}) {
    CAPTURE(loader);
    CHECK(script.find(loader) == std::string::npos);
  }
  // The address in the error of the failed run is text, and in the document; nowhere else.
  CHECK(std::regex_replace(style + script, std::regex("https?://"), "").size() ==
        (style + script).size());
  CHECK(text.find("<link") == std::string::npos);
}

TEST_CASE("links lead to sections that are there, and ids are unique", "[html]") {
  for (const ordered_json& document : {full_document(), ordered_json::object()}) {
    const auto page = page_of(document);
    std::multiset<std::string> ids;
    for (const Element* element : page->all("*")) {
      if (!element->attribute("id").empty()) {
        ids.insert(element->attribute("id"));
      }
    }
    for (const std::string& id : ids) {
      CHECK(ids.count(id) == 1);
    }
    for (const Element* link : page->all("a")) {
      CAPTURE(link->attribute("href"));
      CHECK(ids.count(link->attribute("href").substr(1)) == 1);
    }
  }
}

void replace_strings(ordered_json& value, const std::string& by) {
  if (value.is_string()) {
    value = by;
  } else if (value.is_structured()) {
    for (auto& element : value) {
      replace_strings(element, by);
    }
  }
}

void collect_pointers(const ordered_json& value, const ordered_json::json_pointer& here,
                      std::vector<ordered_json::json_pointer>& pointers) {
  if (!here.empty()) {
    pointers.push_back(here);
  }
  if (value.is_object()) {
    for (const auto& [key, element] : value.items()) {
      collect_pointers(element, here / key, pointers);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      collect_pointers(value[i], here / i, pointers);
    }
  }
}

TEST_CASE("hostile text stays text, in every field", "[html]") {
  const std::string hostile =
      "x</script></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'>&amp;<!--"
      "\x01\x7F\xFF\xC0\xAF\xED\xA0\x80\xEF\xBF\xBF]]>";
  ordered_json all = full_document();
  replace_strings(all, hostile);
  page_of(all);

  const ordered_json& document = full_document();
  std::vector<ordered_json::json_pointer> pointers;
  collect_pointers(document, ordered_json::json_pointer(), pointers);
  std::size_t strings = 0;
  for (const auto& pointer : pointers) {
    if (document[pointer].is_string()) {
      ordered_json changed = document;
      changed[pointer] = hostile;
      CAPTURE(pointer.to_string());
      page_of(changed);
      ++strings;
    }
  }
  CHECK(strings > 80);
  // Keys are shown too: the facts of the machine are listed as they are.
  ordered_json keys = document;
  keys["ddp_scaling"]["machine"][hostile] = 3;
  CHECK(has_text(*page_of(keys), "x</script></title><script>alert(1)</script>"));
  // Very long text cuts nothing off but the labels of drawings.
  ordered_json longer = document;
  replace_strings(longer["ddp_scaling"]["runs"], std::string(20000, 'w'));
  page_of(longer);
}

TEST_CASE("a damaged document gives a smaller page, never a wrong one", "[html]") {
  const ordered_json& document = full_document();
  std::vector<ordered_json::json_pointer> pointers;
  collect_pointers(document, ordered_json::json_pointer(), pointers);
  const std::vector<ordered_json> values = {nullptr,
                                            "text",
                                            -1,
                                            0,
                                            1e308,
                                            -1e308,
                                            1e-320,
                                            true,
                                            ordered_json::array(),
                                            ordered_json::object(),
                                            std::nan(""),
                                            HUGE_VAL,
                                            ordered_json::array({nullptr, "x", {}})};
  std::size_t value = 0;
  for (const auto& pointer : pointers) {
    // A few values for each place, all values over all places.
    for (int turn = 0; turn < 2; ++turn) {
      ordered_json changed = document;
      changed[pointer] = values[value++ % values.size()];
      CAPTURE(pointer.to_string(), changed[pointer].dump());
      page_of(changed);
    }
    ordered_json erased = document;
    ordered_json& parent = erased[pointer.parent_pointer()];
    if (parent.is_object()) {
      parent.erase(pointer.back());
      CAPTURE(pointer.to_string());
      page_of(erased);
    }
  }
}

TEST_CASE("all numbers at once may be nothing, zero, negative or huge", "[html]") {
  for (const ordered_json& number :
       {ordered_json(nullptr), ordered_json(0), ordered_json(-1), ordered_json(1e308),
        ordered_json(5e-324), ordered_json(-1e308), ordered_json(std::nan(""))}) {
    CAPTURE(number.dump());
    ordered_json document = full_document();
    std::vector<ordered_json::json_pointer> pointers;
    collect_pointers(document, ordered_json::json_pointer(), pointers);
    for (const auto& pointer : pointers) {
      if (document[pointer].is_number()) {
        document[pointer] = number;
      }
    }
    page_of(document);
  }
}

TEST_CASE("documents with next to nothing in them", "[html]") {
  for (const char* text : {"{}", "[]", "null", "3", "\"text\"", "{\"ddp_scaling\": null}",
                           "{\"ddp_scaling\": []}", "{\"ddp_scaling\": {\"runs\": []}}",
                           "{\"ddp_scaling\": {\"runs\": {}, \"comparisons\": 4}}",
                           "{\"ddp_scaling\": {\"runs\": [null, 3, {}]}}"}) {
    CAPTURE(text);
    const auto page = page_of(ordered_json::parse(text));
    CHECK(page->all("h1").size() == 1);
    CHECK(page->all("figure").empty());
  }
  CHECK(has_text(*page_of(ordered_json::object()), "Nothing was measured."));
}

TEST_CASE("a partial report and failed runs are announced", "[html]") {
  ordered_json document = full_document();
  CHECK(page_of(document)->with_class("p", "banner").size() == 1);  // one run failed
  document["ddp_scaling"]["partial"] = true;
  const auto partial = page_of(document);
  REQUIRE(partial->with_class("p", "banner").size() == 2);
  CHECK(has_text(*partial->with_class("p", "banner")[0], "Partial report"));

  ordered_json failed = full_document();
  const ordered_json failed_run = full_document()["ddp_scaling"]["runs"][kFailed];
  failed["ddp_scaling"]["runs"] = {failed_run, failed_run};
  for (const char* key :
       {"comparisons", "all_reduce", "communication_models", "extrapolations", "limits", "micro"}) {
    failed["ddp_scaling"][key] = ordered_json::array();
  }
  const auto page = page_of(failed);
  CHECK(has_text(*page, "2 of 2 configurations failed"));
  CHECK(has_text(*page, "No configuration has a speed"));
  CHECK(page->all("figure").empty());
  CHECK(section_ids(*page) == std::vector<std::string>{"summary", "problems", "method"});
}

TEST_CASE("documents without the newer fields are shown as far as they go", "[html]") {
  ordered_json document = full_document();
  ordered_json& scaling = document["ddp_scaling"];
  for (const char* key : {"limits", "all_reduce", "communication_models", "extrapolations",
                          "assumptions", "micro", "merged_from"}) {
    scaling.erase(key);
  }
  scaling["runs"].erase(kControl);
  for (ordered_json& run : scaling["runs"]) {
    for (const char* key :
         {"kind", "repetition_medians_ms", "no_comm_step_ms", "floor", "prediction",
          "job_peak_rss_mib", "cpu_utilisation", "gpu", "slowest_rank"}) {
      run.erase(key);
    }
    run["floor_ms"] = nullptr;
    run["predicted_step_ms"] = nullptr;
  }
  scaling["comparisons"].erase(3);
  for (ordered_json& comparison : scaling["comparisons"]) {
    comparison.erase("kind");
    comparison.erase("verdict");
  }
  const auto page = page_of(document);
  CHECK(section_ids(*page) == std::vector<std::string>{"summary", "step-time", "speed-up",
                                                       "efficiency", "phases", "ratios",
                                                       "resources", "problems", "method"});
  // A verdict is the document's to give.
  CHECK(has_text(with_id(*page, "ratios"), "1.25×"));
  CHECK_FALSE(has_text(with_id(*page, "ratios"), "1.25× faster"));
}

TEST_CASE("one process alone, and many configurations", "[html]") {
  ordered_json one = full_document();
  one["ddp_scaling"]["runs"] = {one["ddp_scaling"]["runs"][0]};
  CHECK(has_text(*page_of(one),
                 "Nothing measured here handles more samples per second than one "
                 "process (01_single_gpu), for S."));
  ordered_json two = full_document();
  two["ddp_scaling"]["runs"] = {two["ddp_scaling"]["runs"][1]};
  page_of(two);

  ordered_json many = full_document();
  ordered_json& runs = many["ddp_scaling"]["runs"];
  for (const char* model : {"T", "M", "L", "digits"}) {
    for (const char* scaling : {"weak", "strong"}) {
      for (const char* backend : {"gloo", "mpi", "shm"}) {
        for (const int world_size : {2, 4, 8}) {
          ordered_json run = runs[kTwoRanks];
          run["name"] = std::string(model) + scaling + backend + std::to_string(world_size);
          run["model"] = model;
          run["scaling"] = scaling;
          run["backend"] = backend;
          run["world_size"] = world_size;
          runs.push_back(run);
        }
      }
    }
  }
  const auto page = page_of(many);
  CHECK(with_id(*page, "step-time").all("figure").size() == 9);
  // Enough of them that their names need the backend.
  CHECK(has_text(with_id(*page, "step-time"), "03 shm"));
}

TEST_CASE("the line of the fitted model goes through what the model says", "[html]") {
  for (const std::string algorithm : {"ring", "tree"}) {
    for (const int n : {2, 4}) {
      CAPTURE(algorithm, n);
      ordered_json document = full_document();
      ordered_json& scaling = document["ddp_scaling"];
      const double alpha_us = 20;
      const double beta_us = 250;
      scaling["communication_models"] = {
          {{"backend", "gloo"},
           {"device", "cpu"},
           {"algorithm", algorithm},
           {"world_sizes", {n}},
           {"regimes", {{{"from_bytes", 0}, {"alpha_us", alpha_us}, {"beta_us_per_mib", beta_us}}}},
           {"median_relative_error", 0.1},
           {"points", 4}}};
      scaling["all_reduce"] = ordered_json::array();
      for (int power = 2; power <= 26; power += 3) {
        const double bytes = std::pow(2.0, power);
        const double mib = bytes / 1048576;
        const double time_us = algorithm == "ring"
                                   ? 2 * (n - 1) * alpha_us + 2.0 * (n - 1) / n * mib * beta_us
                                   : 2 * std::log2(n) * alpha_us + 2 * mib * beta_us;
        scaling["all_reduce"].push_back(
            {{"backend", "gloo"},
             {"device", "cpu"},
             {"world_size", n},
             {"bytes", bytes},
             {"time_us", {{"median", time_us}}},
             {"bus_bandwidth_gbps", bytes / time_us * 1e-3 * 2 * (n - 1) / n}});
      }
      const auto page = page_of(document);
      const std::vector<const Element*> plots = with_id(*page, "all-reduce").all("svg");
      REQUIRE(plots.size() == 2);
      for (const Element* svg : plots) {
        std::vector<ddp::test::Position> line;
        std::istringstream path(std::regex_replace(
            only(svg->with_class("path", "model")).attribute("d"), std::regex("[ML]"), " "));
        for (ddp::test::Position point; path >> point.x >> point.y;) {
          line.push_back(point);
        }
        REQUIRE(line.size() == 25);
        // Eight points, and 24 pieces between them: every third end is at a point.
        const std::vector<ddp::test::Position> measured = ddp::test::circles(*svg);
        REQUIRE(measured.size() >= 9);
        for (std::size_t i = 0; i < 9; ++i) {
          CHECK(line[3 * i].x == Approx(measured[i].x).margin(0.05));
          CHECK(line[3 * i].y == Approx(measured[i].y).margin(0.05));
        }
      }
    }
  }
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "html_report_test.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::size_t size() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE("the file is written whole, over the one before", "[html]") {
  const Folder folder;
  write_file(folder / "page.html", "old");
  ddp::bench::write_html_file(folder / "page.html", full_document());
  CHECK(read_file(folder / "page.html") == make_html_report(full_document()));
  CHECK(folder.size() == 1);
  try {
    ddp::bench::write_html_file(folder / "no/such/page.html", full_document());
    FAIL("expected an error");
  } catch (const ddp::Error& error) {
    CHECK(error.code() == ddp::ExitCode::kTrainingFailed);
    CHECK(std::string(error.what()).find("no/such/page.html") != std::string::npos);
  }
}

TEST_CASE("bench html makes the page of a report that is there", "[html]") {
  const Folder folder;
  const ordered_json& document = full_document();
  write_file(folder / "report.json", document.dump(2));
  const std::string bench = std::string(DDP_BIN_DIR) + "/bench";
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {bench, "html"});
    return ddp::test::run_program(arguments);
  };
  const auto to_stdout = run({folder / "report.json"});
  INFO(to_stdout.err);
  CHECK(to_stdout.exit_code == 0);
  CHECK(to_stdout.out == make_html_report(document));
  const auto to_file = run({folder / "report.json", folder / "page.html"});
  CHECK(to_file.exit_code == 0);
  CHECK(to_file.out.empty());
  CHECK(read_file(folder / "page.html") == to_stdout.out);

  write_file(folder / "text.json", "not JSON");
  write_file(folder / "other.json", "{\"benchmarks\": []}");
  ordered_json damaged = document;
  damaged["ddp_scaling"]["schema_version"] = 2;
  write_file(folder / "version.json", damaged.dump());
  damaged = document;
  damaged["ddp_scaling"]["runs"] = "x";
  write_file(folder / "runs.json", damaged.dump());
  damaged["ddp_scaling"] = ordered_json::object();
  write_file(folder / "empty.json", damaged.dump());
  write_file(folder / "deep.json", std::string(100000, '[') + std::string(100000, ']'));
  struct Case {
    std::vector<std::string> arguments;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{}, "REPORT.json"},
      {{folder / "missing.json"}, "missing.json: cannot be read"},
      {{folder / "text.json"}, "text.json:1: not JSON"},
      {{folder / "other.json"}, "other.json: no member \"ddp_scaling\""},
      {{folder / "deep.json"}, "deep.json: nested more than"},
      {{folder / ""}, "is a folder"},
      {{folder / "version.json"}, "version.json: /ddp_scaling/schema_version: expected 1, got 2"},
      {{folder / "empty.json"}, "empty.json: no /ddp_scaling/schema_version"},
      {{folder / "runs.json"}, "runs.json: /ddp_scaling/runs: expected a list, got \"x\""},
      {{folder / "report.json", folder / "no/page.html"}, "no/page.html"},
      {{folder / "report.json", "/proc/page.html"}, "expected a file that can be written"},
      {{folder / "report.json", "--nonsense"}, "--nonsense"},
      {{folder / "report.json", folder / "page.html", "third"}, "third"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.arguments);
    const auto result = run(bad.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    INFO(result.err);
    CHECK(result.err.find(bad.error) != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

}  // namespace
