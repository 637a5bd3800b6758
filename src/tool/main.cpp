#include <iostream>
#include <string>
#include <vector>

#include "tool.hpp"

int main(int argc, char** argv) {
  return autopar::tool::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
