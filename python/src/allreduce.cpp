// AllReduceTable: measured all-reduce times.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

AllReduceRow measured_row(int64_t bytes, int64_t world_size, const std::vector<double>& isolated_s, const std::vector<double>& queued_s,
                          int64_t queue, int64_t calls_per_sample, int64_t wrong) {
  std::vector<double> gap_s;
  for (const double total_s : queued_s) gap_s.push_back(queued_gap_s(total_s, median(isolated_s), static_cast<double>(queue)));
  AllReduceRow row = row_of_samples(bytes, world_size, isolated_s, gap_s);
  row.calls_per_sample = calls_per_sample;
  row.wrong = wrong;
  return row;
}

AllReduceRow plain_row(int64_t bytes, int64_t world_size, double median_s, std::optional<double> gap_s) {
  if (bytes < 1) throw InputError(fmt::format("an all-reduce of {} bytes; expected at least 1", bytes));
  if (world_size < 1) throw InputError(fmt::format("an all-reduce of {} ranks; expected at least 1", world_size));
  for (const double seconds : {median_s, gap_s.value_or(median_s)}) {
    if (const char* expected = expected_of_measured(seconds)) {
      throw InputError(fmt::format("an all-reduce takes {} s; expected {}", seconds, expected));
    }
  }
  return {.bytes = bytes, .world_size = world_size, .median_s = median_s, .gap_s = gap_s};
}

void bind_row(nb::module_& module) {
  nb::class_<AllReduceRow>(module, "AllReduceRow", "One size at one world size; seconds per call.")
      .def(
          "__init__",
          [](AllReduceRow* self, int64_t bytes, int64_t world_size, double median_s, std::optional<double> gap_s) {
            new (self) AllReduceRow(plain_row(bytes, world_size, median_s, gap_s));
          },
          "bytes"_a, "world_size"_a, "median_s"_a, "gap_s"_a = nb::none())
      .def_ro("bytes", &AllReduceRow::bytes)
      .def_ro("world_size", &AllReduceRow::world_size)
      .def_ro("median_s", &AllReduceRow::median_s, "Of calls one at a time.")
      .def_ro("gap_s", &AllReduceRow::gap_s, "Of calls queued back to back; None: not measured.")
      .def_ro("samples", &AllReduceRow::samples)
      .def_ro("wrong", &AllReduceRow::wrong, "Elements of checked results that were not the sum over the ranks; None: not checked.");
}

}  // namespace

int64_t chosen_world(const MeasuredAllReduce& table, std::optional<int64_t> wanted) {
  if (wanted) return *wanted;
  const std::vector<int64_t> worlds = world_sizes(table.rows);
  if (worlds.size() == 1) return worlds[0];
  throw InputError(
      fmt::format("world_size: the table has {}; expected one of them, or another to extrapolate to", fmt::join(worlds, ", ")));
}

void bind_allreduce(nb::module_& module) {
  bind_row(module);
  nb::class_<MeasuredAllReduce>(module, "AllReduceTable",
                                "Measured all-reduce times by size: a(x), one call at a time, and g(x), queued back to back.")
      .def(nb::init<AllReduceTable>(), "rows"_a)
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return MeasuredAllReduce{read_allreduce_csv(path)}; }, "path"_a,
          "Reads an allreduce.csv (bytes,world_size,median_s,gap_s,...; `firkin import` makes one of nccl-tests' output). Raises "
          "InputError\n"
          "with file and line.")
      .def(
          "write_csv", [](const MeasuredAllReduce& self, const std::filesystem::path& path) { write_allreduce_csv(path, self.rows); },
          "path"_a, "Writes an allreduce.csv, whole or not at all.")
      .def_ro("rows", &MeasuredAllReduce::rows)
      .def_prop_ro(
          "world_sizes", [](const MeasuredAllReduce& self) { return world_sizes(self.rows); }, "Ascending.")
      .def("__len__", [](const MeasuredAllReduce& self) { return self.rows.size(); })
      .def("__repr__", [](const MeasuredAllReduce& self) {
        return fmt::format("AllReduceTable({} sizes, ranks: {})", self.rows.size(), fmt::join(world_sizes(self.rows), ", "));
      });
  module.def("allreduce_sizes", &allreduce_sizes, "largest_bytes"_a, "4 B, 16 B, ... up to `largest_bytes`, which is always the last.");
  module.def("row_of_samples", &measured_row, "bytes"_a, "world_size"_a, "isolated_s"_a, "queued_s"_a, "queue"_a, "calls_per_sample"_a,
             "wrong"_a,
             "Medians and moments. isolated_s: seconds per call, one at a time; queued_s: seconds of `queue` calls under way together, "
             "empty: not\n"
             "measured.");
}

}  // namespace firkin::python
