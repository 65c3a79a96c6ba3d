// One rank's thread of a chaos sequence: the training program that the plan describes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chaos_meeting.h"
#include "chaos_model.h"
#include "chaos_plan.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"

#include <torch/optim/optimizer.h>

namespace firkin {

class ChaosRank {
 public:
  ChaosRank(const ChaosPlan& plan, const ProcessGroup& group, ChaosMeeting& meeting);

  // The whole sequence. Throws ChaosStop when the ranks disagree, and whatever nobody expected.
  void run();

 private:
  DataParallelOptions options() const;
  void run_joined(const ChaosSection& section);
  void run_step(const ChaosStep& step);
  void train(const ChaosStep& step, const ChaosAction& action);
  void micro_batch(const ChaosStep& step, const ChaosAction& action, int micro);
  bool may_be_refused(const std::string& what) const;
  void recover(const ChaosStep& step, const ChaosAction& action, bool own_fault);
  void finish_again();
  bool leaves_late(int step) const;
  void step_optimizer(int step);
  void zero_gradients(ZeroGrad how);

  at::Tensor input(const ChaosStep& step, int micro) const;
  std::string fault_text(const ChaosStep& step) const;
  std::vector<at::Tensor> gradients_alone(const ChaosStep& step, const ChaosAction& action);
  ChaosReport report_on(const ChaosStep& step) const;
  void meet(ChaosReport report);

  const ChaosPlan& plan_;
  ProcessGroup group_;
  ChaosMeeting& meeting_;
  std::shared_ptr<ChaosModel> model_;
  std::shared_ptr<ChaosModel> reference_;  // the same numbers, and no other ranks
  std::vector<at::Tensor> trainable_;
  std::vector<at::Tensor> reference_trainable_;
  std::unique_ptr<DataParallel> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<OverlappedOptimizer> overlapped_;  // goes first
};

}  // namespace firkin
