#include <autopar/core/printable.hpp>

#include <catch_shim.hpp>

#include <string>

#include <autopar/core/error.hpp>

using namespace autopar;

TEST_CASE("printable: escapes control characters and nothing else") {
  CHECK(printable("") == "");
  CHECK(printable("plan: 2 stages\n\t12 % of it") == "plan: 2 stages\n\t12 % of it");
  CHECK(printable("größer, 層, 🙂") == "größer, 層, 🙂");
  CHECK(printable("\x1b[2J\x1b]0;title\x07") == "\\u001b[2J\\u001b]0;title\\u0007");
  CHECK(printable("a\rb\x7f"
                  "c") == "a\\u000db\\u007fc");
  CHECK(printable(std::string("a\0b", 3)) == "a\\u0000b");
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\u009b2J");  // CSI of ISO 6429 in UTF-8
  CHECK(printable("\xe2\x80\xae"
                  "txt") == "\\u202etxt");  // right to left from here on
}

TEST_CASE("printable: bytes that are not UTF-8 are escaped one by one") {
  CHECK(printable("\x9b"
                  "2J") == "\\u009b2J");
  CHECK(printable("\xc3") == "\\u00c3");
  CHECK(printable("\xc0\x9b") == "\\u00c0\\u009b");  // longer than need be
  CHECK(printable("\xe0\x82\x9b") == "\\u00e0\\u0082\\u009b");
  CHECK(printable("\xff\xfe") == "\\u00ff\\u00fe");
  CHECK(printable("\xe5\xb1x") == "\\u00e5\\u00b1x");
}

TEST_CASE("Error: messages contain no terminal control characters") {
  CHECK(std::string(ConfigError("unknown member '\x1b[31m'", "plan.json").what()) ==
        "plan.json: unknown member '\\u001b[31m'");
  CHECK(std::string(InvalidArgument("'\x1b'").what()) == "'\\u001b'");
}

TEST_CASE("printable_line: line breaks and tabs are escaped") {
  CHECK(printable_line("net.\nrank 0: all is well\tx") == "net.\\nrank 0: all is well\\tx");
  CHECK(printable_line("größer \x1b[2J\x7f\xff") == "größer \\u001b[2J\\u007f\\u00ff");
  CHECK(printable_line(printable_line("a\nb")) == "a\\nb");
  CHECK(std::string(CaptureError("aten::item", "net.\n0", "a\tb").what()) == "aten::item (near net.\\n0): a\\tb");
}
