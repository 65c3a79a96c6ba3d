#include "backward_watch.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

namespace firkin {
namespace {

using torch::autograd::Engine;
using torch::autograd::GraphTask;

// The graph task that has called the running hook; null outside of one. LibTorch 2.13 gives out the task's id and two
// of its members, but not the task, whose depth says whether it is the outermost and whose future says why backward
// threw. So this goes back from a member to the task.
GraphTask* current_graph_task() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* member = reinterpret_cast<const std::byte*>(torch::autograd::get_current_graph_task_exec_info());
  return member == nullptr ? nullptr : reinterpret_cast<GraphTask*>(const_cast<std::byte*>(member - kOffset));
}

std::atomic<void (*)()> autograd_error_translation = nullptr;

}  // namespace

void set_autograd_error_translation(void (*translate)()) {
  autograd_error_translation = translate;
}

void rethrow_to_autograd() {
  if (auto* const translate = autograd_error_translation.load()) translate();
  throw;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return first_line(e.what());
  }
}

struct BackwardWatch::State {
  struct Watched {
    int id = -1;
    c10::intrusive_ptr<c10::ivalue::Future> result;  // null unless this is the outermost graph task
    bool has_thrown() const { return result && result->hasError(); }
  };

  std::function<void()> ended;
  std::function<void(const std::string& reason)> failed;
  std::mutex mutex;  // guards what follows: graph tasks may die on autograd's threads
  std::condition_variable changed;
  std::vector<Watched> watched;  // graph tasks of the backward that runs
  int failed_id = -1;            // the last graph task that failed
  std::thread::id failing;       // the thread that is calling `failed`
  bool is_closed = false;

  bool is_watched(int id) {
    const std::lock_guard lock(mutex);
    return std::ranges::find(watched, id, &Watched::id) != watched.end();
  }
  void add(Watched task) {
    const std::lock_guard lock(mutex);
    watched.push_back(std::move(task));
  }
  void remove(int id) {
    const std::lock_guard lock(mutex);
    std::erase_if(watched, [id](const Watched& task) { return task.id == id; });
    if (id == failed_id) failing = {};  // `failed` has returned
    changed.notify_all();
  }
  // Returns false after close(): `failed` is then not to be called.
  bool start_failing(int id) {
    const std::lock_guard lock(mutex);
    if (is_closed) return false;
    failing = std::this_thread::get_id();
    failed_id = id;
    return true;
  }
};

// Lives in a final callback of the graph task. If the task dies without having called that, backward has thrown.
struct BackwardWatch::Token {
  std::weak_ptr<State> state;
  int id = 0;
  bool is_outermost = false;
  std::vector<c10::Stream> streams;  // those of backward()'s caller
  std::atomic<bool> is_over = false;

  void end() {
    if (!is_outermost || is_over.exchange(true)) return;
    const std::shared_ptr<State> alive = state.lock();
    if (alive == nullptr) return;
    alive->remove(id);
    alive->ended();
  }

  void fail(const std::string& reason) {
    if (!is_outermost || is_over.exchange(true)) return;
    const std::shared_ptr<State> alive = state.lock();
    if (alive == nullptr) return;
    if (!alive->start_failing(id)) return;
    {
      const c10::MultiStreamGuard guard(streams);
      alive->failed(reason);
    }
    alive->remove(id);
  }

  ~Token() {
    const std::shared_ptr<State> alive = state.lock();
    if (alive == nullptr) return;
    try {
      if (is_outermost) {
        fail("backward threw");
        return;
      }
      alive->remove(id);
      attach(alive);  // now to the surrounding task, which is current again: it may have no hook of its own
    } catch (...) {   // an exception is under way already, or no memory is left to report one
    }
  }
};

BackwardWatch::BackwardWatch(std::function<void()> ended, std::function<void(const std::string& reason)> failed)
    : state_(std::make_shared<State>()) {
  state_->ended = std::move(ended);
  state_->failed = std::move(failed);
}

BackwardWatch::~BackwardWatch() {
  close();
}

void BackwardWatch::close() {
  settle();
  std::unique_lock lock(state_->mutex);
  state_->is_closed = true;
  state_->changed.wait(lock, [this] { return state_->failing == std::thread::id() || state_->failing == std::this_thread::get_id(); });
}

std::vector<bool> BackwardWatch::may_reach(const std::vector<const torch::autograd::Node*>& nodes) {
  std::vector<bool> reached(nodes.size(), true);
  const GraphTask* task = current_graph_task();
  if (task == nullptr || task->reentrant_depth_ > 0) return reached;
  // Not by is_traceable(), which asks a function of Python's for an attribute that PyTorch 2.13 no longer has.
  const auto is_autograds_own = [](torch::autograd::Node* node) {
    return dynamic_cast<torch::autograd::TraceableFunction*>(node) != nullptr ||
           dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr;
  };
  if (!std::ranges::all_of(task->nodes_in_graph_, is_autograds_own)) return reached;
  for (size_t i = 0; i < nodes.size(); ++i) reached[i] = task->nodes_in_graph_.contains(const_cast<torch::autograd::Node*>(nodes[i]));
  return reached;
}

void BackwardWatch::attach() {
  attach(state_);
}

void BackwardWatch::attach(const std::shared_ptr<State>& state) {
  GraphTask* const task = current_graph_task();
  const int id = torch::autograd::get_current_graph_task_id();
  if (task == nullptr || state->is_watched(id)) return;
  auto token = std::make_shared<Token>();
  token->state = state;
  token->id = id;
  token->is_outermost = task->reentrant_depth_ == 0;
  state->add({.id = id, .result = token->is_outermost ? task->future_result_ : nullptr});
  if (token->is_outermost) {
    for (const std::optional<c10::Stream>& stream : task->caller_current_streams_) {
      if (stream) token->streams.push_back(*stream);
    }
    // Autograd calls this on the thread that has met the exception.
    const auto fail_if_error = [weak = std::weak_ptr(token)](c10::ivalue::Future& ended) {
      const std::shared_ptr<Token> alive = weak.lock();
      if (alive && ended.hasError()) alive->fail(first_line(ended.tryRetrieveErrorMessage()));
    };
    if (!task->future_result_->completed()) task->future_result_->addCallback(fail_if_error, /*uses_future=*/false);
  }
  Engine::get_default_engine().queue_callback([token] { token->end(); });
}

bool BackwardWatch::has_failed() const {
  const int id = torch::autograd::get_current_graph_task_id();
  const std::lock_guard lock(state_->mutex);
  return id != -1 && id == state_->failed_id;
}

bool BackwardWatch::is_in_outermost() {
  const GraphTask* task = current_graph_task();
  return task != nullptr && task->reentrant_depth_ == 0;
}

const void* BackwardWatch::caller() {
  const GraphTask* task = current_graph_task();
  return task == nullptr ? nullptr : task->cpu_ready_queue_.get();  // each thread that calls backward() has its own
}

void BackwardWatch::settle() const {
  const int id = torch::autograd::get_current_graph_task_id();
  const GraphTask* task = current_graph_task();
  if (task != nullptr && task->reentrant_depth_ > 0) return;  // the task that failed may surround this one
  std::unique_lock lock(state_->mutex);
  if (state_->failing == std::this_thread::get_id()) return;
  const auto is_pending = [id](const State::Watched& other) { return other.id != id && other.has_thrown(); };
  state_->changed.wait(lock, [&] { return std::ranges::none_of(state_->watched, is_pending); });
}

}  // namespace firkin
