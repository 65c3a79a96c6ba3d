#include "backward_watch.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "error_text.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace firkin {
namespace {

using torch::autograd::Engine;
using torch::autograd::GraphTask;

// Autograd hands out the current graph task's id and two of its members, but not the task, whose depth tells the outermost and whose future
// tells why backward threw. The way from the member to the task is the compiler's own.
GraphTask* current_graph_task() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* member = reinterpret_cast<const std::byte*>(torch::autograd::get_current_graph_task_exec_info());
  return member == nullptr ? nullptr : reinterpret_cast<GraphTask*>(const_cast<std::byte*>(member - kOffset));
}

}  // namespace

// Of an exception in backward; written by the thread that meets it.
class BackwardWatch::Reason {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = first_line(text);
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_ = "backward threw";
};

struct BackwardWatch::State {
  Callbacks callbacks;
  std::mutex mutex;          // guards `watched`: graph tasks may die on autograd's threads
  std::vector<int> watched;  // graph tasks of the backward that runs
  bool is_watched(int id) {
    const std::lock_guard lock(mutex);
    return std::ranges::find(watched, id) != watched.end();
  }
  void add(int id) {
    const std::lock_guard lock(mutex);
    watched.push_back(id);
  }
  void remove(int id) {
    const std::lock_guard lock(mutex);
    std::erase(watched, id);
  }
};

// Held by a callback of the graph task, and so destroyed with it: when its backward() returns or throws.
struct BackwardWatch::Token {
  std::weak_ptr<State> state;
  std::shared_ptr<Reason> reason;
  int id = 0;
  bool is_outermost = false;
  std::atomic<bool> has_ended = false;

  void run() {
    if (!is_outermost || has_ended.exchange(true)) return;
    const std::shared_ptr<State> alive = state.lock();
    if (alive == nullptr) return;
    alive->remove(id);
    alive->callbacks.ended();
  }

  ~Token() {
    const std::shared_ptr<State> alive = state.lock();
    if (alive == nullptr) return;
    try {
      alive->remove(id);
      if (!is_outermost) {
        attach(alive);  // the graph task around this one is the current one now; all hooks may lie in inner tasks, so this is the way to it
      } else if (!has_ended) {
        alive->callbacks.failed(reason->get());
      }
    } catch (...) {  // an exception is under way already, or no memory is left to tell of one
    }
  }
};

BackwardWatch::BackwardWatch(Callbacks callbacks) : state_(std::make_shared<State>()) {
  state_->callbacks = std::move(callbacks);
}

BackwardWatch::~BackwardWatch() = default;

void BackwardWatch::attach() {
  attach(state_);
}

void BackwardWatch::attach(const std::shared_ptr<State>& state) {
  const int id = torch::autograd::get_current_graph_task_id();
  if (id == -1 || state->is_watched(id)) return;
  GraphTask* task = current_graph_task();
  auto token = std::make_shared<Token>();
  token->state = state;
  token->reason = std::make_shared<Reason>();
  token->id = id;
  token->is_outermost = task == nullptr || task->reentrant_depth_ == 0;
  if (task != nullptr) {
    task->future_result_->addCallback(
        [reason = token->reason](at::ivalue::Future& result) {
          if (result.hasError()) reason->set(result.tryRetrieveErrorMessage());
        },
        /*uses_future=*/false);
  }
  state->add(id);
  Engine::get_default_engine().queue_callback([token] { token->run(); });
}

void BackwardWatch::when_callbacks_have_run(std::function<void()> callback) {
  Engine::get_default_engine().queue_callback(std::move(callback));
}

}  // namespace firkin
