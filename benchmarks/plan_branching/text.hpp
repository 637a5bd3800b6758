#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace branching {

/// A number as JSON that reads back the same.
inline std::string precise(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// A whole instance. @param node_json  text of a node @param edge_bytes  text of the bytes of an edge, by position
template <class NodeJson, class EdgeBytes>
std::string instance_json(int samples, int nodes, const std::vector<std::pair<int, int>>& edges,
                          const NodeJson& node_json, const EdgeBytes& edge_bytes) {
  std::string text = R"({"maxDevices":64,"maxMemoryPerDevice":8589934592,"bandwidth":26843545600,"mbsInBatch":)" +
                     std::to_string(samples) + ",\n\"nodes\":[";
  for (int node = 0; node < nodes; ++node) text += (node > 0 ? ",\n" : "\n") + node_json(node);
  text += "],\n\"edges\":[";
  for (std::size_t e = 0; e < edges.size(); ++e) {
    text += std::string(e > 0 ? ",\n" : "\n") + "{\"sourceId\":" + std::to_string(edges[e].first) +
            ",\"destId\":" + std::to_string(edges[e].second) + ",\"communicationCost\":" + edge_bytes(e) + "}";
  }
  return text + "]}\n";
}

}  // namespace branching
