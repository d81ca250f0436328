#include "cli/measure/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice::cli {
namespace {

constexpr double kWidth = 900;
constexpr double kHeight = 560;
constexpr double kLeft = 80;
constexpr double kRight = 30;
constexpr double kTop = 50;
constexpr double kBottom = 60;
constexpr int kTicks = 6;
// Distinguishable with the common color blindnesses (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#000000"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Values to pixels, with a margin so that no point sits on the frame.
class Axis {
 public:
  Axis(double least, double most, double from, double to, bool log) : from_(from), to_(to), log_(log) {
    low_ = Scale(least);
    high_ = Scale(most);
    const double margin = high_ > low_ ? 0.06 * (high_ - low_) : std::max(1e-9, 0.1 * std::abs(high_));
    low_ -= margin;
    high_ += margin;
  }
  double Pixel(double value) const { return from_ + (Scale(value) - low_) / (high_ - low_) * (to_ - from_); }
  double Tick(int i) const {
    const double scaled = low_ + (high_ - low_) * (i + 0.5) / kTicks;
    return log_ ? std::exp(scaled) : scaled;
  }

 private:
  double Scale(double value) const { return log_ ? std::log(value) : value; }
  double from_;
  double to_;
  bool log_;
  double low_ = 0;
  double high_ = 0;
};

Axis AxisOf(const Plot& plot, const std::function<double(const PlotPoint&)>& value, double from, double to,
            bool log) {
  const auto less = [&](const PlotPoint& a, const PlotPoint& b) { return value(a) < value(b); };
  const auto [least, most] = std::minmax_element(plot.points.begin(), plot.points.end(), less);
  return Axis(value(*least), value(*most), from, to, log);
}

void AppendText(double x, double y, const char* attributes, const std::string& text, std::string* svg) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes, Escape(text));
}

void AppendAxes(const Plot& plot, const Axis& x, const Axis& y, std::string* svg) {
  const double right = kWidth - kRight;
  const double bottom = kHeight - kBottom;
  for (int i = 0; i < kTicks; ++i) {
    const double px = x.Pixel(x.Tick(i));
    const double py = y.Pixel(y.Tick(i));
    absl::StrAppendFormat(svg, "<path d=\"M%.1f %.1fV%.1fM%.1f %.1fH%.1f\" stroke=\"#ddd\" fill=\"none\"/>\n",
                          px, kTop, bottom, kLeft, py, right);
    AppendText(px, bottom + 18, "text-anchor=\"middle\"", absl::StrFormat("%.4g", x.Tick(i)), svg);
    AppendText(kLeft - 8, py + 4, "text-anchor=\"end\"", absl::StrFormat("%.4g", y.Tick(i)), svg);
  }
  absl::StrAppendFormat(
      svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#333\"/>\n",
      kLeft, kTop, right - kLeft, bottom - kTop);
  AppendText((kLeft + right) / 2, kHeight - 18, "text-anchor=\"middle\"", plot.x_title, svg);
  AppendText((kLeft + right) / 2, 28, "text-anchor=\"middle\" font-size=\"16\"", plot.title, svg);
  absl::StrAppendFormat(
      svg, "<text transform=\"translate(20 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      (kTop + bottom) / 2, Escape(plot.y_title));
}

}  // namespace

std::string RenderSvg(const Plot& plot) {
  const Axis x = AxisOf(
      plot, [](const PlotPoint& p) { return p.x; }, kLeft, kWidth - kRight, false);
  const Axis y = AxisOf(
      plot, [](const PlotPoint& p) { return p.y; }, kHeight - kBottom, kTop, plot.log_y);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  AppendAxes(plot, x, y, &svg);
  const auto color = [](size_t series) { return kColors[series % std::size(kColors)]; };
  for (uint32_t series = 0; plot.lines && series < plot.series.size(); ++series) {
    std::string path;
    for (const PlotPoint& p : plot.points) {
      if (p.series == series) {
        absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x.Pixel(p.x), y.Pixel(p.y));
      }
    }
    absl::StrAppendFormat(&svg, "<path d=\"%s\" stroke=\"%s\" fill=\"none\"/>\n", path, color(series));
  }
  for (const PlotPoint& p : plot.points) {
    const double px = x.Pixel(p.x);
    const double py = y.Pixel(p.y);
    absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", px, py,
                          color(p.series));
    const bool flip = px > kWidth - 220;
    AppendText(flip ? px - 7 : px + 7, py + 4,
               flip ? "text-anchor=\"end\" font-size=\"10\"" : "font-size=\"10\"", p.label, &svg);
  }
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const double py = kTop + 18 + 16 * static_cast<double>(i);
    absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n",
                          kWidth - kRight - 150, py - 4, color(i));
    AppendText(kWidth - kRight - 140, py, "", plot.series[i], &svg);
  }
  return svg + "</svg>\n";
}

}  // namespace sluice::cli
