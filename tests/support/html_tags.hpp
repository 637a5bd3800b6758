#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace autopar::test {

/// The tags of a page, read strictly: what a browser would repair is a fault here.
class HtmlTags {
 public:
  struct Tag {
    std::string name;
    std::map<std::string, std::string> attributes;
    std::string section;  ///< id of the <section> that it is in

    [[nodiscard]] bool has_class(const std::string& word) const {
      const auto found = attributes.find("class");
      return found != attributes.end() && (" " + found->second + " ").find(" " + word + " ") != std::string::npos;
    }
    [[nodiscard]] std::string attribute(const std::string& key) const {
      const auto found = attributes.find(key);
      return found == attributes.end() ? "" : found->second;
    }
  };

  explicit HtmlTags(std::string_view html) { read(html); }

  [[nodiscard]] const std::string& fault() const { return fault_; }  ///< empty: well-formed
  [[nodiscard]] const std::vector<Tag>& tags() const { return tags_; }
  [[nodiscard]] const std::set<std::string>& ids() const { return ids_; }
  [[nodiscard]] std::vector<Tag> with_class(const std::string& name, const std::string& section = "") const {
    std::vector<Tag> out;
    for (const Tag& tag : tags_) {
      if (tag.has_class(name) && (section.empty() || tag.section == section)) out.push_back(tag);
    }
    return out;
  }
  /// All text that is shown, of one section if it is named.
  [[nodiscard]] std::string text(const std::string& section) const {
    const auto found = texts_.find(section);
    return found == texts_.end() ? "" : found->second;
  }

 private:
  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  [[nodiscard]] std::string section() const {
    for (auto at = open_.rbegin(); at != open_.rend(); ++at) {
      if (at->name == "section") return at->attribute("id");
    }
    return "";
  }

  void read(std::string_view html) {
    constexpr std::string_view kDoctype = "<!doctype html>\n";
    if (!html.starts_with(kDoctype)) fail("no doctype");
    for (std::size_t at = kDoctype.size(); at < html.size() && fault_.empty();) {
      if (html[at] != '<') {
        const auto end = std::min(html.find('<', at), html.size());
        add_text(html.substr(at, end - at));
        at = end;
      } else if (html.substr(at).starts_with("<!--")) {
        at = html.find("-->", at) + 3;
      } else {
        at = read_tag(html, at);
      }
    }
    if (!open_.empty()) fail("<" + open_.back().name + "> is not closed");
  }

  void add_text(std::string_view text) {
    for (std::size_t at = text.find('&'); at != std::string_view::npos; at = text.find('&', at + 1)) {
      const auto rest = text.substr(at);
      const auto is = [&](std::string_view entity) { return rest.starts_with(entity); };
      if (!is("&amp;") && !is("&lt;") && !is("&gt;") && !is("&quot;") && !is("&#39;")) fail("a bare &");
    }
    if (text.find('>') != std::string_view::npos) fail("a bare >");
    texts_[section()] += std::string(text);
  }

  /// @return where the text after it begins
  std::size_t read_tag(std::string_view html, std::size_t at) {
    auto next = at + 1;
    const bool closes = next < html.size() && html[next] == '/';
    next += closes ? 1 : 0;
    const auto name_end = html.find_first_of(" \n>/", next);
    if (name_end == std::string_view::npos || name_end == next) return fail("no name behind <"), html.size();
    Tag tag{std::string(html.substr(next, name_end - next)), {}, section()};
    next = name_end;
    while (next < html.size() && html[next] != '>' && html[next] != '/') next = read_attribute(html, next, tag);
    const bool closes_itself = next < html.size() && html[next] == '/';
    next += closes_itself ? 1 : 0;
    if (next >= html.size() || html[next] != '>') return fail("<" + tag.name + " does not end"), html.size();
    ++next;
    if (closes) {
      if (open_.empty() || open_.back().name != tag.name) fail("</" + tag.name + "> closes nothing");
      if (!open_.empty()) open_.pop_back();
      return next;
    }
    if (tag.attributes.contains("id") && !ids_.insert(tag.attribute("id")).second)
      fail("two ids " + tag.attribute("id"));
    tags_.push_back(tag);
    static const std::set<std::string> kVoid{"meta", "input", "br", "link", "img"};
    if (closes_itself || kVoid.contains(tag.name)) return next;
    open_.push_back(tag);
    if (tag.name != "style" && tag.name != "script") return next;
    open_.pop_back();  // what is in them is no HTML
    const auto end = html.find("</" + tag.name + ">", next);
    if (end == std::string_view::npos) return fail("<" + tag.name + "> is not closed"), html.size();
    return end + tag.name.size() + 3;
  }

  std::size_t read_attribute(std::string_view html, std::size_t at, Tag& tag) {
    at = html.find_first_not_of(" \n", at);
    if (at == std::string_view::npos) return html.size();
    if (html[at] == '>' || html[at] == '/') return at;
    const auto end = html.find_first_of(" \n>=", at);
    if (end == std::string_view::npos) return html.size();
    const std::string name(html.substr(at, end - at));
    if (html[end] != '=') return tag.attributes.emplace(name, ""), end;
    if (html.size() < end + 2 || html[end + 1] != '"') return fail(name + " is not quoted"), html.size();
    const auto close = html.find('"', end + 2);
    if (close == std::string_view::npos) return fail(name + " does not end"), html.size();
    const std::string value(html.substr(end + 2, close - end - 2));
    if (value.find_first_of("<>") != std::string::npos) fail(name + " has a bare < or >");
    if (!tag.attributes.emplace(name, value).second) fail("two attributes " + name);
    return close + 1;
  }

  std::vector<Tag> tags_, open_;
  std::set<std::string> ids_;
  std::map<std::string, std::string> texts_;
  std::string fault_;
};

/// What a page would get from elsewhere; empty: nothing.
inline std::string foreign_in(std::string_view html) {
  for (const std::string_view foreign :
       {"http:", "https:", "//", "src=", "url(", "@import", "<link", "<iframe", "fetch("}) {
    if (html.find(foreign) != std::string_view::npos) return std::string(foreign);
  }
  return "";
}

}  // namespace autopar::test
