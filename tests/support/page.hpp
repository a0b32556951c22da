// tests/support/page.hpp - reads HTML and SVG as strictly as XML, so that a test can look into it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ddp::test {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;  ///< unescaped
  std::string text;  ///< unescaped, of this element and all in it, in order
  std::vector<std::unique_ptr<Element>> children;
  const Element* parent = nullptr;

  std::string attribute(const std::string& key) const;
  double number(const std::string& key) const;
  bool has_class(const std::string& css_class) const;
  /// All elements in it with that name; "*": all of them.
  std::vector<const Element*> all(const std::string& element) const;
  std::vector<const Element*> with_class(const std::string& element,
                                         const std::string& css_class) const;
};

/// The one that there is. @throws std::runtime_error if there are none or several
const Element& only(const std::vector<const Element*>& elements);

struct Position {
  double x = 0;
  double y = 0;
};

/// The middles of all circles in it, in order.
std::vector<Position> circles(const Element& element);

/// @return an element without name that holds the others
/// @throws std::runtime_error saying where the text is not well-formed: an element that is not
///         closed, an attribute without quotes or given twice, a loose "<" or "&", a control
///         character, bytes that are not UTF-8
std::unique_ptr<Element> read_page(const std::string& text);

}  // namespace ddp::test
