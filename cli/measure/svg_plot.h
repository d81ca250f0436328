// A plot as SVG: points with labels on two axes, one of them logarithmic if asked, joined to curves if asked.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string label;
  uint32_t series = 0;  // its color and place in Plot::series
};

struct Plot {
  std::string title;
  std::string x_title;
  std::string y_title;
  bool log_y = false;
  bool lines = false;               // joins the points of each series, in their order
  std::vector<std::string> series;  // names for the legend
  std::vector<PlotPoint> points;    // finite; y > 0 with log_y
};

// A whole SVG document. REQUIRES: at least one point.
std::string RenderSvg(const Plot& plot);

}  // namespace sluice::cli
