#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// One measurement of the table.
struct Row {
  int64_t classes = 0;
  std::string head;
  double milliseconds = 0;  ///< of a step, median, of the slowest rank
  double mebibytes = 0;     ///< at the peak, of the rank with most
  double loss = 0;          ///< of the last step
};

/// Memory and time against classes, both axes logarithmic, a line a head: an SVG image.
std::string plot_of(const std::vector<Row>& rows);
