#include "bench/html/markup.hpp"

#include <utility>

namespace ddp::bench::html {

Cell text_cell(const std::string& text) {
  return {text.empty() ? kNothing : escape(text), std::nullopt, ""};
}

Cell long_cell(const std::string& text) {
  return {text.empty() ? kNothing : escape(text), std::nullopt, "long"};
}

Cell code_cell(const std::string& text) {
  return {text.empty() ? kNothing : "<code>" + escape(text) + "</code>", std::nullopt, "long"};
}

Cell number_cell(Number value, const std::string& shown) {
  return {escape(shown), value, "number"};
}

Table::Table(std::string caption, std::vector<Column> columns)
    : caption_(std::move(caption)), columns_(std::move(columns)) {}

void Table::begin_group(const std::string& title) {
  body_ += in_group_ ? "</tbody>" : "";
  body_ += "<tbody><tr class=\"group\"><th scope=\"colgroup\" colspan=\"" +
           std::to_string(columns_.size()) + "\">" + escape(title) + "</th></tr>";
  in_group_ = true;
}

void Table::add(std::vector<Cell> cells) {
  if (!in_group_) {
    body_ += "<tbody>";
    in_group_ = true;
  }
  cells.resize(columns_.size());
  body_ += "<tr>";
  for (const Cell& cell : cells) {
    body_ += "<td" + (cell.css_class.empty() ? "" : " class=\"" + cell.css_class + "\"") +
             (cell.value ? " data-value=\"" + exact(*cell.value) + "\"" : "") + ">" + cell.html +
             "</td>";
  }
  body_ += "</tr>";
  ++rows_;
}

std::string Table::html() const {
  if (is_empty()) {
    return "";
  }
  std::string head;
  for (const Column& column : columns_) {
    head += std::string("<th scope=\"col\"") + (column.is_number ? " class=\"number\">" : ">") +
            escape(column.title) + "</th>";
  }
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + escape(caption_) +
         "\"><table><caption>" + escape(caption_) + "</caption><thead><tr>" + head +
         "</tr></thead>" + body_ + "</tbody></table></div>";
}

std::string Table::details() const {
  return is_empty()
             ? ""
             : "<details><summary>" + escape(caption_) + "</summary>" + html() + "</details>";
}

std::string figure(const std::string& title, const std::string& svg, const std::string& note) {
  if (svg.empty()) {
    return "";
  }
  return "<figure><figcaption>" + escape(title) +
         (note.empty() ? "" : " <span>" + escape(note) + "</span>") + "</figcaption>" + svg +
         "</figure>";
}

std::string figures(const std::vector<std::string>& figures) {
  std::string html;
  for (const std::string& one : figures) {
    html += one;
  }
  return html.empty() ? "" : "<div class=\"figures\">" + html + "</div>";
}

std::string paragraph(const std::string& html) {
  return html.empty() ? "" : "<p>" + html + "</p>";
}

}  // namespace ddp::bench::html
