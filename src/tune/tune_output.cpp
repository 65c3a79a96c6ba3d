#include "tune/tune_output.h"

#include <memory>

#include "firkin/base/progress.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {
namespace {

// One Progress per phase.
class PhaseProgress {
 public:
  explicit PhaseProgress(bool enabled) : enabled_(enabled) {}
  void operator()(const std::string& phase, int units, const std::string& done) {
    if (phase != phase_ && progress_) progress_->finish();
    if (phase != phase_) progress_ = std::make_unique<Progress>(phase, units, enabled_);
    phase_ = phase;
    progress_->advance(done);
  }

 private:
  bool enabled_;
  std::string phase_;
  std::unique_ptr<Progress> progress_;
};

}  // namespace

void show_progress(TuneOptions& options, bool enabled) {
  auto progress = std::make_shared<PhaseProgress>(enabled);
  options.on_progress = [progress](const std::string& phase, int units, const std::string& done) { (*progress)(phase, units, done); };
}

std::vector<OutputFile> tables_of(const TuneResult& tuned) {
  std::vector<OutputFile> files;
  if (!tuned.profile.tensors.names.empty()) files.push_back({"tensors.csv", tensors_csv(tuned.profile.tensors)});
  if (!tuned.allreduce.empty()) files.push_back({"allreduce.csv", allreduce_csv(tuned.allreduce)});
  return files;
}

}  // namespace firkin
