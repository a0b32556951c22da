// The drawings of the page: points stand where the axes say, and labels can be read.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/html/axis.hpp"
#include "bench/html/line_plot.hpp"
#include "bench/html/row_plot.hpp"
#include "tests/catch.hpp"
#include "tests/support/page.hpp"

namespace {

using ddp::test::Element;
using ddp::test::only;
using ddp::test::read_page;
namespace html = ddp::bench::html;

/// The label of a tick; those of the y axis end at it, those of an x axis are centred.
const Element& find_tick(const Element& svg, const std::string& label, const std::string& anchor) {
  for (const Element* tick : svg.with_class("text", "tick")) {
    if (tick->text == label && tick->attribute("text-anchor") == anchor) {
      return *tick;
    }
  }
  throw std::runtime_error("no tick " + label);
}

double x_of(const Element& svg, const std::string& label) {
  return find_tick(svg, label, "middle").number("x");
}

/// Labels of the y axis stand four pixels below their lines.
double y_of(const Element& svg, const std::string& label) {
  return find_tick(svg, label, "end").number("y") - 4;
}

TEST_CASE("points stand where the axes say", "[html]") {
  html::LinePlot plot;
  html::Curve curve;
  curve.line_class = "dash-0";
  for (const double x : {1.0, 2.0, 4.0}) {
    curve.points.push_back({x, std::pow(10.0, std::log2(x)), 0.5 * x, 200.0, "tip"});
  }
  plot.curves.push_back(curve);
  const auto svg = read_page(html::draw(plot));
  const std::vector<ddp::test::Position> points = ddp::test::circles(*svg);
  REQUIRE(points.size() == 3);
  CHECK(points[0].x == Approx(x_of(*svg, "1")));
  CHECK(points[1].x == Approx(x_of(*svg, "2")));
  CHECK(points[2].x == Approx(x_of(*svg, "4")));
  CHECK(points[0].y == Approx(y_of(*svg, "1")).margin(0.02));
  CHECK(points[1].y == Approx(y_of(*svg, "10")).margin(0.02));
  CHECK(points[2].y == Approx(y_of(*svg, "100")).margin(0.02));
  CHECK(points[0].y - points[1].y == Approx(points[1].y - points[2].y).margin(0.02));
  CHECK(svg->with_class("line", "whisker").size() == 9);
}

TEST_CASE("bars are as long as their values", "[html]") {
  html::BarPlot plot;
  plot.rows.push_back({"a", "", {{1, "phase-0", "", "", ""}, {3, "phase-1", "", "", ""}}, {}, "4"});
  plot.rows.push_back({"b", "", {{2, "phase-0", "", "", ""}}, {{4.0, "mark-dot", ""}}, "2"});
  const auto svg = read_page(html::draw(plot));
  const std::vector<const Element*> bars = svg->all("rect");
  REQUIRE(bars.size() == 3);
  const double unit = bars[0]->number("width");
  const double zero = bars[0]->number("x");
  CHECK(zero == Approx(x_of(*svg, "0")));
  CHECK(bars[1]->number("width") == Approx(3 * unit).margin(0.02));
  CHECK(bars[1]->number("x") == Approx(zero + unit).margin(0.02));
  CHECK(bars[2]->number("width") == Approx(2 * unit).margin(0.02));
  CHECK(svg->all("circle")[0]->number("cx") == Approx(zero + 4 * unit).margin(0.02));
}

TEST_CASE("intervals stand on a logarithmic axis around their line", "[html]") {
  html::IntervalPlot plot;
  html::IntervalRow row;
  row.label = "a";
  row.value = 2;
  row.low = 1.0;
  row.high = 4.0;
  row.even = 2.0;
  plot.rows.push_back(row);
  const auto svg = read_page(html::draw(plot));
  const Element& interval = only(svg->with_class("line", "interval"));
  const double one = only(svg->with_class("line", "one")).number("x1");
  const double middle = svg->all("circle")[0]->number("cx");
  CHECK(interval.number("x1") == Approx(one));
  CHECK(middle - interval.number("x1") == Approx(interval.number("x2") - middle).margin(0.02));
  CHECK(only(svg->with_class("line", "even")).number("x1") == Approx(middle));
}

TEST_CASE("labels beside a plot never touch, and stay inside it", "[html]") {
  html::LinePlot plot;
  for (int i = 0; i < 22; ++i) {
    html::Curve curve;
    curve.label = "label " + std::to_string(i);
    curve.points = {{1, 1, {}, {}, ""}, {2, i < 11 ? 1.0 : 1.0 + 1e-3 * i, {}, {}, ""}};
    plot.curves.push_back(curve);
  }
  const auto page = read_page(html::draw(plot));
  const Element& svg = only(page->all("svg"));
  std::vector<double> ys;
  for (const Element* label : svg.with_class("text", "label")) {
    ys.push_back(label->number("y"));
  }
  REQUIRE(ys.size() == 22);
  std::sort(ys.begin(), ys.end());
  std::istringstream box(svg.attribute("viewBox"));
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  box >> x >> y >> width >> height;
  CHECK(ys.front() > 10);
  CHECK(ys.back() < height);
  for (std::size_t i = 1; i < ys.size(); ++i) {
    CHECK(ys[i] - ys[i - 1] > 13);
  }
}

TEST_CASE("axes have labels that differ and do not touch, whatever the range", "[html]") {
  // The labels of a step of 2.5 have as many digits as they need.
  html::Extent narrow(true);
  narrow.add(0.97);
  narrow.add(1.03);
  std::string narrow_labels;
  const html::Axis narrow_axis = html::Axis::logarithmic(narrow, 250, 30, 40);
  for (const html::Tick& tick : narrow_axis.ticks()) {
    narrow_labels += tick.label + " ";
  }
  CHECK(narrow_labels == "0.95 0.975 1 1.025 1.05 ");

  for (int power = 0; power < 29; ++power) {
    const double low = 1e-12 * std::pow(7.3, power);
    for (const double factor : {1.0, 1.0001, 1.02, 1.3, 2.0, 9.0, 40.0, 1e3, 1e7, 1e20}) {
      CAPTURE(low, factor);
      html::Extent extent(true);
      extent.add(low);
      extent.add(low * factor);
      const html::Axis vertical = html::Axis::logarithmic(extent, 250, 30, 19);
      const html::Axis horizontal = html::Axis::logarithmic(extent, 50, 400, 40);
      const html::Axis linear = html::Axis::linear_from_zero(extent, 250, 30, 26);
      for (const html::Axis* axis : {&vertical, &horizontal, &linear}) {
        const std::vector<html::Tick>& ticks = axis->ticks();
        REQUIRE_FALSE(ticks.empty());
        CHECK(ticks.size() <= 14);
        std::set<std::string> labels;
        for (std::size_t i = 0; i < ticks.size(); ++i) {
          labels.insert(ticks[i].label);
          if (i > 0) {
            const double gap = std::abs(axis->at(ticks[i].value) - axis->at(ticks[i - 1].value));
            const double needed = axis == &horizontal ? 39.9 : 18.9;
            CHECK(gap >= needed);
          }
        }
        CHECK(labels.size() == ticks.size());
      }
      CHECK(vertical.at(low) >= vertical.at(low * factor));
      CHECK(vertical.at(low) <= 250);
      CHECK(vertical.at(low * factor) >= 30);
    }
  }
}

}  // namespace
