// Charts as PNG or SVG files, rendered by the Python package vl-convert.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "report/charts.h"

namespace firkin {

enum class ImageFormat { kPng, kSvg };

// Writes FOLDER/ID.png or FOLDER/ID.svg for each chart, each whole or not at all, and returns the paths. Makes the folder.
// The Python is $FIRKIN_PYTHON, or the one that the build used, or python3 where that is gone. Throws RuntimeError when it fails, with the
// last line it printed.
std::vector<std::filesystem::path> write_chart_images(std::span<const Chart> charts, ImageFormat format,
                                                      const std::filesystem::path& folder);

}  // namespace firkin
