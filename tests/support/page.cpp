#include "tests/support/page.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>
#include <stdexcept>

namespace ddp::test {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == ':';
}

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  std::unique_ptr<Element> read() {
    check_characters();
    auto root = std::make_unique<Element>();
    read_content(*root);
    if (at_ < text_.size()) {
      fail("an end tag too many");
    }
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("byte " + std::to_string(at_) + ": " + what + ": " +
                             text_.substr(at_, 60));
  }
  bool starts_with(const std::string& prefix) const {
    return text_.compare(at_, prefix.size(), prefix) == 0;
  }

  void check_characters() {
    for (at_ = 0; at_ < text_.size();) {
      const auto first = static_cast<unsigned char>(text_[at_]);
      const std::size_t length = first < 0x80                     ? 1
                                 : first >= 0xC2 && first < 0xE0  ? 2
                                 : (first & 0xF0U) == 0xE0        ? 3
                                 : first >= 0xF0 && first <= 0xF4 ? 4
                                                                  : 0;
      if (length == 0 || at_ + length > text_.size()) {
        fail("not UTF-8");
      }
      for (std::size_t i = 1; i < length; ++i) {
        if ((static_cast<unsigned char>(text_[at_ + i]) & 0xC0U) != 0x80U) {
          fail("not UTF-8");
        }
      }
      if ((first < 0x20 && first != '\n' && first != '\t') || first == 0x7F) {
        fail("a control character");
      }
      if (starts_with("\xEF\xBF\xBE") || starts_with("\xEF\xBF\xBF")) {
        fail("no character");
      }
      at_ += length;
    }
    at_ = 0;
  }

  std::string read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) {
      ++at_;
    }
    if (at_ == begin) {
      fail("expected a name");
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string read_entity() {
    static const std::map<std::string, std::string> entities = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}};
    for (const auto& [entity, character] : entities) {
      if (starts_with(entity)) {
        at_ += entity.size();
        return character;
      }
    }
    fail("a loose &");
  }

  void read_attributes(Element& element) {
    while (text_[at_] != '>' && !starts_with("/>")) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) == 0) {
        fail("expected a space before an attribute");
      }
      ++at_;
      const std::string key = read_name();
      std::string value;
      if (text_[at_] == '=') {
        ++at_;
        if (text_[at_] != '"') {
          fail("an attribute without quotes");
        }
        for (++at_; at_ < text_.size() && text_[at_] != '"';) {
          if (text_[at_] == '<') {
            fail("a loose < in an attribute");
          }
          value += text_[at_] == '&' ? read_entity() : std::string(1, text_[at_++]);
        }
        ++at_;
      }
      if (!element.attributes.emplace(key, value).second) {
        fail("attribute " + key + " given twice");
      }
      if (at_ >= text_.size()) {
        fail("the end inside a tag");
      }
    }
  }

  /// True if the element is complete.
  bool read_start_tag(Element& element) {
    static const std::set<std::string> void_elements = {"meta", "link", "br", "hr", "img", "input"};
    ++at_;
    element.name = read_name();
    read_attributes(element);
    const bool closed = starts_with("/>");
    at_ += closed ? 2 : 1;
    return closed || void_elements.count(element.name) > 0;
  }

  void read_raw_text(Element& element) {
    const std::size_t end = text_.find("</" + element.name + ">", at_);
    if (end == std::string::npos) {
      fail(element.name + " is not closed");
    }
    element.text = text_.substr(at_, end - at_);
    at_ = end;
  }

  void read_content(Element& element) {
    while (at_ < text_.size() && !starts_with("</")) {
      if (starts_with("<!DOCTYPE html>")) {
        at_ += 15;
      } else if (text_[at_] == '<') {
        auto child = std::make_unique<Element>();
        child->parent = &element;
        if (!read_start_tag(*child)) {
          if (child->name == "script" || child->name == "style") {
            read_raw_text(*child);
          } else {
            read_content(*child);
            element.text += child->text;
          }
          const std::string end = "</" + child->name + ">";
          if (!starts_with(end)) {
            fail("expected " + end);
          }
          at_ += end.size();
        }
        element.children.push_back(std::move(child));
      } else if (text_[at_] == '&') {
        element.text += read_entity();
      } else {
        element.text += text_[at_++];
      }
    }
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

void collect(const Element& element, const std::string& name, std::vector<const Element*>& found) {
  for (const auto& child : element.children) {
    if (name == "*" || child->name == name) {
      found.push_back(child.get());
    }
    collect(*child, name, found);
  }
}

}  // namespace

std::string Element::attribute(const std::string& key) const {
  const auto found = attributes.find(key);
  return found == attributes.end() ? "" : found->second;
}

double Element::number(const std::string& key) const {
  const std::string value = attribute(key);
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0') {
    throw std::runtime_error("<" + name + "> has no number " + key + ", but \"" + value + "\"");
  }
  return number;
}

bool Element::has_class(const std::string& css_class) const {
  std::istringstream classes(attribute("class"));
  for (std::string one; classes >> one;) {
    if (one == css_class) {
      return true;
    }
  }
  return false;
}

std::vector<const Element*> Element::all(const std::string& element) const {
  std::vector<const Element*> found;
  collect(*this, element, found);
  return found;
}

std::vector<const Element*> Element::with_class(const std::string& element,
                                                const std::string& css_class) const {
  std::vector<const Element*> found = all(element);
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const Element* one) { return !one->has_class(css_class); }),
              found.end());
  return found;
}

const Element& only(const std::vector<const Element*>& elements) {
  if (elements.size() != 1) {
    throw std::runtime_error("expected one element, got " + std::to_string(elements.size()));
  }
  return *elements.front();
}

std::vector<Position> circles(const Element& element) {
  std::vector<Position> positions;
  for (const Element* circle : element.all("circle")) {
    positions.push_back({circle->number("cx"), circle->number("cy")});
  }
  return positions;
}

std::unique_ptr<Element> read_page(const std::string& text) {
  return Reader(text).read();
}

}  // namespace ddp::test
