#include <autopar/core/error.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/version.hpp>

#include <cstdio>
#include <string>

int main() {
  autopar::Graph<std::string, int> graph;
  const auto load = graph.add_node("load");
  const auto solve = graph.add_node("solve");
  graph.add_edge(load, solve, 8);
  std::printf("autopar %s: %s -> %s\n", autopar::kVersion, graph[load].c_str(), graph[solve].c_str());
  return 0;
}
