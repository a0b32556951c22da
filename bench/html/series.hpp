// bench/html/series.hpp - one look for each program under each launcher, the same in all plots.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/html/document.hpp"
#include "bench/html/svg.hpp"

namespace ddp::bench::html {

/// A colour of the style sheet.
struct Hue {
  std::string name;
  std::string style() const { return "--c:var(--hue-" + name + ")"; }
};

/// Runs that differ only in model, scaling and world size.
struct Series {
  std::string label;  ///< "04 mpirun", as short as this document allows
  std::string full_name;  ///< "04_ddp_launcher, mpirun, gloo"
  std::string how;  ///< "mpirun, gloo": full_name without the program; may be empty
  Hue hue;  ///< the program's
  Marker marker = Marker::kCircle;
  bool hollow = false;  ///< not a stage of the suite
  int dash = 0;  ///< 0: solid; tells series of one program apart
  std::size_t index = 0;

  /// "dash-0" to "dash-3", for lines.
  std::string dash_class() const { return "dash-" + std::to_string(dash); }
};

class SeriesCatalog {
 public:
  /// Controls look as what they are a copy of.
  explicit SeriesCatalog(const std::vector<Run>& runs);

  const Series& of(const Run& run) const;
  /// "03 gloo ×2".
  std::string row_label(const Run& run) const;
  const std::vector<Series>& all() const { return series_; }

  /// What stands for what, as HTML.
  std::string key() const;

 private:
  std::vector<Series> series_;
  std::map<std::string, std::size_t> index_;
};

/// The colour of the `index`-th of some other kind of thing, backends for example.
Hue extra_hue(std::size_t index);

}  // namespace ddp::bench::html
