// Profile: when each gradient becomes ready.
#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

ProfileSection make_profile(std::vector<std::string> names, std::vector<int64_t> bytes, std::vector<double> ready_s,
                            std::optional<double> backward_s, std::optional<double> bare_backward_s) {
  ProfileSection profile;
  const double last_s = ready_s.empty() ? 0 : ready_s.back();
  profile.tensors = {
      .names = std::move(names), .bytes = std::move(bytes), .ready_s = std::move(ready_s), .backward_s = backward_s.value_or(last_s)};
  check_profile(profile.tensors);
  profile.bare_backward_s = bare_backward_s;
  return profile;
}

// Rows of equal length: one of each step, the end of backward and then a ready time per tensor.
ProfileSection profile_of_samples(std::vector<std::string> names, std::vector<int64_t> bytes,
                                  const std::vector<std::vector<double>>& hooked_s, const std::vector<double>& bare_s) {
  const std::vector<double> medians = column_medians(hooked_s);
  ProfileSection profile;
  profile.tensors.names = std::move(names);
  profile.tensors.bytes = std::move(bytes);
  double latest_s = 0;
  for (size_t i = 1; i < medians.size(); ++i) {
    latest_s = std::max(latest_s, medians[i]);
    profile.tensors.ready_s.push_back(latest_s);
  }
  profile.tensors.backward_s = std::max(latest_s, medians[0]);
  check_profile(profile.tensors);
  std::vector<double> backward_s;
  for (const std::vector<double>& row : hooked_s) backward_s.push_back(row[0]);
  add_bare_backward(backward_s, bare_s, profile);
  return profile;
}

ProfileSection profile_of_file(const std::filesystem::path& path) {
  ProfileSection profile;
  profile.tensors = read_tensors_csv(path);
  return profile;
}

std::string describe(const ProfileSection& profile) {
  const TensorProfile& tensors = profile.tensors;
  const int64_t total = tensors.total_bytes();
  return fmt::format("Profile({} tensors, {}, backward {})", tensors.names.size(), format_bytes(total), format_seconds(tensors.backward_s));
}

}  // namespace

void bind_profile(nb::module_& module) {
  nb::class_<ProfileSection>(module, "Profile",
                             "When each gradient becomes ready in the backward pass.\n\n"
                             "Tensors are in gradient-ready order; times are seconds from the start of backward and do not decrease.")
      .def(
          "__init__",
          [](ProfileSection* self, std::vector<std::string> names, std::vector<int64_t> bytes, std::vector<double> ready_s,
             std::optional<double> backward_s, std::optional<double> bare_backward_s) {
            new (self) ProfileSection(make_profile(std::move(names), std::move(bytes), std::move(ready_s), backward_s, bare_backward_s));
          },
          "names"_a, "bytes"_a, "ready_s"_a, "backward_s"_a = nb::none(), "bare_backward_s"_a = nb::none(),
          "names: distinct; bytes: of each gradient; backward_s: the end of backward, by default the last ready time.\n"
          "Raises InputError where lengths differ, a name repeats, or a time is negative or smaller than the one before.")
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return profile_of_file(path); }, "path"_a,
          "Reads a tensors.csv (name,bytes,ready_s); backward_s becomes the last ready time. Raises InputError with file and line.")
      .def(
          "write_csv", [](const ProfileSection& self, const std::filesystem::path& path) { write_tensors_csv(path, self.tensors); },
          "path"_a, "Writes a tensors.csv, whole or not at all. It does not hold the end of backward.")
      .def_prop_ro(
          "names", [](const ProfileSection& self) { return self.tensors.names; }, "Of the parameters, in gradient-ready order.")
      .def_prop_ro(
          "bytes", [](const ProfileSection& self) { return self.tensors.bytes; }, "Of each gradient.")
      .def_prop_ro(
          "ready_s", [](const ProfileSection& self) { return self.tensors.ready_s; }, "Seconds from the start of backward.")
      .def_prop_ro(
          "backward_s", [](const ProfileSection& self) { return self.tensors.backward_s; },
          "Seconds of the backward pass without communication, with the hooks that looked on.")
      .def_ro("bare_backward_s", &ProfileSection::bare_backward_s, "Seconds of the backward pass without hooks; None: not measured.")
      .def_ro("hook_perturbation", &ProfileSection::hook_perturbation,
              "What looking on cost, as a fraction of the bare backward; None: not measured.")
      .def("__len__", [](const ProfileSection& self) { return self.tensors.names.size(); })
      .def("__repr__", &describe);
  module.def(
      "profile_of_samples", &profile_of_samples, "names"_a, "bytes"_a, "hooked_s"_a, "bare_s"_a,
      "Medians over steps, made non-decreasing. Tensors are in gradient-ready order. hooked_s: per step the end of backward, then the\n"
      "ready time of each tensor; bare_s: per step the end of backward without hooks; seconds.");
}

}  // namespace firkin::python
