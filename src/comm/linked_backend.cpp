#include "linked_backend.h"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "link_queue.h"
#include "own_work.h"

namespace firkin {
namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

class LinkedBackend final : public c10d::Backend {
 public:
  LinkedBackend(c10::intrusive_ptr<c10d::Backend> inner, ModelledLink link)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        link_(std::move(link)),
        queue_(std::make_shared<LinkQueue>()),
        inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    const auto work = c10::make_intrusive<OwnWork>(rank_, c10d::OpType::ALLREDUCE, "gloo:all_reduce", tensors);
    return start(work, all_reduce_time(link_, bytes_of(tensors)), options.timeout, [&] { return inner_->allreduce(tensors, options); });
  }

  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const auto work = c10::make_intrusive<OwnWork>(rank_, c10d::OpType::BROADCAST, "gloo:broadcast", tensors);
    return start(work, broadcast_time(link_, bytes_of(tensors)), options.timeout, [&] { return inner_->broadcast(tensors, options); });
  }

  Work barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

  // start_or() knows how long its messages are, and pays itself.
  Work send(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->send(tensors, rank, tag); }
  Work recv(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->recv(tensors, rank, tag); }

 private:
  template <typename Launch>
  Work start(const c10::intrusive_ptr<OwnWork>& work, const LinkTime& time, std::chrono::milliseconds timeout, Launch launch) {
    auto transfer =
        std::make_shared<LinkTransfer>(LinkTransfer{.time = time, .complete = [work](std::exception_ptr error) { work->complete(error); }});
    const at::DisableRecordFunctionGuard unrecorded;  // the trace shows the link's times, not those of the data's own move
    std::vector<at::Tensor> roll_call{at::zeros({1})};
    c10d::AllreduceOptions options;
    options.timeout = timeout;
    const Work joining = inner_->allreduce(roll_call, options);
    const Work moving = launch();
    queue_->add(transfer);
    on_end(joining, transfer, &LinkQueue::join);
    on_end(moving, transfer, &LinkQueue::move);
    return work;
  }

  void on_end(const Work& inner, const std::shared_ptr<LinkTransfer>& transfer, void (LinkQueue::*next)(LinkTransfer&)) {
    inner->getFuture()->addCallback(
        [queue = queue_, transfer, next](c10::ivalue::Future& future) {
          if (future.hasError()) {
            queue->fail(transfer, future.exception_ptr());
          } else {
            ((*queue).*next)(*transfer);
          }
        },
        /*uses_future=*/false);
  }

  ModelledLink link_;
  std::shared_ptr<LinkQueue> queue_;
  c10::intrusive_ptr<c10d::Backend> inner_;  // goes first: it ends what is under way, and so the queue can
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link) {
  return c10::make_intrusive<LinkedBackend>(std::move(inner), link);
}

}  // namespace firkin
