// Declares that a module is about to use its parameters. Modules of LibTorch 2.13 have no forward hooks, so forward()
// has to call it:
//
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x) {
//       firkin::await_parameters(*this);
//       return x + second->forward(torch::gelu(first->forward(x)));
//     }
//     ...
//   };
//
// Under the strategies `ordered` and `sharded`, parameters may still be in flight when the next forward begins. If a
// module awaits its own, communication can go on while the layers before it run.
#pragma once

namespace torch::nn {
class Module;
}

namespace firkin {

// Waits until the parameters of `module`, and of submodules that do not await their own, are those
// of the last step.
//
// Costs one atomic read if no module is wrapped with the strategies `ordered` or `sharded`; harmless for a module that
// is not wrapped. Call it at the top of every forward() that uses parameters, before reading them, and on every path:
// if a gradient arrives for a module that has not called it, the step fails. Throws GroupError if a collective failed.
//
// Thread-safe: parts of one forward may run on several threads, each of which awaits its own modules. Under `ordered` a
// call may run the optimiser, which sees only the gradients that have just arrived. Until all these threads are joined,
// nothing else may touch the module's gradients, nor parameters of a part that has not awaited them. The latter also
// holds under `sharded`.
void await_parameters(const torch::nn::Module& module);

}  // namespace firkin
