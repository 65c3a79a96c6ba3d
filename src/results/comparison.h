// Two results of the same subcommand, setting by setting.
//
//   const Comparison runs = compare_files("before/results.json", "after/results.json");
//   runs.settings[0].verdict;  // Verdict::kFaster: the second takes less time, by an interval that excludes 1
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/stats/interval.h"
#include "results/field.h"

namespace firkin {

enum class Verdict {
  kFaster,   // b takes less time than a
  kSlower,   // more
  kSame,     // the interval of the ratio contains 1: the two cannot be told apart
  kUnknown,  // a run has too few samples
};

struct ComparedSetting {
  std::string configuration = {}, name = {};  // the same in both
  double a_s = 0, b_s = 0;                    // medians
  std::optional<Interval> a_interval = {}, b_interval = {};
  double ratio = 1;  // b / a
  std::optional<Interval> ratio_interval = {};
  Verdict verdict = Verdict::kUnknown;
};

// A fact about a run; empty where the run does not state it.
struct DifferentFact {
  std::string name;
  std::string a;
  std::string b;
};

struct Comparison {
  std::string command;
  std::string a_file, b_file;  // the files that were read
  std::vector<std::pair<std::string, std::string>> same_facts = {};
  std::vector<DifferentFact> different_facts = {};
  std::vector<ComparedSetting> settings = {};  // in the order of a
  std::vector<std::string> only_a = {};        // "CONFIGURATION: NAME", with the reason where the run states one
  std::vector<std::string> only_b = {};
};

// Compares two independent runs of `tune`, `bench allreduce` or `bench step`, read from their results.json. Throws
// InputError when the runs are of different subcommands; and, naming the file, when one cannot be read, is of another
// subcommand, states a setting twice, or has samples of another number of settings.
Comparison compare_files(const std::filesystem::path& a, const std::filesystem::path& b);

// For field.h. Reading leaves out the raw samples.
void write_object(const Comparison& comparison, nlohmann::json& object);
void read_object(const JsonFields& fields, Comparison& comparison);

// One comparison per configuration, with only its settings.
std::vector<Comparison> by_configuration(const Comparison& comparison);

// One row per setting, all of one configuration: both medians, their ratio and what it says.
Table comparison_table(const Comparison& comparison, unsigned shown);

// The two files, and the facts in which the runs differ.
Table difference_table(const Comparison& comparison);

// How the intervals came about and what they leave open, a paragraph each.
std::vector<std::string> reading_aid(const Comparison& comparison);

}  // namespace firkin
