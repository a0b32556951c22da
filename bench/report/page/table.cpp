#include "bench/report/page/table.hpp"

namespace ddp::bench::page {
namespace {

using List = kainjow::mustache::list;

Data make_cell(const Column& column, const Json& row) {
  const Json& value = at(row, column.pointer);
  const std::string hue = std::string(column.pointer) == "/program" ? text_at(row, "/hue") : "";
  Data cell;
  cell.set("css_class", column.css_class);
  cell.set("text", column.format(value));
  // The number unrounded. All keys are set, or the template would find those of the table around.
  cell.set("value", number_at(value, "") ? Data(value.dump()) : Data(false));
  cell.set("hue", hue.empty() ? Data(false) : Data(hue));
  return cell;
}

}  // namespace

Data make_table(const std::string& caption, const std::vector<Column>& columns,
                const std::vector<Json>& rows, bool by_workload) {
  if (rows.empty()) {
    return Data(false);
  }
  List heads;
  for (const Column& column : columns) {
    Data head("title", column.title);
    head.set("css_class", column.css_class);
    heads.push_back(head);
  }
  List bodies;
  for (std::size_t first = 0; first < rows.size();) {
    const std::string workload = by_workload ? text_at(rows[first], "/workload") : "";
    List body_rows;
    std::size_t next = first;
    for (; next < rows.size() && (!by_workload || text_at(rows[next], "/workload") == workload);
         ++next) {
      List cells;
      for (const Column& column : columns) {
        cells.push_back(make_cell(column, rows[next]));
      }
      body_rows.push_back(Data("cells", cells));
    }
    Data body("rows", body_rows);
    body.set("workload", by_workload ? Data(workload) : Data(false));
    bodies.push_back(body);
    first = next;
  }
  Data table("caption", caption);
  table.set("columns", heads);
  table.set("width", std::to_string(columns.size()));
  table.set("bodies", bodies);
  return table;
}

}  // namespace ddp::bench::page
