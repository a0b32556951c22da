#include <algorithm>
#include <map>
#include <utility>

#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kHashLength = 40;
constexpr std::size_t kShortHash = 12;

std::string banner(const char* css_class, const std::string& html) {
  return std::string("<p class=\"banner ") + css_class + "\" role=\"note\">" + html + "</p>";
}

std::string banners(const Document& document) {
  std::string html;
  if (document.partial) {
    html += banner("warning",
                   "<b>Partial report.</b> The measurement was interrupted: some "
                   "configurations have fewer repetitions than others, or none.");
  }
  const auto failed = std::count_if(document.runs.begin(), document.runs.end(), [](const Run& run) {
    return !run.error.empty() || run.parity_ok == false;
  });
  if (failed > 0) {
    html += banner("warning", "<b>" + std::to_string(failed) + " of " +
                                  std::to_string(document.runs.size()) +
                                  " configurations failed</b> and have no speed; "
                                  "<a href=\"#problems\">their errors</a> are below.");
  }
  return html;
}

/// Whatever a fact is, on one line.
std::string fact(const ordered_json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "yes" : "no";
  }
  if (value.is_number_integer()) {
    return show_count(value.get<double>());
  }
  if (value.is_number()) {
    const std::string digits = exact(value.get<double>());
    return digits.size() <= 6 ? digits : show(value.get<double>());
  }
  std::string text;
  if (value.is_structured()) {
    for (const auto& [key, element] : value.items()) {
      const std::string part = fact(element);
      if (!part.empty()) {
        text += (text.empty() ? "" : ", ") + part;
      }
    }
  }
  return text;
}

std::string fact_label(const std::string& key) {
  static const std::map<std::string, std::string> labels = {
      {"host", "Host"},
      {"cpu_model", "Processor"},
      {"cores", "Cores used"},
      {"memory_mib", "Memory, MiB"},
      {"gpus", "GPUs"},
      {"load_average", "Load average before"},
      {"cpu_governor", "Frequency governor"},
      {"virtualised", "Virtual machine"},
      {"kernel", "Kernel"},
      {"os", "System"},
      {"compiler", "Compiler"},
      {"assertions", "Assertions compiled in"},
      {"libtorch", "LibTorch"},
      {"git_commit", "Commit"},
      {"torchrun", "torchrun"},
      {"mpirun", "mpirun"},
  };
  const auto found = labels.find(key);
  return found == labels.end() ? key : found->second;
}

std::string facts(const char* title, const ordered_json& object) {
  std::string rows;
  const auto add = [&rows](const std::string& key, const ordered_json& value) {
    std::string text = fact(value);
    if (key == "git_commit" && text.size() >= kHashLength) {
      text = text.substr(0, kShortHash) + text.substr(kHashLength);  // with "-dirty"
    }
    if (text.empty()) {
      text = key == "gpus" && value.is_array() ? "none" : "";
    }
    if (!text.empty()) {
      rows += "<dt>" + escape(fact_label(key)) + "</dt><dd>" + escape(text) + "</dd>";
    }
  };
  if (object.is_object()) {
    for (const auto& [key, value] : object.items()) {
      if (key != "launchers" || !value.is_object()) {
        add(key, value);
        continue;
      }
      for (const auto& [launcher, description] : value.items()) {
        const std::string version = text_at(description, "version");
        add(launcher, version.empty() ? description : ordered_json(version));
      }
    }
  }
  return rows.empty() ? "" : "<div><h2>" + std::string(title) + "</h2><dl>" + rows + "</dl></div>";
}

}  // namespace

std::string overview(const Material& material) {
  const Document& document = material.document;
  std::string where = escape(text_at(document.machine, "host"));
  where += where.empty() || document.date.empty() ? "" : " · ";
  std::string html = "<header><h1>Scaling of data-parallel training</h1>";
  html += "<p class=\"where\">" + where + escape(document.date) + "</p>";
  html += banners(document);
  html += "<p class=\"result\">" + result_sentence(material) + "</p></header>";
  html += winners_table(material);
  html += "<div class=\"facts\">" + facts("Machine", document.machine) +
          facts("Software", document.software) + "</div>";
  return html;
}

}  // namespace ddp::bench::html
