// One rank's thread of a chaos sequence: the training program that the plan describes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chaos_meeting.h"
#include "chaos_plan.h"
#include "chaos_trainee.h"
#include "firkin/comm/process_group.h"

namespace firkin {

class ChaosRank {
 public:
  ChaosRank(const ChaosPlan& plan, const ProcessGroup& group, ChaosMeeting& meeting);

  // The whole sequence. Throws ChaosStop when the ranks disagree, and whatever nobody expected.
  void run();

 private:
  // What became of this rank's part of a step.
  struct Fate {
    std::string error;  // empty: all is well
    bool own_fault = false;
    bool audited = false;
    std::exception_ptr exception = {};  // that of `error`, if it is this rank's own
  };

  ChaosTrainee& trainee(int module) { return *trainees_[static_cast<size_t>(module)]; }
  bool changes(const ChaosChange& change) const;
  void run_joined(const ChaosSection& section);
  void run_drift(const ChaosSection& section);
  void stray();
  bool run_step(const ChaosStep& step);  // returns whether an audit ended it
  Fate attempt(const ChaosStep& step, const ChaosAction& action);
  void train(const ChaosStep& step, const ChaosAction& action);
  void micro_batch(const ChaosStep& step, const ChaosAction& action, int micro);
  bool may_be_refused(const ChaosAction& action, const std::string& what) const;
  void recover(const ChaosStep& step, const ChaosAction& action, const Fate& fate);
  void finish_again(DataParallel& ddp);

  std::string fault_text(const ChaosStep& step) const;
  ChaosReport report_on(const ChaosStep& step, bool succeeded);
  void meet(ChaosReport report);

  const ChaosPlan& plan_;
  ProcessGroup group_;
  ChaosMeeting& meeting_;
  std::vector<std::unique_ptr<ChaosTrainee>> trainees_;
};

}  // namespace firkin
